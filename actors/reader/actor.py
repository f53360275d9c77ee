"""The reader: answers pulls with ranges of the log, holds those that have to wait, finds by key.

Owns:     `closed_consumers`; the consume endpoint; config/consumerFilter.json.
Reads:    `queued`; the queue table, consume queues, the log below it; the index, `dispatched`.
Hears:    requests of consumers; the reput's doorbell.
Rings:    nobody.
On crash: nothing is lost: consumers ask again from where they are.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.actors.reader.descriptions import describe
from penstock.actors.reader.filter_turns import FilterTurns
from penstock.actors.reader.filtered_pulls import Answers, FilteredPulls, HeldPull
from penstock.actors.reader.query_turns import QueryTurns
from penstock.shared.errors import InvalidArgument, PenstockError, ProtocolError
from penstock.shared.layout import StorePaths
from penstock.shared.names import MAX_QUEUES_PER_TOPIC, check_topic
from penstock.shared.process.actor import Actor, Stage
from penstock.shared.process.reception import Reception
from penstock.shared.queue.found_records import FoundRecords, piece_of, places_of, ranges_of
from penstock.shared.queue.reader import MAX_PULL_BYTES, CursorSnapshot, QueueReader, unreadable
from penstock.shared.store.consumer_filters import ConsumerFilterFile
from penstock.shared.wire import messages
from penstock.shared.wire.messages import (
    Pull,
    Pulled,
    Queried,
    Query,
    QueryById,
    QueueSlice,
    encode,
)
from penstock.shared.wire.sockets import serve
from penstock.shared.wire.unread_answers import UnreadAnswers

REQUESTS_AT_ONCE = 64
MAX_REQUEST_BYTES = 1 << 18
# A consumer asks for one thing at a time.
ANSWERS_WAITING = 4
MAX_WAIT_MS = 30_000
MAX_HELD = 20_000
# A pull for many queues is held only while so few are that all together stay below this.
MAX_HELD_CURSORS = 400_000
# How long a question waits for what was acknowledged before it, and is on its way to the queues.
CATCH_UP_MS = 1000
# How soon to look whether the index has got there.
SOON_MS = 1
# Last answers may still leave when the reader stops.
LINGER_MS = 500
_NEVER_MS = 1 << 62


class _Held(NamedTuple):
    """A pull that found nothing and waits.

    Once the queues hold everything up to the log offset `position`, an offset behind a queue's end
    is a wrong one.
    """

    peer: bytes
    pull: Pull
    until_ms: int
    position: int
    standing: CursorSnapshot | None = None


class _Asked(NamedTuple):
    """A question for a topic's queues that waits until the reput has caught up."""

    request: messages.Describe
    position: int
    until_ms: int


