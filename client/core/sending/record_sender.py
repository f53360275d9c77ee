"""Sends whole records to the log, for an actor that puts messages there: frames out, outcomes out.

    put -> waiting -> in flight -> outcome

The records are already made, so this is a producer without routes, packing and futures. Frames
carry numbers in a session (see shared/wire/messages.py) and are stored in the order of `put`. If
answers are lost or the writer is a new one, the next session begins, and everything unanswered goes
out again, marked as a retry. A frame that an earlier life of its actor may have stored is a retry
from the first. A writer that is busy, or cannot store anything now, gets the same frames again
after a pause: nothing is given up. Any other refusal is the outcome of its frame alone.

All lives of an actor in one run are the same producer, and each has higher session numbers than the
one before. So once the successor of a dead process has opened a session, whatever the dead one left
in the sockets is out of step, and cannot be stored after the successor has looked for it.

No sockets, no threads; every call passes the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from penstock.client.core.sending.busy_broker import CONNECT_MS, BusyBroker, Probes
from penstock.shared.errors import (
    BrokerBusy,
    PenstockError,
    SegmentUnavailable,
    StoreUnavailable,
)
from penstock.shared.wire import messages
from penstock.shared.wire.messages import Append, Appended, QueueRun, encode, error_from_refusal

# After a pause this long a new session asks where the log ends, so that the writer need not search
# far back for copies of a retry.
PAUSE_MS = 1000
# Frames in flight: enough for one to be stored while others wait for the disk.
MAX_IN_FLIGHT = 16

# Troubles that may end by themselves or that an operator can end. The frame is sent again.
_FOR_NOW = (BrokerBusy, SegmentUnavailable, StoreUnavailable)
_STORE_RETRY_MS = 200
_SESSION_BITS = 32
_EVER = 1 << 62


class Outcome(NamedTuple):
    """What became of a frame. A refused frame may still have been stored by an earlier try whose
    answer was lost, and then lies at the log offset `stored_after` or later. -1: it is not stored.
    """

    tag: Any
    result: Appended | PenstockError
    stored_after: int = -1


class _Frame:
    """A frame without an outcome yet. A copy of it cannot lie below `floor`; -1: it was never sent.

    `scattered`: any of its records may be stored already. Of any other retry only a first part may.
    """

    __slots__ = ("runs", "records", "tag", "retry", "floor", "scattered", "seq")

    def __init__(
        self, runs: tuple[QueueRun, ...], records: bytes, tag: Any, scattered: bool, floor: int
    ) -> None:
        self.runs, self.records, self.tag = runs, records, tag
        self.retry = self.scattered = scattered
        self.floor = floor
        self.seq = 0


class RecordSender:
    """One actor's frames. `outgoing` is drained after each `put`, each answer and each pause."""

    def __init__(
        self, run_id: str, actor: str, generation: int, ack: str = "durable", stored_after: int = 0
    ) -> None:
        """`generation` counts the lives of this `actor` in the run.

        What an earlier life may have stored lies at the log offset `stored_after` or later.
        """
        self._run = run_id
        self._ack = ack
        self.stored_after = self._log_end = stored_after
        digest = blake2b(f"{run_id}/{actor}".encode(), digest_size=8).digest()
        self._producer = int.from_bytes(digest) >> 2
        self._session = (generation << _SESSION_BITS) + 1
        self._open = False
        # where the writer begins to search for copies of this session's retries
        self._floor = stored_after
        self._next_seq = 1
        self._hello_at_ms = self._answered_ms = 0
        self._waiting: deque[_Frame] = deque()
        self._in_flight: dict[int, _Frame] = {}
        self._probes = Probes()
        self._busy = BusyBroker()
        # while the writer is busy: the first frame that it has not taken
        self._untaken = 0
        self._outcomes: list[Outcome] = []
        self.waiting_bytes = 0
        # why the writer takes nothing at the moment
        self.trouble: PenstockError | None = None

    def __len__(self) -> int:
        """Frames that have no outcome yet."""
        return len(self._waiting) + len(self._in_flight)

    def put(
        self,
        runs: Sequence[QueueRun],
        records: bytes,
        tag: Hashable,
        stored_after: int = -1,
    ) -> None:
        """Take a frame, whose outcome will carry the `tag`.

        With `stored_after`, some of the same records may already be stored at that log offset or
        later, in whatever frames: by an earlier life of the actor, or as parts of a refused frame.
        The writer then stores only the others, and answers for all. -1: none of them is stored.
        """
        scattered = stored_after >= 0
        self._waiting.append(_Frame(tuple(runs), records, tag, scattered, stored_after))
        self.waiting_bytes += len(records)

    @property
    def is_idle(self) -> bool:
        """Whether all frames have their outcomes."""
        return not (self._waiting or self._in_flight)

    @property
    def is_open(self) -> bool:
        """Whether the writer has opened the session. If so, what a dead process left is stored by
        now, at a log offset below `floor`, or never will be."""
        return self._open

    @property
    def has_room(self) -> bool:
        """Whether a frame that is put now leaves at once. Waiting for that makes fuller frames."""
        return not self._waiting and len(self._in_flight) < MAX_IN_FLIGHT

    @property
    def floor(self) -> int:
        """The log offset below which there is no copy of any frame that has no outcome yet, or that
        is put later.

        The actor stores it with its progress and passes it to its next life.
        """
        floors = [frame.floor for frame in (*self._in_flight.values(), *self._waiting)]
        return min([self._log_end, *(floor for floor in floors if floor >= 0)])

    def outcomes(self) -> list[Outcome]:
        """The outcomes since the last call, in the order in which they became known."""
        found, self._outcomes = self._outcomes, []
        return found

    # --- frames out ---

    def outgoing(self, now_ms: int) -> Iterator[tuple[bytes, ...]]:
        """Everything to be sent now, in order."""
        if self._open and self._waiting and self._must_begin(now_ms):
            self._begin_session(now_ms)
        if not self._open:
            if now_ms >= self._hello_at_ms:
                if self._untaken:
                    self._begin_session(now_ms, self._untaken)
                self._hello_at_ms = now_ms + self._probes.ask()
                yield (encode(self._hello()),)
            return
        while self._waiting and len(self._in_flight) < MAX_IN_FLIGHT:
            if self._waiting[0].floor >= 0 and self._waiting[0].floor < self._floor:
                return  # it needs the next session, which begins at the next call
            yield self._append(now_ms)
        if self._in_flight and now_ms >= self._probe_at_ms():
            self._hello_at_ms = now_ms
            self._probes.sent(self._next_seq)
            yield (encode(self._hello()),)

    def _must_begin(self, now_ms: int) -> bool:
        """Whether the next frame needs a new session, because it may be stored below this one's
        floor, or because nothing was sent for long."""
        if 0 <= self._waiting[0].floor < self._floor:
            return True
        return not self._in_flight and now_ms - self._answered_ms > PAUSE_MS

    def _append(self, now_ms: int) -> tuple[bytes, bytes]:
        frame = self._waiting.popleft()
        if frame.floor < 0:
            frame.floor = self._log_end
        if not self._in_flight:
            self._answered_ms = now_ms
        frame.seq = self._next_seq
        self._next_seq += 1
        self._in_flight[frame.seq] = frame
        said = self._producer, self._session, frame.seq, frame.runs, self._ack, frame.retry
        return encode(Append(*said, scattered=frame.scattered)), frame.records

    def _hello(self) -> messages.Hello:
        first = next(iter(self._in_flight), self._next_seq)
        return messages.Hello(self._producer, self._session, first, self._floor, self._run)

    def _begin_session(self, now_ms: int, untaken: int = _EVER) -> None:
        """Send unanswered frames again. Those below `untaken` may be stored: they are retries."""
        self._untaken = 0
        self._session += 1
        self._open = False
        self._hello_at_ms = now_ms
        self._probes.forget()
        again = list(self._in_flight.values())
        self._in_flight.clear()
        for frame in again:
            frame.retry = frame.retry or frame.seq < untaken
        self._waiting.extendleft(reversed(again))
        self._floor = self.floor

    def not_connected(self, now_ms: int) -> None:
        """Sending has failed: try again soon. The session finds out which frames are missing."""
        self._answered_ms = soon_ms = self._probes.lost(now_ms)
        self._hello_at_ms = min(self._hello_at_ms, soon_ms) if self._open else now_ms + CONNECT_MS

    def _probe_at_ms(self) -> int:
        return self._probes.due_ms(self._answered_ms, self._hello_at_ms)

    def wait_ms(self, now_ms: int) -> int:
        """For how many ms nothing has to be sent, unless something comes in or is put."""
        if not self._open:
            return max(0, self._hello_at_ms - now_ms)
        if self._in_flight:
            return max(1, self._probe_at_ms() - now_ms)
        return 0 if self._waiting else PAUSE_MS

    # --- answers in ---

    def received(self, parts: Sequence[bytes], now_ms: int) -> None:
        """Take an answer of the writer. Raises ProtocolError for anything else."""
        self.take(messages.decode_produce_answer(parts[0]), now_ms)

    def take(self, answer: messages.ProduceAnswer, now_ms: int) -> None:
        """Like `received`, for a decoded answer."""
        if isinstance(answer, Appended):
            if answer.session == self._session:
                self._answered_ms = now_ms
                self._probes.frame_answered()
                self._appended(answer)
        elif isinstance(answer, messages.Welcome):
            self._welcome(answer, now_ms)
        elif isinstance(answer, messages.OutOfStep):
            if answer.session == self._session and self._open:
                self._begin_session(now_ms)
        elif isinstance(answer, messages.Refused):
            self._refused(answer, now_ms)

    def _appended(self, answer: Appended) -> None:
        if answer.seq not in self._in_flight:
            return
        if answer.runs:
            # what is sent for the first time from now on is stored after this
            self._log_end = max(self._log_end, answer.runs[-1].physical_offset)
        if not self._untaken:
            self._busy.end()
            self.trouble = None
        self._settle(answer.seq, answer)

    def _settle(self, seq: int, outcome: Appended | PenstockError) -> None:
        frame = self._in_flight.pop(seq)
        self.waiting_bytes -= len(frame.records)
        is_doubtful = frame.retry and isinstance(outcome, PenstockError)
        self._outcomes.append(Outcome(frame.tag, outcome, frame.floor if is_doubtful else -1))

    def _welcome(self, answer: messages.Welcome, now_ms: int) -> None:
        if answer.session != self._session or self._untaken:
            return
        if not self._open:
            self._open = True
            self._answered_ms = now_ms
            self._log_end = max(self._log_end, answer.wrote)
            return
        # the answer to a probe: frames that the writer had not taken by then were lost on the way
        if answer.next_seq < self._probes.heard() and self._in_flight:
            self._begin_session(now_ms)

    def _refused(self, answer: messages.Refused, now_ms: int) -> None:
        error = error_from_refusal(answer)
        if not answer.session and not answer.request:
            self._fail_all(error)  # the writer does not understand this sender
        elif answer.session == self._session and answer.request in self._in_flight:
            self._answered_ms = now_ms
            if isinstance(error, _FOR_NOW):
                self._pause(answer.request, error, now_ms)
            else:
                self._settle(answer.request, error)

    def _pause(self, untaken: int, error: PenstockError, now_ms: int) -> None:
        """The writer takes nothing from frame `untaken` on: those go again later, in their order.

        Frames that it took before may be answered meanwhile, so the session ends after the pause.
        """
        if self._untaken:
            return  # this frame will be sent again with the first that was not taken
        self._open = False
        self._untaken = untaken
        self.trouble = error
        if isinstance(error, BrokerBusy):
            pause_ms = self._busy.pause_ms(error)
        else:
            pause_ms = _STORE_RETRY_MS
            for seq, frame in self._in_flight.items():
                frame.retry |= seq > untaken  # the writer's session goes on: they may be stored
        self._hello_at_ms = now_ms + pause_ms
        self._probes.forget()

    def _fail_all(self, error: PenstockError) -> None:
        for frame in (*self._in_flight.values(), *self._waiting):
            self._outcomes.append(Outcome(frame.tag, error, frame.floor))
        self._in_flight.clear()
        self._waiting.clear()
        self.waiting_bytes = 0
