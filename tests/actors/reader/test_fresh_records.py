"""The newest records reach consumers before the queues have them: each once, in order, and safe."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock.actors.committer import Committer
from penstock.actors.flusher import Flusher
from penstock.actors.reader import Reader
from penstock.actors.reput import Reput
from penstock.actors.writer import Writer
from penstock.client.core.message import split_records
from penstock.shared.log.found_records import piece_of
from penstock.shared.log.reader import LogReader
from penstock.shared.process.doorbells import (
    AHEAD_BYTES,
    LATELY_MS,
    LAZIER_BYTES,
    LAZY_BYTES,
    LAZY_MS,
)
from penstock.shared.queue.fresh_records import FreshRecords
from penstock.shared.wire.messages import Pull, Pulled, decode_consume_answer, encode

ASYNC = {"flush_disk_type": "async"}


class Consumer:
    """A consumer by hand, of three queues."""

    def __init__(self, broker: Any, reader: Any) -> None:
        self.broker, self.reader = broker, reader
        self.socket = broker.client(broker.run.endpoints.consume)
        self.cursors = {0: 0, 1: 0, 2: 0}
        self.got: list[tuple[int, int, int]] = []
        self._request = 0
        self.direct = True

    def ask(self, wait_ms: int = 10_000) -> None:
        """Send a pull; the reader takes it."""
        self._request += 1
        pull = Pull(
            self._request, "orders", dict(self.cursors), 3, 1 << 20, wait_ms, None, self.direct
        )
        parts = self.broker.ask(self.reader, self.socket, encode(pull), answers=0)
        assert not parts
        while self._request not in self._held() and not self.socket.poll(0):
            self.reader.work()

    def _held(self) -> list[int]:
        return [held.pull.request for held in self.reader._plain.waiting()]

    def take(self) -> int:
        """The answer, if there is one; how many messages it has."""
        self.reader.work()
        if not self.socket.poll(10_000 if not self._held() else 0):
            return 0
        header, payload = self.socket.recv_multipart()
        answer = decode_consume_answer(header)
        assert isinstance(answer, Pulled), answer
        assert not answer.places, "what may be in the pool alone is in no file"
        for part in answer.slices:
            assert part.max_offset >= part.next_offset > self.cursors[part.queue_id] - 1
            self.cursors[part.queue_id] = part.next_offset
        found = split_records(memoryview(payload))
        self.got += [(m.queue_id, m.queue_offset, len(m.body)) for m in found]
        return len(found)


def _known(broker: Any, *actors: Any, work: Callable[..., None]) -> None:
    """Three queues that have had a message, so that they are in the table."""
    for queue_id in range(3):
        broker.append(queue_id=queue_id, size=1)
    broker.clock.advance(LAZY_MS)
    work(*actors)
    assert broker.positions["queued"] == broker.positions["wrote"]


def test_a_message_is_read_from_the_pool_before_it_is_committed(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(**ASYNC)
    committer, reput, reader = (broker.start(each) for each in (Committer, Reput, Reader))
    _known(broker, committer, reput, work=work)
    consumer = Consumer(broker, reader)
    consumer.ask()
    assert consumer.take() == 3
    consumer.ask()
    assert broker.positions["waiting_pulls"] == 1
    broker.append(queue_id=1, size=77)
    assert broker.positions["committed"] < broker.positions["wrote"]
    assert consumer.take() == 1 and consumer.got[-1] == (1, 1, 77)
    assert broker.positions["committed"] < broker.positions["wrote"]
    assert broker.positions["waiting_pulls"] == 0
    # and not a second time, when the queues have it
    consumer.ask()
    work(committer, reput)
    assert consumer.take() == 0
    broker.append(queue_id=1, size=78)
    assert consumer.take() == 1 and consumer.got[-1] == (1, 2, 78)


def test_what_comes_while_a_bell_for_much_is_on_its_way_is_read_from_the_logs_end_too(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(**ASYNC, mapped_file_size_commit_log_bytes=1 << 20)
    committer, reput, reader = (broker.start(each) for each in (Committer, Reput, Reader))
    _known(broker, committer, reput, work=work)
    consumer = Consumer(broker, reader)
    consumer.ask()
    assert consumer.take() == 3
    count = 5 * LAZY_BYTES // 2 // 10_000
    for _ in range(count):
        consumer.ask()
        broker.append(queue_id=1, size=10_000)
        assert consumer.take() == 1
    assert broker.positions["wrote"] - broker.positions["queued"] > 2 * LAZY_BYTES


def test_one_answer_has_the_newest_messages_of_all_its_queues(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(**ASYNC)
    committer, reput, reader = (broker.start(each) for each in (Committer, Reput, Reader))
    _known(broker, committer, reput, work=work)
    consumer = Consumer(broker, reader)
    consumer.ask()
    assert consumer.take() == 3
    for queue_id in range(3):
        broker.append(queue_id=queue_id, size=70 + queue_id)
    consumer.ask()
    assert consumer.take() == 3
    assert sorted(consumer.got[3:]) == [(queue_id, 1, 70 + queue_id) for queue_id in range(3)]


def test_a_pull_ahead_of_the_queues_is_not_looked_through_while_they_catch_up(
    pipeline: Callable[..., Any], work: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = pipeline(**ASYNC)
    committer, reput, reader = (broker.start(each) for each in (Committer, Reput, Reader))
    _known(broker, committer, reput, work=work)
    consumer = Consumer(broker, reader)
    consumer.ask()
    assert consumer.take() == 3
    broker.append(topic="others", queue_id=0)
    broker.clock.advance(LAZY_MS)
    work(committer)
    consumer.ask()
    broker.append(queue_id=1, size=9)
    assert consumer.take() == 1
    consumer.ask()
    looked = []
    answer = reader._plain._answer
    monkeypatch.setattr(
        reader._plain, "_answer", lambda *held, **how: looked.append(held) or answer(*held, **how)
    )
    before = broker.positions["queued"]
    work(reput)
    assert before < broker.positions["queued"] < broker.positions["wrote"]
    assert consumer.take() == 0 and not looked
    broker.append(queue_id=1, size=10)
    assert consumer.take() == 1 and looked


def test_where_flushing_is_sync_nothing_is_read_that_is_not_on_disk(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(flush_disk_type="sync")
    committer, reput, reader = (broker.start(each) for each in (Committer, Reput, Reader))
    for queue_id in range(3):
        broker.append(queue_id=queue_id)
    broker.clock.advance(LAZY_MS)
    work(committer)
    broker.positions.initialise("flushed", broker.positions["committed"])
    work(reput)
    consumer = Consumer(broker, reader)
    consumer.ask()
    assert consumer.take() == 3
    consumer.ask()
    broker.append(queue_id=2, size=5)
    broker.clock.advance(LAZY_MS)
    work(committer)
    assert broker.positions["committed"] == broker.positions["wrote"]
    assert consumer.take() == 0
    flusher = broker.start(Flusher)
    work(flusher)
    assert broker.positions["queued"] < broker.positions["flushed"]
    assert consumer.take() == 1 and consumer.got[-1] == (2, 1, 5)


def test_while_a_deleted_topics_queues_are_there_only_queues_count(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(**ASYNC)
    committer, reput, reader = (broker.start(each) for each in (Committer, Reput, Reader))
    _known(broker, committer, reput, work=work)
    consumer = Consumer(broker, reader)
    consumer.ask()
    consumer.take()
    consumer.ask()
    broker.positions.initialise("deleted_topics", 1)
    broker.append(queue_id=0, size=9)
    assert consumer.take() == 0
    broker.append(queue_id=2, size=9)
    assert consumer.take() == 0, "though it came after the reader knew of the deletion"
    broker.positions.initialise("forgotten_topics", 1)
    # what was stored before that was known is of the old topic, as far as the reader can tell
    assert consumer.take() == 0
    broker.append(queue_id=1, size=10)
    assert consumer.take() == 1 and consumer.got[-1] == (1, 1, 10)


def test_what_a_deleted_topic_had_not_yet_on_disk_is_not_given_when_it_is(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(flush_disk_type="sync")
    committer, flusher, reput, reader = (
        broker.start(each) for each in (Committer, Flusher, Reput, Reader)
    )
    _known(broker, committer, flusher, reput, work=work)
    consumer = Consumer(broker, reader)
    consumer.ask()
    assert consumer.take() == 3
    consumer.ask()
    broker.append(queue_id=0, size=9)  # of the old topic, and not on disk
    broker.positions.initialise("deleted_topics", 1)
    broker.positions.initialise("forgotten_topics", 1)
    assert consumer.take() == 0
    broker.clock.advance(LAZY_MS)
    work(committer, flusher)
    assert broker.positions["flushed"] == broker.positions["wrote"]
    assert consumer.take() == 0
    broker.append(queue_id=1, size=10)
    broker.clock.advance(LAZY_MS)
    work(committer, flusher)
    assert consumer.take() == 1 and consumer.got[-1] == (1, 1, 10)


@pytest.mark.parametrize("seed", range(6))
def test_each_message_comes_once_and_in_order_whatever_comes_first(
    pipeline: Callable[..., Any], work: Callable[..., None], seed: int
) -> None:
    chance = random.Random(seed)
    broker = pipeline(**ASYNC)
    committer, reput, reader = (broker.start(each) for each in (Committer, Reput, Reader))
    _known(broker, committer, reput, work=work)
    consumer = Consumer(broker, reader)
    consumer.direct = False
    sent = {queue_id: [1] for queue_id in range(3)}
    consumer.ask()

    def send() -> None:
        for _ in range(chance.choice((1, 1, 1, 4))):
            queue_id, size = chance.randrange(3), chance.choice((10, 10, 3000, 30_000))
            sent[queue_id].append(size)
            room = broker.positions["committed"] + (128 << 10) - broker.positions["wrote"]
            if room < size + 1000:
                commit()
            broker.append(queue_id=queue_id, size=size)

    def commit() -> None:
        broker.clock.advance(LAZY_MS)
        work(committer)

    def read() -> None:
        if consumer.take():
            consumer.ask()

    for _ in range(150):
        chance.choice((send, send, commit, lambda: work(reput), read, read))()
    commit()
    work(reput)
    while len(consumer.got) < sum(map(len, sent.values())):
        assert consumer.take()
        consumer.ask()
    assert not consumer.take()
    for queue_id, sizes in sent.items():
        mine = [(offset, size) for queue, offset, size in consumer.got if queue == queue_id]
        assert mine == list(enumerate(sizes))


@pytest.mark.parametrize("has_pool", [False, True], ids=["file", "pool"])
@pytest.mark.parametrize("segment_bytes", [64 << 10, 4 << 20], ids=["segments", "one segment"])
def test_what_is_kept_is_what_was_looked_at_since_the_queues_had_all_and_bounded(
    pipeline: Callable[..., Any],
    work: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    segment_bytes: int,
    has_pool: bool,
) -> None:
    most, burst, chance = 12, 14, random.Random(segment_bytes + has_pool)
    monkeypatch.setattr("penstock.shared.queue.fresh_records.MOST_ENTRIES", most)
    settings = {"mapped_file_size_commit_log_bytes": segment_bytes}
    broker = pipeline(**ASYNC, transient_store_pool_enable=has_pool, **settings)
    positions = broker.positions
    committer = broker.start(Committer) if has_pool else None
    log = LogReader(broker.config, broker.run, positions)
    fresh = FreshRecords(broker.config, positions, log, AHEAD_BYTES)
    fresh.look(0)
    assert not fresh.is_behind
    stored: list[tuple[int, int, int, int]] = []  # where it begins, queue, offset, size
    kept: set[tuple[int, int]] = set()
    wrote, queued, looked, reasons = 0, 0, 0, set()
    for _ in range(300):
        if committer is not None:
            broker.clock.advance(LAZY_MS)
            work(committer)
        size = chance.choice((10, 10, 10, 10, 3000, 15_000))
        for _ in range(chance.choice((0, 1, 1, 2, burst))):
            queue_id = chance.randrange(3)
            offset = sum(each[1] == queue_id for each in stored)
            stored.append((positions["wrote"], queue_id, offset, size))
            broker.append(queue_id=queue_id, size=size)
        has_grown, wrote = positions["wrote"] > wrote, positions["wrote"]
        assert fresh.is_behind == has_grown
        # the queues have all, or all but a few, or are where they were
        near = stored[-chance.randrange(1, 9) :][0][0] if stored else 0
        queued = max(queued, chance.choice((wrote, *[near] * 8, queued)))
        fresh.look(queued)
        assert not fresh.is_behind
        start = max(looked, queued)
        if wrote - queued > AHEAD_BYTES:
            kept, looked = set(), wrote
            reasons.add("far behind")
        elif start < wrote:
            if queued >= looked or len(kept) > most:
                reasons.add("the queues have all" if queued >= looked else "too many")
                kept = set()
            new = {(each[1], each[2]) for each in stored if each[0] >= start}
            kept, looked = kept | new, wrote
        found = set()
        for _, queue_id, offset, size in stored[-100:]:
            if (part := fresh.read("orders", queue_id, offset, 1)) is not None:
                found.add((queue_id, offset))
                records, after, end = part
                (message,) = split_records(piece_of([records]))
                assert (message.queue_id, message.queue_offset) == (queue_id, offset)
                assert len(message.body) == size and after == offset + 1 <= end
        assert len(found) <= most + burst
        # a look ends where a segment does, and what comes after that is read in the queues
        assert found == kept or segment_bytes < wrote
    assert reasons == {"far behind", "the queues have all", "too many"}
    log.close()


def test_a_written_message_wakes_the_reader_where_pulls_wait_and_the_committer_now_and_then(
    pipeline: Callable[..., Any],
    client: Callable[..., Any],
    bells: Callable[..., int],
) -> None:
    broker = pipeline(**ASYNC)
    hearers = ("reader", "gateway", "committer", "allocator")
    neighbours = {name: broker.stage(name) for name in hearers}
    writer = broker.start(Writer)
    broker.allocate(2)
    producer = client(broker, writer)
    producer.append([b"a"])
    assert bells(neighbours["committer"]) == 1
    assert bells(neighbours["reader"], 20) == bells(neighbours["gateway"], 0) == 0
    for pulls, name in (("waiting_pulls", "reader"), ("client_pulls", "gateway")):
        broker.positions.initialise(pulls, 1)
        producer.append([b"b"])
        assert bells(neighbours[name]) == 1
        assert [bells(neighbours[each], 20) for each in hearers] == [0] * 4
        broker.positions.initialise(pulls, 0)
    broker.clock.advance(LAZY_MS)
    producer.append([b"c"])
    assert bells(neighbours["committer"]) == 1
    # much at once does not wait, nor does who waits for the disk or for queues
    producer.append([bytes(10_000)] * (LAZY_BYTES // 10_000 + 1))
    assert bells(neighbours["committer"]) == 1
    producer.append([b"d"], ack="durable", answers=0)
    while not broker.positions["flush_wanted"]:
        writer.work()
    assert bells(neighbours["committer"]) == 1
    for name in ("filtered_pulls", "client_filtered_pulls"):
        broker.positions.initialise(name, 1)
        producer.append([b"e"])
        assert bells(neighbours["committer"]) == 1
        broker.positions.initialise(name, 0)
    # clients that only send wait for nothing
    broker.positions.initialise("client_count", 1)
    producer.append([b"f"])
    assert bells(neighbours["committer"], 20) == 0


def test_where_no_pull_has_waited_for_long_the_committer_is_woken_more_seldom(
    pipeline: Callable[..., Any],
    client: Callable[..., Any],
    bells: Callable[..., int],
) -> None:
    broker = pipeline(**ASYNC, transient_store_pool_enable=False)
    neighbours = {name: broker.stage(name) for name in ("reader", "committer", "allocator")}
    writer = broker.start(Writer)
    broker.allocate(10)
    producer = client(broker, writer)
    producer.append([b"a"])
    assert bells(neighbours["committer"]) == 1
    broker.clock.advance(LATELY_MS)
    producer.append([b"b"])
    assert bells(neighbours["committer"]) == 1
    broker.clock.advance(LAZY_MS - 1)
    producer.append([bytes(10_000)] * (LAZY_BYTES // 10_000 + 1))
    assert bells(neighbours["committer"], 20) == 0
    broker.clock.advance(1)
    producer.append([b"c"])
    assert bells(neighbours["committer"]) == 1
    for _ in range(LAZIER_BYTES // LAZY_BYTES):
        producer.append([bytes(10_000)] * (LAZY_BYTES // 10_000 + 1))
    assert bells(neighbours["committer"]) == 1
    # a pull that has waited a moment ago may be there again in the next
    for pulls in ("waiting_pulls", "client_pulls"):
        broker.clock.advance(LATELY_MS)
        broker.positions.initialise(pulls, 1)
        producer.append([b"d"])
        broker.positions.initialise(pulls, 0)
        assert bells(neighbours["committer"]) == 1
        producer.append([bytes(10_000)] * (LAZY_BYTES // 10_000 + 1))
        assert bells(neighbours["committer"]) == 1