class Reader(Actor):
    """Answers consumers: pulls at once or later, questions when the reput has caught up."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._clock = stage.clock
        # one for each consumer: a repeated pull replaces the one before
        self._held: dict[bytes, _Held] = {}
        self._asked: dict[bytes, _Asked] = {}
        self._next_due_ms = _NEVER_MS
        self._unsent = UnreadAnswers()
        self._queued = -1
        # what producers have an answer for lies below this
        self._acknowledged = "flushed" if stage.config.sync_flush else "wrote"

    def start(self) -> None:
        config, run = self._stage.config, self._stage.run
        self._queues = QueueReader(config, run, self._stage.positions)
        self._queries = QueryTurns(
            config, self._stage.positions, self._queues.log, self._clock.monotonic_ms
        )
        self._filtered = FilteredPulls(
            self._queues,
            config.max_filter_message_size_bytes,
            Answers(self._send_found, self._refuse_pull, self._unsent.room),
        )
        paths = StorePaths(config.store)
        self._filter_file = ConsumerFilterFile(paths.consumer_filters, self._clock)
        self._filters = FilterTurns(self._filter_file, config.enable_property_filter)
        self._topics = paths.topics
        self._endpoints = (run.endpoints.consume, run.endpoints.consume_ipc)
        self._reception = Reception("consumers", run, config.store)
        self._limit = self._stage.connection_limit(config.max_connections)
        self._serve()

    def _serve(self) -> None:
        self._socket = serve(
            self._stage.context,
            self._endpoints,
            MAX_REQUEST_BYTES,
            self._stage.listening,
            ANSWERS_WAITING,
        )
        self._inlet = self._stage.inlet(self._socket, "closed_consumers")
        self._stage.listen(self._socket)

    def work(self) -> int:
        self._limit.tend(self._clock.monotonic_ms())
        self._inlet.tend(self._unsent.size_bytes)
        done = self._look_again()
        for _ in range(REQUESTS_AT_ONCE):
            parts = self._inlet.receive()
            if parts is None:
                break
            if parts:
                self._receive(parts)
            done += 1
        done += self._read_filter() + self._answer_queries()
        self._filter_file.save()
        if not done:
            self._queues.rest(self._clock.monotonic_ms())
        return done

    def idle_ms(self) -> int:
        # nobody rings when the index has what a query waits for
        return SOON_MS if self._queries.waiting else self._inlet.idle_ms

    def release_deleted(self) -> None:
        """Close deleted files. One that ZeroMQ has been sending for too long, it sends no more.

        All connections close, for it does not say whose it is. Consumers come back by themselves
        and ask again, and the one that did not read is told what has expired since.
        """
        self._queries.release_deleted()
        held_ms = self._queues.release_deleted(self._clock.monotonic_ms())
        if held_ms > self._stage.config.destroy_mapped_file_interval_forcibly_ms:
            self._stage.listen(self._socket, False)
            self._socket.close(linger=0)
            self._held.clear()
            self._asked.clear()
            self._filters.clear()
            self._serve()

    def drained(self) -> bool:
        return True

    def close(self) -> None:
        for held in self._held.values():
            self._answer(held, final=True)
        self._filtered.answer_all()
        self._filter_file.save(at_once=True)
        for peer, asked in self._asked.items():
            self._describe(peer, asked.request)
        self._socket.close(linger=LINGER_MS)
        self._queries.close()
        self._queues.close()

    def _receive(self, parts: list[bytes]) -> None:
        peer = parts[0]
        request_id = 0
        try:
            if len(parts) != 2:
                raise ProtocolError("a request is not one header", f"{len(parts) - 1} parts")
            request = self._reception.read(parts[1])
            if isinstance(request, bytes):
                self._socket.send_multipart((peer, request))
                return
            request_id = request.request
            if isinstance(request, Query | QueryById):
                self._queries.add(peer, request)
                return
            check_topic(request.topic)
            if isinstance(request, Pull):
                self._pull(peer, request)
            else:
                known = self._asked.get(peer)
                if known is None or known.request != request:  # asked again it waits no longer
                    position = self._stage.positions[self._acknowledged]
                    until_ms = self._clock.monotonic_ms() + CATCH_UP_MS
                    self._asked[peer] = _Asked(request, position, until_ms)
                self._describe_asked()
        except PenstockError as error:
            self._refuse(peer, request_id, error)

    def _refuse(self, peer: bytes, request: int, error: PenstockError) -> None:
        self._socket.send_multipart((peer, encode(messages.refusal(error, request))))

    def _answer_queries(self) -> int:
        """Work at queries for a moment; 0 when there is nothing to do for them now."""
        ended = self._queries.work()
        for peer, request, answer in ended:
            if isinstance(answer, PenstockError):
                self._refuse(peer, request.request, answer)
            else:
                header = encode(Queried(request.request))
                self._socket.send_multipart((peer, header, b"".join(answer)))
        return len(ended) + self._queries.busy

    def _read_filter(self) -> int:
        """Read one of the long filters that wait: others are served before the next."""
        turn = self._filters.next()
        if turn is None:
            return 0
        peer, pull = turn
        try:
            self._pull(peer, pull, in_turn=True)
        except PenstockError as error:
            self._refuse(peer, pull.request, error)
        return 1

    def _pull(self, peer: bytes, pull: Pull, in_turn: bool = False) -> None:
        for queue_id, offset in pull.cursors.items():
            if queue_id < 0 or offset < 0:
                what = "a pull names a queue or an offset below 0"
                raise InvalidArgument(what, f"queue {queue_id}, offset {offset}")
        ends = pull.subscription.ends if pull.subscription is not None else {}
        count = max(len(pull.cursors), len(ends))
        if count > MAX_QUEUES_PER_TOPIC:
            raise InvalidArgument(f"a pull names more than {MAX_QUEUES_PER_TOPIC} queues", count)
        if not in_turn and self._filters.has_to_wait(peer, pull):
            return
        chosen = self._filters.filter_of(pull)
        now_ms = self._clock.monotonic_ms()
        until_ms = now_ms + min(pull.wait_ms, MAX_WAIT_MS)
        held_now = len(self._held) + len(self._filtered)
        if held_now >= MAX_HELD:
            self._answer_oldest()
        elif held_now >= MAX_HELD_CURSORS // max(count, 1):
            until_ms = now_ms
        position = self._stage.positions[self._acknowledged]
        before = self._held.pop(peer, None)
        if chosen is not None and pull.subscription is not None:
            cursors = dict(pull.cursors)
            self._filtered.put(HeldPull(peer, pull, chosen, ends, until_ms, position, cursors))
            return
        self._filtered.drop(peer)
        if before is not None and before.pull.request == pull.request:
            # asked again because no answer has come yet: that does not make the wait longer
            until_ms = min(until_ms, before.until_ms)
        held = _Held(peer, pull, until_ms, position)
        if not self._answer(held, final=until_ms <= now_ms):
            self._hold(held)
            self._next_due_ms = min(self._next_due_ms, until_ms)

    def _answer_oldest(self) -> None:
        """Who has waited longest asks again: a crowd that waits keeps nobody from waiting."""
        if len(self._filtered) > len(self._held):
            self._filtered.answer_oldest()
            return
        peer = next(iter(self._held))
        self._answer(self._held.pop(peer), final=True)

    def _hold(self, held: _Held) -> None:
        """Keep a pull for which there is nothing now, with what to compare when queues grow."""
        standing = self._queues.standing(held.pull.topic, held.pull.cursors)
        self._held[held.peer] = held._replace(standing=standing)

    def _look_again(self) -> int:
        """Answer held pulls that have something now, or have waited long enough."""
        queued = self._stage.positions["queued"]
        moved, self._queued = queued != self._queued, queued
        now_ms = self._clock.monotonic_ms()
        answered = self._describe_asked()
        for peer, held in list(self._held.items()) if moved or now_ms >= self._next_due_ms else ():
            due = held.until_ms <= now_ms
            if not due and (not moved or self._queues.is_at_ends(held.standing)):
                continue
            if self._answer(held, final=due):
                del self._held[peer]
                answered += 1
            else:
                self._hold(held)
        if now_ms >= self._next_due_ms:
            self._next_due_ms = min(
                (held.until_ms for held in self._held.values()), default=_NEVER_MS
            )
        return answered + self._filtered.turn(queued, self._clock.monotonic_ms)

    def _answer(self, held: _Held, *, final: bool) -> bool:
        """Answer a pull if there is something to say, or if this is the last chance.

        A queue that cannot be read is an error for who asks for it, and for nobody else.
        """
        try:
            return self._answer_if(held, final)
        except (PenstockError, OSError) as error:
            self._refuse_pull(held.peer, held.pull, error)
        return True

    def _refuse_pull(self, peer: bytes, pull: Pull, error: PenstockError | OSError) -> None:
        if isinstance(error, OSError):
            error = unreadable(pull.topic, error)
        self._refuse(peer, pull.request, error)

    def _answer_if(self, held: _Held, final: bool) -> bool:
        pull = held.pull
        complete = self._stage.positions["queued"] >= held.position
        queues = self._queues.queues(pull.topic)
        left = min(max(pull.max_bytes, 1), MAX_PULL_BYTES, self._unsent.room())
        slices: list[QueueSlice] = []
        records: list[FoundRecords] = []
        news = len(queues) > pull.known_queues
        # whose turn is first changes with every pull, so that no queue starves another
        order = sorted(pull.cursors)
        turn = pull.request % len(order) if order else 0
        for queue_id in order[turn:] + order[:turn]:
            slot = queues.get(queue_id, -1)
            offset = pull.cursors[queue_id]
            low, high = self._queues.range(slot) if slot >= 0 else (0, 0)
            if offset < low:
                # expired: say where the queue begins now
                slices.append(QueueSlice(queue_id, offset, low, high, 0))
            elif offset < high and (whole := self._queues.whole_from(slot, offset)) > offset:
                # lost with a damaged part of the log: the same answer
                slices.append(QueueSlice(queue_id, offset, whole, high, 0))
            elif offset > high and complete:
                # RocketMQ's OFFSET_OVERFLOW_BADLY; before, the reput may still have been behind
                slices.append(QueueSlice(queue_id, high, low, high, 0))
            elif offset < high and left > 0:
                try:
                    found, next_offset = self._queues.read(slot, offset, left)
                except FileNotFoundError:
                    # expired since: the cleaner moves the min offset before it deletes
                    low, high = self._queues.range(slot)
                    if offset >= low:
                        raise
                    slices.append(QueueSlice(queue_id, offset, low, high, 0))
                    continue
                if found.size:
                    records.append(found)
                left -= found.size
                slices.append(QueueSlice(queue_id, next_offset, low, high, found.size))
        if not (slices or news or final):
            return False
        self._send_found(held.peer, pull, slices, records)
        return True

    def _send_found(
        self, peer: bytes, pull: Pull, slices: list[QueueSlice], records: list[FoundRecords]
    ) -> None:
        queue_ids = tuple(sorted(self._queues.queues(pull.topic)))
        places = places_of(records) if pull.direct else ()
        answer = Pulled(pull.request, tuple(slices), queue_ids, self._stage.run.run_id, places)
        payload = ranges_of(records) if places else piece_of(records)
        # one long piece goes out of the mapped segment itself, which it then keeps mapped
        copied = isinstance(payload, bytes)
        parts = peer, encode(answer), payload
        tracker = self._socket.send_multipart(parts, copy=False, track=copied)
        if copied:
            self._unsent.add(tracker, len(payload))

    def _describe_asked(self) -> int:
        """Describe topics to those who asked, with all that was acknowledged when they did."""
        queued = self._stage.positions["queued"]
        now_ms = self._clock.monotonic_ms() if self._asked else 0
        answered = 0
        for peer, asked in list(self._asked.items()):
            if queued >= asked.position or asked.until_ms <= now_ms:
                del self._asked[peer]
                self._describe(peer, asked.request)
                answered += 1
        return answered

    def _describe(self, peer: bytes, request: messages.Describe) -> None:
        try:
            answer = describe(request, self._queues, self._topics)
        except PenstockError as error:
            self._refuse(peer, request.request, error)
        except OSError as error:
            self._refuse(peer, request.request, unreadable(request.topic, error))
        else:
            self._socket.send_multipart((peer, encode(answer)))
