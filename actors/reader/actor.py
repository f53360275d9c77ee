"""The reader: answers pulls with ranges of the log, holds those that have to wait, finds by key.

Owns:     `answered_pulls`, `waiting_pulls`, `filtered_pulls`, `closed_consumers`; the consume
          endpoint; config/consumerFilter.json.
Reads:    `queued`; the queue table, consume queues, the log below it, and a little of the log
          beyond, with the pool: up to `flushed` (sync) or `wrote` (async); the index, `dispatched`;
          `topic_changes`, config/topics.json; `deleted_topics`, `forgotten_topics`.
Hears:    requests of consumers; doorbells of the reput, and of the writer or the flusher.
Notifies: nobody.
On crash: nothing is lost: consumers ask again from where they are.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.actors.reader.descriptions import describe, list_queues
from penstock.actors.reader.filter_turns import FilterTurns
from penstock.actors.reader.filtered_pulls import FilteredPull, FilteredPulls
from penstock.actors.reader.held_pulls import MAX_WAIT_MS, HeldPull, Outcome
from penstock.actors.reader.plain_pulls import PlainPulls
from penstock.actors.reader.topic_access import TopicAccess
from penstock.shared.errors import InvalidArgument, PenstockError, ProtocolError
from penstock.shared.index.query_turns import QueryTurns
from penstock.shared.layout import StorePaths
from penstock.shared.log.found_records import piece_of, places_of, ranges_of
from penstock.shared.loops.active import touch_pages
from penstock.shared.names import MAX_QUEUES_PER_TOPIC, check_topic
from penstock.shared.process.actor import Actor, Stage
from penstock.shared.process.doorbells import AHEAD_BYTES, QUIET_TICK_MS
from penstock.shared.process.reception import Reception
from penstock.shared.queue.fresh_records import FreshRecords
from penstock.shared.queue.reader import QueueReader
from penstock.shared.store.consumer_filters import ConsumerFilterFile
from penstock.shared.wire import messages
from penstock.shared.wire.messages import (
    MOST_CREDIT,
    ListQueues,
    Pull,
    Pulled,
    Queried,
    Query,
    QueryById,
    encode,
)
from penstock.shared.wire.sockets import serve
from penstock.shared.wire.unread_answers import UnreadAnswers

REQUESTS_AT_ONCE = 64
MAX_REQUEST_BYTES = 1 << 18
# A consumer makes one request at a time, and gives a pull credit for no more answers than this.
ANSWERS_WAITING = MOST_CREDIT
MAX_HELD = 20_000
# A pull for many queues is held only while its queues times the held pulls are fewer than this.
MAX_HELD_CURSORS = 400_000
# How long a request waits until messages acknowledged before it have reached their queues.
CATCH_UP_MS = 1000
# How soon to check again whether the index has what a query waits for.
SOON_MS = 1
# How long last answers may take to leave when the reader stops.
LINGER_MS = 500


class _Asked(NamedTuple):
    """A request about the queues of topics that waits until the reput has caught up."""

    request: messages.Describe | ListQueues
    position: int
    until_ms: int


class Reader(Actor):
    """Answers consumers: pulls at once or later, other requests when the reput has caught up."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._clock = stage.clock
        self._asked: dict[bytes, _Asked] = {}
        self._unread = UnreadAnswers()
        self._more = False
        self._queued = -1
        # the position below which everything that producers have an answer for lies
        self._acknowledged = "flushed" if stage.config.sync_flush else "wrote"

    def start(self) -> None:
        config, run = self._stage.config, self._stage.run
        self._queues = QueueReader(config, run, self._stage.positions)
        self._queries: QueryTurns[bytes] = QueryTurns(
            config, self._stage.positions, self._queues.log.view, self._clock.monotonic_ms
        )
        self._filtered = FilteredPulls(
            self._queues,
            config.max_filter_message_size_bytes,
            self._unread.room,
            self._clock.monotonic_ms,
        )
        log = self._queues.log
        self._fresh = FreshRecords(config, self._stage.positions, log, AHEAD_BYTES)
        self._plain = PlainPulls(self._queues, self._fresh, self._unread.room)
        paths = StorePaths(config.store)
        self._filter_file = ConsumerFilterFile(paths.consumer_filters, self._clock)
        self._filters = FilterTurns(self._filter_file, config.enable_property_filter)
        self._topics = TopicAccess(paths, self._stage.positions, self._queues)
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
        self._inlet.tend(self._unread.size_bytes)
        done = self._look_again()
        for _ in range(REQUESTS_AT_ONCE):
            parts = self._inlet.receive()
            if parts is None:
                break
            if parts:
                self._receive(parts)
            done += 1
        others = self._read_filter() + self._answer_queries()
        self._more = not self._inlet.drained or others > 0 or self._filtered.has_turns
        done += others
        self._tell_waiting()
        self._filter_file.save()
        if not done:
            self._queues.rest(self._clock.monotonic_ms())
        return done

    def _tell_waiting(self) -> None:
        """Publish how many pulls wait. The writer and the reput read that, and may do so just
        before a pull is counted: but then `has_more` sees what came into the log or the queues."""
        positions = self._stage.positions
        for name, pulls in (("waiting_pulls", self._plain), ("filtered_pulls", self._filtered)):
            if positions[name] != len(pulls):
                positions.publish_before_loads(name, len(pulls))

    def has_more(self) -> bool:
        # nobody notified us of a message that came just before a pull was counted
        waits = len(self._plain) or len(self._filtered)
        has_grown = waits and self._stage.positions["queued"] != self._queued
        return self._more or self._fresh.is_behind or bool(has_grown)

    def idle_ms(self) -> int:
        # nobody notifies us when index and queues have what these wait for
        if self._queries.waiting or self._asked:
            return SOON_MS
        due_ms = min(self._plain.due_ms, self._filtered.due_ms) - self._clock.monotonic_ms()
        return max(0, min(QUIET_TICK_MS, due_ms, self._inlet.idle_ms))

    def release_deleted(self) -> None:
        """Close deleted files. If ZeroMQ has been sending one for too long, stop it.

        All connections close for that, because ZeroMQ does not say which one sends the file.
        Consumers come back by themselves and ask again, and the one that did not read is told what
        has expired since.
        """
        self._queries.release_deleted()
        held_ms = self._queues.release_deleted(self._clock.monotonic_ms())
        if held_ms > self._stage.config.destroy_mapped_file_interval_forcibly_ms:
            self._stage.listen(self._socket, False)
            self._socket.close(linger=0)
            self._plain.clear()
            self._filtered.clear()
            self._asked.clear()
            self._filters.clear()
            self._serve()

    def drained(self) -> bool:
        return True

    def close(self) -> None:
        for pulls in (self._plain, self._filtered):
            for outcome in pulls.answer_all():
                self._send(outcome)
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
            if isinstance(request, Pull):
                check_topic(request.topic)
                self._pull(peer, request)
            else:
                topics = request.topics if isinstance(request, ListQueues) else (request.topic,)
                for topic in topics:
                    check_topic(topic)
                known = self._asked.get(peer)
                if known is None or known.request != request:  # a repeat keeps its time
                    position = self._stage.positions[self._acknowledged]
                    until_ms = self._clock.monotonic_ms() + CATCH_UP_MS
                    self._asked[peer] = _Asked(request, position, until_ms)
                self._describe_asked()
        except PenstockError as error:
            self._refuse(peer, request_id, error)

    def _refuse(self, peer: bytes, request: int, error: PenstockError) -> None:
        self._socket.send_multipart((peer, encode(messages.refusal(error, request))))

    def _answer_queries(self) -> int:
        """Work on queries for a moment; 0 if nothing can be done for them now."""
        ended = self._queries.work()
        for peer, request, answer in ended:
            if isinstance(answer, PenstockError):
                self._refuse(peer, request.request, answer)
            else:
                header = encode(Queried(request.request))
                self._socket.send_multipart((peer, header, b"".join(answer)))
        return len(ended) + self._queries.busy

    def _read_filter(self) -> int:
        """Read one of the long filters that wait: others are served before the next one."""
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
        self._refuse_changed()
        if (error := self._topics.error(pull)) is not None:
            raise error
        if not in_turn and self._filters.has_to_wait(peer, pull):
            return
        chosen = self._filters.filter_of(pull)
        now_ms = self._clock.monotonic_ms()
        until_ms = now_ms + min(pull.wait_ms, MAX_WAIT_MS)
        held_now = len(self._plain) + len(self._filtered)
        if held_now >= MAX_HELD:
            self._answer_oldest()
        elif held_now >= MAX_HELD_CURSORS // max(count, 1):
            until_ms = now_ms
        held = HeldPull(peer, pull, until_ms, self._stage.positions[self._acknowledged])
        # A consumer makes one request at a time, so a pull replaces the last one, of either kind.
        if chosen is not None:
            self._plain.drop(peer)
            self._filtered.put(FilteredPull(held, chosen, ends, dict(pull.cursors), {}))
            return
        self._filtered.drop(peer)
        outcome = self._plain.put(held, self._stage.positions["queued"], now_ms)
        if outcome is not None:
            self._send(outcome)

    def _answer_oldest(self) -> None:
        """Answer the pull that has waited longest: a crowd of waiting pulls keeps nobody out."""
        longest: PlainPulls | FilteredPulls = self._plain
        if len(self._filtered) > len(self._plain):
            longest = self._filtered
        self._send(longest.answer_oldest())

    def _look_again(self) -> int:
        """Answer held pulls for which there is something now, or whose time is over."""
        queued = self._queued = self._stage.positions["queued"]
        done = self._refuse_changed() + self._describe_asked()
        news = {topic for topic, _ in self._fresh.look(queued)}
        acknowledged, now_ms = self._stage.positions[self._acknowledged], self._clock.monotonic_ms()
        for outcome in self._plain.turn(queued, news, acknowledged, now_ms):
            self._send(outcome)
            done += 1
        for outcome in self._filtered.turn(queued):
            self._send(outcome)
        # a look that found nothing is work too: the next look must not wait for the tick
        return done + self._filtered.looks

    def _refuse_changed(self) -> int:
        """Refuse held pulls that may no longer be answered, because topics have changed."""
        if not self._topics.has_changed():
            return 0
        refused = 0
        for pulls in (self._plain, self._filtered):
            for held in pulls.waiting():
                error = self._topics.error(held.pull)
                if error is not None:
                    pulls.drop(held.peer)
                    self._refuse(held.peer, held.pull.request, error)
                    refused += 1
        return refused

    def _send(self, outcome: Outcome) -> None:
        """Answer a pull."""
        peer, pull, slices, records, unread, credit = outcome
        queue_ids = tuple(sorted(self._queues.queues(pull.topic)))
        places = places_of(records) if pull.direct else ()
        run_id = self._stage.run.run_id
        told = tuple(slices), queue_ids, run_id, places, tuple(unread), credit
        answer = Pulled(pull.request, *told)
        payload = ranges_of(records) if places else piece_of(records)
        if isinstance(payload, memoryview):
            touch_pages(payload)  # ZeroMQ would end the process for a page that cannot be read
        self._unread.send(self._socket, (peer, encode(answer), payload))
        if payload:
            positions = self._stage.positions
            positions.publish("answered_pulls", positions["answered_pulls"] + 1)

    def _describe_asked(self) -> int:
        """Answer requests about topics, once the queues have what was acknowledged before them."""
        queued = self._stage.positions["queued"]
        now_ms = self._clock.monotonic_ms() if self._asked else 0
        answered = 0
        for peer, asked in list(self._asked.items()):
            if queued >= asked.position or asked.until_ms <= now_ms:
                del self._asked[peer]
                self._describe(peer, asked.request)
                answered += 1
        return answered

    def _describe(self, peer: bytes, request: messages.Describe | ListQueues) -> None:
        self._refuse_changed()
        queued, store = self._stage.positions["queued"], self._stage.config.store
        known = self._queues, self._topics.topics
        answer: messages.Described | messages.QueueList
        try:
            if isinstance(request, ListQueues):
                answer = list_queues(request, *known)
            else:
                answer = describe(request, *known, store, queued)
        except PenstockError as error:
            self._refuse(peer, request.request, error)
        else:
            self._socket.send_multipart((peer, encode(answer)))
