"""The producer without sockets and threads: messages in, frames out, answers in, outcomes out.

    send, or park until the topic's route is known -> open frame -> in flight -> settled

Frames carry numbers in a session (see shared/wire/messages.py). If none was answered for a while
(busy_broker.py), a Hello asks the writer how far it got. If frames are missing or the writer is a
new one, the next session begins, and everything unanswered goes out again, marked as a retry. If
the broker is busy, what it has not taken goes out again in order after a pause, until it is too
old. Both the blocking and the asyncio producer drive this class; every call passes the time.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from threading import Condition

from penstock.client.core.sending.busy_broker import CONNECT_MS, PROBE_MS, BusyBroker, Probes
from penstock.client.core.sending.encoding import BatchMessage, Body, WaitingForm, check_common
from penstock.client.core.sending.failures import Failures
from penstock.client.core.sending.frames import Frame, Sender, SendFuture, outcome_of
from penstock.client.core.sending.moves import OF_ONE_RUN, Moves
from penstock.client.core.sending.outbox import Outbox
from penstock.client.core.sending.packing import Packer, Parts
from penstock.client.core.sending.routes import Parked, Routes
from penstock.client.core.sending.selectors import SelectedBy
from penstock.client.core.timeouts import Timeouts
from penstock.shared.errors import PUT_OK, BrokerBusy, PenstockError, RingUnavailable
from penstock.shared.loops.active import Intake
from penstock.shared.loops.forms import Plain
from penstock.shared.wire import messages
from penstock.shared.wire.messages import encode, error_from_refusal

# After a pause this long a new session asks where the log ends, so that the writer need not search
# far back for copies of a retry.
PAUSE_MS = 1000

_EVER_MS = 1 << 62


class ProducerCore:
    """One producer's state. Not thread-safe by itself: `settled` is also the caller's lock."""

    def __init__(
        self, endpoint: str, settled: Condition, timeout_ms: int, ack: str, packer: Packer
    ) -> None:
        self.timeouts = Timeouts(endpoint, timeout_ms)
        self._ack = ack
        self._packer, self._ring = packer, packer.ring
        self.encoder = encoder = packer.encoder
        self.sender = Sender(settled, encoder.numbers.origin, endpoint, os.getpid())
        self.terms = encoder.terms
        self._producer = int.from_bytes(os.urandom(8)) >> 2
        self._session, self._open, self._next_seq, self._floor = 1, False, 1, 0
        self._hello_at_ms = self._answered_ms = self._aged_ms = 0
        self.routes = Routes()
        sizes = encoder.fixed_bytes, encoder.compressed_bytes
        plain = Plain(SendFuture, self.sender, ack, encoder.numbers, encoder.terms, *sizes)
        # Drivers try this first: most messages are plain, and then none of this file's code runs.
        self.intake = Intake(plain, self.routes.turns, self.routes.queues)
        self.outbox = Outbox(self.intake, self.routes.rotation)
        self.moves = Moves(self.routes, encoder.room)
        self._in_flight: dict[int, Frame] = {}
        self._resend: deque[Frame] = deque()
        self._probes = Probes()
        self._busy = BusyBroker()
        self._untaken = 0  # while the broker is busy: the first frame that it has not taken
        self.failures = Failures()

    # --- messages in ---

    def open_frame(self, ack: str) -> None:
        """Open a frame for a plain message that `intake` has found no room for."""
        self.outbox.open_frame(ack or self._ack)

    def send(
        self,
        topic: str,
        message: BatchMessage,
        shard: str | None,
        queue: int | SelectedBy | None,
        ack: str,
        wait: bool,
        now_ms: int,
        delay: WaitingForm | None = None,
    ) -> SendFuture:
        """Take any message that `intake.take` has not. `now_ms` is wall-clock time.

        Raises InvalidMessage, PropertiesTooLarge or QueueNotFound; then nothing has changed.
        """
        encoder = self.encoder
        topic, queue, ack = check_common(topic, queue, ack, wait)
        draft = encoder.draft(message, shard, wait)
        queue_id = self.routes.queue_for(topic, shard, queue)
        size = encoder.room(topic, draft, delay)
        future = outcome_of(self.sender, encoder.numbers.next(now_ms), topic, delay)
        made = Parked(topic, [draft], size, future, shard, queue, ack or self._ack, delay=delay)
        self._enter(queue_id, made)
        return future

    def send_batch(
        self,
        topic: str,
        messages: Iterable[BatchMessage | Body],
        shard: str | None,
        queue: int | SelectedBy | None,
        ack: str,
        wait: bool,
        now_ms: int,
    ) -> SendFuture:
        """Take messages that are stored together or not at all. Raises what `send` raises."""
        encoder = self.encoder
        topic, queue, ack = check_common(topic, queue, ack, wait)
        drafts = encoder.drafts(topic, messages, shard, wait)
        queue_id = self.routes.queue_for(topic, shard, queue)
        size = sum([encoder.room(topic, draft) for draft in drafts])
        numbers = encoder.numbers.several(now_ms, len(drafts))
        future, ack = SendFuture(self.sender, numbers[0], numbers), ack or self._ack
        self._enter(queue_id, Parked(topic, drafts, size, future, shard, queue, ack, True))
        return future

    def _enter(self, queue_id: int, made: Parked) -> None:
        """Put it into the open frame or, if the queue is -1, let it wait for its topic's route."""
        if queue_id < 0:
            self.routes.park(made)
        else:
            self.outbox.enter(queue_id, made)
        self.intake.count(1, made.size)

    @property
    def may_send(self) -> bool:
        """Whether a new message could leave now, and not only after an answer."""
        return self.outbox.may_leave(len(self._in_flight))

    def _assign(self, parked: Parked) -> None:
        future = parked.future
        try:
            self.encoder.check_again(parked.drafts)  # made before the broker had said its limits
            queue_id = self.routes.queue_of(parked)
        except OF_ONE_RUN as error:
            self._fail_parked([parked], error)
            return
        self.outbox.enter(queue_id, parked)
        if future.watched and future.run is not None:
            future.run.frame.watched = True

    # --- frames out ---

    def outgoing(self, now_ms: int) -> Iterator[Parts]:
        """Everything to be sent now, in order; payloads are valid until this is called again."""
        return self.packed(self.leaving(now_ms))

    def leaving(self, now_ms: int) -> Iterator[Parts | Frame]:
        """What is to be sent now, in order: requests, and closed frames that are to be packed."""
        idle = self._open and not self._in_flight
        if idle and self.outbox and now_ms - self._answered_ms > PAUSE_MS:
            self._begin_session(now_ms)
        if not self._open:
            if now_ms >= self._hello_at_ms:
                if self._untaken:
                    self._begin_session(now_ms, self._untaken)
                self._hello_at_ms = now_ms + self._probes.ask()
                yield (encode(self._hello()),)
            return
        yield from self.routes.outgoing(now_ms)
        yield from self._ring.outgoing(self._producer, now_ms, self.routes.number)
        while self._resend or self.outbox and self.may_send:
            frame = self._resend.popleft() if self._resend else self._next_frame()
            frame.since_ms = frame.since_ms or now_ms
            if len(self._in_flight) == 1:
                self._answered_ms = now_ms
            yield frame
        if self._in_flight and now_ms >= self._probe_at_ms():
            self._hello_at_ms = now_ms
            self._probes.sent(self._next_seq)
            yield (encode(self._hello()),)

    def packed(self, leaving: Iterable[Parts | Frame]) -> Iterator[Parts]:
        """The same, with frames packed: done without the lock, before any answer is taken."""
        return self._packer.requests(self._producer, self._session, leaving, self._unpacked)

    def _unpacked(self, frame: Frame, error: PenstockError) -> None:
        with self.sender.settled:
            self._settle(self._in_flight.pop(frame.seq), None, error)

    def _hello(self) -> messages.Hello:
        first, run = next(iter(self._in_flight), self._next_seq), self.routes.aim.run
        return messages.Hello(self._producer, self._session, first, self._floor, run)

    def _next_frame(self) -> Frame:
        """The oldest waiting frame, now closed and in flight."""
        frame = self.outbox.take()
        frame.close(self._next_seq)
        self._next_seq += 1
        self._in_flight[frame.seq] = frame
        return frame

    def not_connected(self, now_ms: int) -> None:
        """Sending has failed: try again soon. The session finds out which frames are missing."""
        self._answered_ms = soon_ms = self._probes.lost(now_ms)
        self._hello_at_ms = min(self._hello_at_ms, soon_ms) if self._open else now_ms + CONNECT_MS
        self.routes.not_connected()
        self.timeouts.connected = False

    def _probe_at_ms(self) -> int:
        return self._probes.due_ms(self._answered_ms, self._hello_at_ms)

    def wait_ms(self, now_ms: int) -> int:
        """For how many ms nothing has to be sent, unless something comes in."""
        if not self._open:
            return max(0, self._hello_at_ms - now_ms)
        if self._in_flight:
            return max(1, self._probe_at_ms() - now_ms)
        return PROBE_MS if self.intake.unsettled else 1000

    # --- answers in ---

    def received(self, parts: list[bytes], now_ms: int) -> None:
        """Take an answer of the broker."""
        answer = messages.decode_produce_answer(parts[0])
        self.timeouts.connected = True
        if not self.routes.aim.heard(answer):
            self.not_connected(now_ms)
        elif isinstance(answer, messages.Appended):
            if answer.session == self._session:
                self._answered_ms = now_ms
                self._probes.frame_answered()
                self._ring.answered(answer.seq)
                self._appended(answer)
        elif isinstance(answer, messages.Welcome):
            self._welcome(answer, now_ms)
        elif isinstance(answer, messages.OutOfStep):
            if answer.session == self._session and self._open:
                self._begin_session(now_ms)
        elif isinstance(answer, messages.Routed):
            for parked in self.routes.routed(answer, now_ms):
                self._assign(parked)
        elif isinstance(answer, messages.TopicList | messages.TopicDescribed):
            self.routes.told(answer)
        elif isinstance(answer, messages.RingOpened):
            self._ring.opened(answer)
        else:
            self._refused(answer, now_ms)

    def _appended(self, answer: messages.Appended) -> None:
        first = next(iter(self._in_flight), 0)
        frame = self._in_flight.pop(answer.seq, None)
        if frame is None:
            return
        retries = frame.retry and any(other.retry for other in self._in_flight.values())
        if answer.seq == first and answer.runs and not retries:
            # Unanswered frames were stored later, so their copies need not be searched below this.
            # That is not so among retries: one may have been stored without the one before it.
            self._floor = max(self._floor, answer.runs[0].physical_offset)
        if not self._untaken:
            self._busy.end()
        self.moves.answered(frame, self._answered_ms)
        self._settle(frame, answer, None)

    def _settle(
        self, frame: Frame, answer: messages.Appended | None, error: PenstockError | None
    ) -> None:
        self.intake.count(-frame.unsettled, -frame.size)
        failed = error is not None or answer is not None and answer.status != PUT_OK
        told = frame.counted_futures() if failed else ()
        frame.settle(answer, error)
        for topic, count, future in told:
            self.failures.add(topic, count, future)

    def _welcome(self, answer: messages.Welcome, now_ms: int) -> None:
        if answer.session != self._session or self._untaken:
            return
        self.terms.take(answer)
        if not self._open:
            self._open = True
            self._answered_ms = now_ms
            self._ring.session_open(answer)
            if not self._in_flight:
                self._floor = answer.wrote
            return
        # the answer to a probe: frames that the writer had not taken by then were lost on the way
        if answer.next_seq < self._probes.heard() and self._in_flight:
            self._begin_session(now_ms)

    def _begin_session(
        self, now_ms: int, untaken: int = _EVER_MS, again: list[Frame] | None = None
    ) -> None:
        """Number unanswered frames again. Those below `untaken` may be stored: they are retries."""
        self._untaken = 0
        self._session += 1
        self._open = False
        self._hello_at_ms = now_ms
        self._probes.forget()
        # all get new numbers, without gaps: frames between them may have been answered out of turn
        again, self._in_flight = again or list(self._in_flight.values()), {}
        for frame in again:
            frame.retry = frame.retry or frame.seq < untaken
            frame.seq = self._next_seq
            self._next_seq += 1
            self._in_flight[frame.seq] = frame
        self._resend = deque(again)

    def _refused(self, answer: messages.Refused, now_ms: int) -> None:
        error = error_from_refusal(answer)
        if answer.session:
            if answer.session == self._session:
                self._ring.answered(answer.request)
            if answer.session == self._session and answer.request in self._in_flight:
                self._answered_ms = now_ms
                frame = self._in_flight[answer.request]
                if isinstance(error, RingUnavailable):
                    self._ring.close()
                    self._begin_session(now_ms, answer.request)
                elif isinstance(error, BrokerBusy):
                    self._pause(answer.request, error, now_ms)
                elif isinstance(error, OF_ONE_RUN) and len(frame.runs) > 1:
                    self._part(frame, error, now_ms)
                elif self.moves.refused(frame, error, now_ms):
                    del self._in_flight[answer.request]
                else:
                    self.routes.note(error, frame.runs[0].topic)
                    self._settle(self._in_flight.pop(answer.request), None, error)
            return
        if not answer.request:
            self.fail_all(error)  # the broker does not understand this client
        elif not self._ring.refused(answer.request):
            self._fail_parked(self.routes.refused(answer.request, error), error)

    def _part(self, frame: Frame, error: PenstockError, now_ms: int) -> None:
        """A run is at fault, so each half of the frame is sent again, and then what follows it."""
        again = list(self._in_flight.values())
        at = again.index(frame)
        again[at : at + 1] = [] if frame.whole else frame.halves(self.encoder.room)
        if frame.whole:
            self._settle(self._in_flight.pop(frame.seq), None, error)
        self._begin_session(now_ms, frame.seq, again)

    def _pause(self, untaken: int, busy: BrokerBusy, now_ms: int) -> None:
        """The broker takes nothing from frame `untaken` on: those go again later, in their order.

        Frames that it took before may be answered meanwhile, so the session ends after the pause.
        """
        self._open = False
        self._untaken = untaken
        self._hello_at_ms = now_ms + self._busy.pause_ms(busy)
        self._resend.clear()
        self._probes.forget()

    def _fail_parked(self, failed: Iterable[Parked], error: PenstockError) -> None:
        for parked in failed:
            self.intake.count(-1, -parked.size)
            parked.future.fail(error)
            self.failures.add(parked.topic, len(parked.drafts), parked.future)

    # --- time ---

    def tick(self, now_ms: int) -> None:
        """Ask again for routes, and give up on what has waited too long."""
        if now_ms < self._aged_ms + PROBE_MS:
            return
        self._aged_ms = now_ms
        self.moves.look(now_ms)
        if self._open:
            self.routes.ask_again(now_ms)
        before_ms = now_ms - self.timeouts.timeout_ms
        if parked := list(self.routes.give_up(now_ms, before_ms)):
            error = self._late("the broker has not said which queues the topic has")
            self._fail_parked(parked, error)
        for seq, frame in list(self._in_flight.items()):
            if frame.since_ms < before_ms:
                del self._in_flight[seq]
                on_its_way = not 0 < self._untaken <= seq and frame not in self._resend
                if frame in self._resend:
                    self._resend.remove(frame)
                late = self._late("a message was not acknowledged", on_its_way or frame.retry)
                self._settle(frame, None, late)
        for frame in self.outbox.give_up(now_ms, before_ms):
            self._settle(frame, None, self._late("a message could not be sent"))

    def _late(self, what: str, may_be_stored: bool = False) -> PenstockError:
        """The error of a message whose time is over: the broker is busy, or does not answer."""
        if self._busy.error is not None and not may_be_stored:
            return self._busy.error
        return self.routes.aim.elsewhere or self.timeouts.message(what, may_be_stored)

    def fail_all(self, error: PenstockError) -> None:
        """Settle everything with this error, because nothing more can be sent."""
        for frame in self._in_flight.values():
            self._settle(frame, None, error)
        self._resend.clear()
        self._fail_parked(self.routes.give_up(1, _EVER_MS), error)
        while self.outbox:
            self._settle(self._next_frame(), None, error)
        self._in_flight.clear()
        self._ring.close()
