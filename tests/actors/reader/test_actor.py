"""The reader: answers with what is there, holds who must wait, and survives whatever is asked."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import zmq

from penstock.actors.cleaner import Cleaner
from penstock.actors.reader import Reader
from penstock.actors.reader.actor import CATCH_UP_MS, SOON_MS
from penstock.actors.reader.held_pulls import MAX_WAIT_MS
from penstock.actors.reput import Reput
from penstock.client.core.message import split_records
from penstock.shared.formats.checkpoint import Checkpoint, encode_checkpoint
from penstock.shared.layout import segment_name
from penstock.shared.log.reader import REST_MS
from penstock.shared.loops.forms import RANGE
from penstock.shared.memory.queue_table import QueueKey
from penstock.shared.names import MAX_QUEUES_PER_TOPIC
from penstock.shared.queue.deleted_topics import (
    DeletedTopic,
    DeletedTopics,
    save_deleted_topics,
)
from penstock.shared.store.topics import TopicConfig, Topics, save_topics
from penstock.shared.wire import unread_answers
from penstock.shared.wire.messages import (
    Describe,
    Described,
    ListQueues,
    Pull,
    Pulled,
    Queried,
    Query,
    QueueList,
    QueueSlice,
    Refused,
    Subscription,
    decode_consume_answer,
    encode,
)
from penstock.shared.wire.queue_messages import MAX_LISTED_TOPICS

SEGMENT_BYTES = 64 << 10
MAPPED = {"transient_store_pool_enable": False}
# more than a topic may have
MORE_QUEUES = dict.fromkeys(range(MAX_QUEUES_PER_TOPIC + 1), 0)
# only a hang takes this long, whatever else the machine does
HANG_S = 60


class Client:
    """A consumer by hand."""

    def __init__(self, broker: Any, reader: Any) -> None:
        self.broker = broker
        self.reader = reader
        self.socket = broker.client(broker.run.endpoints.consume)
        self.request = 0

    def ask(self, *parts: bytes, answers: int = 1) -> list[tuple[Any, list[Any]]]:
        """(answer, messages) of each answer."""
        found = self.broker.ask(self.reader, self.socket, *parts, answers=answers)
        return [
            (decode_consume_answer(each[0]), list(split_records(memoryview(b"".join(each[1:])))))
            for each in found
        ]

    def read_direct(self, cursors: dict[int, int], direct: bool = True) -> tuple[Pulled, bytes]:
        """(answer, records); read here from the log's files when the answer leads to them."""
        pull = Pull(1, "orders", cursors, 1, 1 << 20, 0, None, direct)
        ((header, payload),) = self.broker.ask(self.reader, self.socket, encode(pull))
        answer = decode_consume_answer(header)
        assert isinstance(answer, Pulled)
        if not answer.places:
            return answer, payload
        assert answer.run_id == self.broker.run.run_id
        records, at = b"", 0
        for place in answer.places:
            raw = (self.broker.paths.commit_log / segment_name(place.base)).read_bytes()
            stop = at + place.ranges * RANGE.size
            for low, high in RANGE.iter_unpack(payload[at:stop]):
                records += raw[low - place.base : high - place.base]
            at = stop
        assert at == len(payload)
        return answer, records

    def pull(
        self, cursors: dict[int, int], *, wait_ms: int = 0, known: int = 1, answers: int = 1
    ) -> list[tuple[Any, list[Any]]]:
        self.request += 1
        pull = Pull(self.request, "orders", cursors, known, 1 << 20, wait_ms)
        return self.ask(encode(pull), answers=answers)

    def pull_until(self, cursors: dict[int, int], deadline: float) -> tuple[Any, list[Any]]:
        """Pull, and again each second, as consumers do: what is sent before the end of a connection
        is seen is lost with it."""
        pull, asked = encode(Pull(99, "orders", cursors, 1, 1 << 20, 0)), 0.0
        while not self.socket.poll(0):
            assert time.monotonic() < deadline
            if time.monotonic() > asked + 1 and self.socket.poll(0, zmq.POLLOUT):
                self.socket.send(pull)
                asked = time.monotonic()
            self.reader.work()
        ((answer, found),) = self.ask()
        return answer, found


@pytest.fixture
def running(pipeline: Callable[..., Any]) -> Callable[..., tuple[Any, Any, Client]]:
    """A broker whose messages come from the test: (broker, reader, client)."""

    def make(**settings: Any) -> tuple[Any, Any, Client]:
        broker = pipeline(**MAPPED, **settings)
        reader = broker.start(Reader)
        return broker, reader, Client(broker, reader)

    return make


def test_a_reader_that_has_not_read_all_requests_does_not_wait_for_more(
    running: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what it has left in the socket nobody wakes it."""
    monkeypatch.setattr("penstock.actors.reader.actor.REQUESTS_AT_ONCE", 1)
    _, reader, client = running()
    reader.work()
    assert not reader.has_more()
    deadline = time.monotonic() + HANG_S
    client.socket.send(encode(Pull(1, "orders", {0: 0}, 1, 1 << 20, 0)))
    while not reader.work():
        assert time.monotonic() < deadline
    assert reader.has_more()
    reader.work()
    assert not reader.has_more()


def _store(broker: Any, reput: Any, work: Callable[..., None], **record: Any) -> None:
    broker.append(**record)
    for name in ("committed", "flushed"):
        broker.positions.initialise(name, broker.positions["wrote"])
    work(reput)


def _held(broker: Any, client: Client, **pull: Any) -> None:
    """A pull that is held: it has arrived, and is not answered."""
    client.pull(answers=0, **pull)
    while not len(client.reader._plain):
        client.reader.work()
    assert not client.socket.poll(20)


def test_a_pull_gets_the_records_of_all_its_queues(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker, _, client = running()
    reput = broker.start(Reput)
    for number in range(6):
        _store(broker, reput, work, queue_id=number % 2, size=100 + number)
    ((answer, found),) = client.pull({0: 0, 1: 1})
    assert isinstance(answer, Pulled) and set(answer.queue_ids) == {0, 1}
    assert sorted((m.queue_id, m.queue_offset) for m in found) == [
        (0, 0), (0, 1), (0, 2), (1, 1), (1, 2),
    ]  # fmt: skip
    assert {part.queue_id: part.next_offset for part in answer.slices} == {0: 3, 1: 3}


def test_much_that_lies_together_is_left_in_the_log_for_who_reads_it_there(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker, _, client = running(mapped_file_size_commit_log_bytes=1 << 18)
    reput = broker.start(Reput)
    for number in range(40):  # in two segments
        _store(broker, reput, work, queue_id=number % 2, size=9000)
    cursors = {0: 0, 1: 14}
    answer, records = client.read_direct(cursors)
    by_socket, payload = client.read_direct(cursors, direct=False)
    assert len({place.base for place in answer.places}) == 2 and not by_socket.places
    assert answer.slices == by_socket.slices and records == payload
    assert len(split_records(records)) == len(records) // 9000 > 10


def test_little_and_what_is_scattered_goes_by_the_socket_to_everybody(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker, _, client = running(mapped_file_size_commit_log_bytes=1 << 18)
    reput = broker.start(Reput)
    for _ in range(6):
        _store(broker, reput, work, queue_id=2, size=9000)
    for number in range(60):  # between each two of a queue there is one of the other
        _store(broker, reput, work, queue_id=number % 2, size=3000)
    for cursors, least in (({2: 0}, 6 * 9000), ({0: 0}, 30 * 3000)):
        answer, records = client.read_direct(cursors)
        assert not answer.places
        assert sum(part.size for part in answer.slices) == len(records) >= least


def test_a_pull_that_finds_nothing_is_held_until_a_message_comes(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker, _, client = running()
    reput = broker.start(Reput)
    _store(broker, reput, work)
    _held(broker, client, cursors={0: 1}, wait_ms=10_000)
    _store(broker, reput, work, size=7)
    ((answer, found),) = client.ask(answers=1)
    assert [bytes(message.body) for message in found] == [bytes(7)]
    assert answer.slices[0].next_offset == 2


def test_answers_that_have_messages_are_counted_and_no_others(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker, _, client = running()
    _store(broker, broker.start(Reput), work)
    for cursor in (0, 1, 0, 1):
        client.pull({0: cursor})
    assert broker.positions["answered_pulls"] == 2


@pytest.mark.parametrize("kind", ["waiting_pulls", "filtered_pulls"])
def test_how_many_wait_is_told_to_the_writer_at_once(
    running: Callable[..., Any], work: Callable[..., None], kind: str
) -> None:
    """It looks there whether somebody has to be woken for a message."""
    broker, reader, client = running()
    reput = broker.start(Reput)
    _store(broker, reput, work)
    wanted = Subscription("TAG", "a", {}, "", 0) if kind == "filtered_pulls" else None
    pull = Pull(7, "orders", {0: 1}, 1, 1 << 20, 1000, wanted)
    client.ask(encode(pull), answers=0)
    deadline = time.monotonic() + 60
    while not broker.positions[kind]:
        assert time.monotonic() < deadline
        reader.work()
    told = {name: broker.positions[name] for name in ("waiting_pulls", "filtered_pulls")}
    assert told == {"waiting_pulls": 0, "filtered_pulls": 0} | {kind: 1}
    broker.clock.advance(1000)
    client.ask(answers=1)
    assert broker.positions[kind] == 0


def _waits(
    broker: Any, client: Client, wanted: Subscription | None = None, wait_ms: int = 1000
) -> None:
    """A pull is counted, and nothing is left to do for it."""
    reader, kind = client.reader, "filtered_pulls" if wanted else "waiting_pulls"
    client.ask(encode(Pull(7, "orders", {0: 1}, 1, 1 << 20, wait_ms, wanted)), answers=0)
    deadline = time.monotonic() + HANG_S
    while not broker.positions[kind] or reader.work() or reader.has_more():
        assert time.monotonic() < deadline
        reader.work()


@pytest.mark.parametrize("wanted", [None, Subscription("TAG", "a", {}, "", 0)])
def test_queues_that_grew_just_before_a_pull_was_counted_are_looked_at_again(
    running: Callable[..., Any], work: Callable[..., None], wanted: Subscription | None
) -> None:
    """The reput has seen nobody wait, and notified nobody."""
    broker, reader, client = running()
    reput = broker.start(Reput)
    _store(broker, reput, work)
    _waits(broker, client, wanted)
    broker.positions.initialise("queued", broker.positions["queued"] + 1)
    assert reader.has_more()
    reader.work()
    assert not reader.has_more()


def test_so_is_the_log_where_the_writer_has_seen_nobody_wait(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker, reader, client = running()
    _store(broker, broker.start(Reput), work)
    _waits(broker, client)
    broker.append(size=7)
    for name in ("committed", "flushed"):
        broker.positions.initialise(name, broker.positions["wrote"])
    assert reader.has_more()
    ((_, found),) = client.ask(answers=1)
    assert [bytes(message.body) for message in found] == [bytes(7)]
    assert not reader.has_more()


def test_a_pull_goes_by_the_topics_as_they_are_when_it_comes(
    running: Callable[..., Any],
) -> None:
    """The topic gets its second queue after the reader has begun its turn."""
    broker, reader, client = running()
    topics = Topics()

    def change(queues: int) -> None:
        topics.put("orders", queues, queues)
        save_topics(broker.paths.topics, topics)
        broker.positions.initialise("topic_changes", queues)

    change(1)
    reader.work()
    receive = reader._inlet.receive

    def receive_before() -> Any:
        parts = receive()
        if parts:
            change(2)
        return parts

    reader._inlet.receive = receive_before
    ((answer, _),) = client.pull({1: 0})
    assert isinstance(answer, Pulled)


@pytest.mark.parametrize("wanted", [None, Subscription("TAG", "a", {}, "", 0)])
def test_a_pull_is_held_for_half_a_minute_at_most(
    running: Callable[..., Any], work: Callable[..., None], wanted: Subscription | None
) -> None:
    broker, reader, client = running()
    _store(broker, broker.start(Reput), work)
    _waits(broker, client, wanted, wait_ms=1 << 40)
    broker.clock.advance(MAX_WAIT_MS - 1)
    assert not reader.work() and reader.idle_ms() == 1
    broker.clock.advance(1)
    ((answer, found),) = client.ask()
    assert isinstance(answer, Pulled) and found == []


@pytest.mark.parametrize("wanted", [None, Subscription("TAG", "a", {}, "", 0)])
def test_a_reader_sleeps_until_the_time_of_a_pull_is_over(
    running: Callable[..., Any], work: Callable[..., None], wanted: Subscription | None
) -> None:
    broker, reader, client = running()
    _store(broker, broker.start(Reput), work)
    _waits(broker, client, wanted)
    assert reader.idle_ms() == 1000
    waiting = reader._filtered if wanted else reader._plain
    later = encode(Pull(8, "orders", {0: 1}, 1, 1 << 20, 5000, wanted))
    Client(broker, reader).ask(later, answers=0)
    deadline = time.monotonic() + HANG_S
    while len(waiting) < 2:
        assert time.monotonic() < deadline
        reader.work()
    broker.clock.advance(970)
    assert reader.idle_ms() == 30, "to the first of them"


def test_a_query_that_waits_for_the_index_is_looked_at_again_soon(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker, reader, client = running()
    _store(broker, broker.start(Reput), work)
    broker.append()
    broker.positions.initialise("flushed", broker.positions["wrote"])
    client.ask(encode(Query(1, "orders", "k", 1, 0, 1, False)), answers=0)
    deadline = time.monotonic() + HANG_S
    while not reader._queries.waiting:
        assert time.monotonic() < deadline
        reader.work()
    assert reader.idle_ms() == SOON_MS, "nobody says when it has got there"
    broker.clock.advance(CATCH_UP_MS)
    ((answer, found),) = client.ask()
    assert isinstance(answer, Queried) and found == []


def test_a_pull_that_has_waited_long_enough_is_answered_empty(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker, reader, client = running()
    _store(broker, broker.start(Reput), work)
    _held(broker, client, cursors={0: 1}, wait_ms=500)
    broker.clock.advance(499)
    reader.work()
    assert not client.socket.poll(20)
    broker.clock.advance(1)
    ((answer, found),) = client.ask(answers=1)
    assert found == [] and answer.slices == ()


def test_a_repeated_pull_takes_the_place_of_the_one_before(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    """A consumer that hears nothing asks again; it is not to get two answers."""
    broker, reader, client = running()
    reput = broker.start(Reput)
    _store(broker, reput, work)
    _held(broker, client, cursors={0: 1}, wait_ms=10_000)
    client.pull({0: 1}, wait_ms=10_000, answers=0)
    while next(iter(reader._plain._held.values()))[0].pull.request != client.request:
        reader.work()
    _store(broker, reput, work)
    ((answer, found),) = client.ask(answers=1)
    assert answer.request == client.request and len(found) == 1
    reader.work()
    assert not client.socket.poll(50)


@pytest.mark.parametrize(("number", "is_answered"), [(7, True), (8, False)])
def test_a_repeated_pull_waits_no_longer_and_another_one_does(
    running: Callable[..., Any], work: Callable[..., None], number: int, is_answered: bool
) -> None:
    broker, reader, client = running()
    _store(broker, broker.start(Reput), work)
    _waits(broker, client)
    broker.clock.advance(600)
    reader.work()
    client.socket.send(encode(Pull(number, "orders", {0: 1}, 1, 1 << 20, 1000)))
    deadline = time.monotonic() + HANG_S
    while not reader.work():
        assert time.monotonic() < deadline
    broker.clock.advance(400)
    assert bool(reader.work()) is is_answered
    broker.clock.advance(600)
    ((answer, _),) = client.ask()
    assert isinstance(answer, Pulled) and answer.request == number


@pytest.mark.parametrize("wanted", [None, Subscription("TAG", "a", {}, "", 0)])
def test_a_reader_that_closes_answers_pulls_of_both_kinds(
    running: Callable[..., Any], work: Callable[..., None], wanted: Subscription | None
) -> None:
    broker, reader, client = running()
    # not `immediate`: see the test of one that ends while a topic is asked for
    client.socket = broker.client("")
    client.socket.connect(broker.run.endpoints.consume)
    _store(broker, broker.start(Reput), work)
    _waits(broker, client, wanted)
    reader.close()
    assert client.socket.poll(1000 * HANG_S)
    answer = decode_consume_answer(client.socket.recv_multipart()[0])
    assert isinstance(answer, Pulled) and answer.request == 7


@pytest.mark.parametrize("wanted", [None, Subscription("TAG", "a", {}, "", 0)])
def test_a_held_pull_of_a_queue_that_goes_is_refused_and_held_no_more(
    running: Callable[..., Any], wanted: Subscription | None
) -> None:
    broker, reader, client = running()
    topics, deadline = Topics(), time.monotonic() + HANG_S
    for change, queues in enumerate((2, 1), 1):
        topics.set("orders", TopicConfig(queues, queues), 1)
        save_topics(broker.paths.topics, topics)
        broker.positions.initialise("topic_changes", change)
        if queues == 2:
            pull = Pull(7, "orders", {1: 0}, 2, 1 << 20, 1000, wanted)
            client.ask(encode(pull), answers=0)
            while not (len(reader._plain) or len(reader._filtered)):
                assert time.monotonic() < deadline
                reader.work()
    ((answer, _),) = client.ask()
    assert isinstance(answer, Refused) and answer.status == "QUEUE_NOT_EXIST"
    assert (len(reader._plain), len(reader._filtered)) == (0, 0)


@pytest.mark.parametrize(
    ("topic", "cursors", "status"),
    [
        ("orders", {0: 0, 1: 0}, None),
        ("orders", {0: 0, 2: 0}, "QUEUE_NOT_EXIST"),
        ("gone", {0: 0, 1: 0}, None),
        ("gone", {0: 0, 1: 5}, "TOPIC_NOT_EXIST"),
    ],
)
def test_a_pull_may_name_the_queues_that_its_topic_has(
    running: Callable[..., Any], topic: str, cursors: dict[int, int], status: str | None
) -> None:
    """Of a deleted topic, one that has read nothing waits for it to be made again."""
    broker, _, client = running()
    topics = Topics()
    topics.set("orders", TopicConfig(2, 2), 1)
    save_topics(broker.paths.topics, topics)
    row = DeletedTopic(number=1, topic="gone", log_end=1, at_ms=1, is_done=True)
    save_deleted_topics(broker.paths.deleted_topics, DeletedTopics(1, (row,)))
    broker.positions.initialise("topic_changes", 1)
    ((answer, _),) = client.ask(encode(Pull(7, topic, cursors, 2, 1 << 20, 0)))
    assert (answer.status if isinstance(answer, Refused) else None) == status


@pytest.mark.parametrize("kinds", [(False, True), (True, False)])
def test_a_pull_takes_the_place_of_one_of_the_other_kind(
    running: Callable[..., Any], work: Callable[..., None], kinds: tuple[bool, bool]
) -> None:
    broker, reader, client = running()
    _store(broker, broker.start(Reput), work)
    deadline = time.monotonic() + HANG_S
    for number, filtered in enumerate(kinds):
        wanted = Subscription("TAG", "a", {}, "", 0) if filtered else None
        client.ask(encode(Pull(number, "orders", {0: 1}, 1, 1 << 20, 1000, wanted)), answers=0)
        while (len(reader._plain), len(reader._filtered)) != (not filtered, filtered):
            assert time.monotonic() < deadline
            reader.work()
    broker.clock.advance(1000)
    ((answer, _),) = client.ask()
    assert isinstance(answer, Pulled) and answer.request == 1


def test_a_topic_that_gets_another_queue_is_news(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker, _, client = running()
    reput = broker.start(Reput)
    _store(broker, reput, work)
    _held(broker, client, cursors={0: 1}, wait_ms=10_000)
    _store(broker, reput, work, queue_id=3)
    ((answer, found),) = client.ask(answers=1)
    assert answer.queue_ids == (0, 3) and found == []


def test_an_offset_that_is_still_to_come_waits(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker, _, client = running()
    reput = broker.start(Reput)
    _store(broker, reput, work)
    ((answer, found),) = client.pull({0: 1_000_000})
    assert found == [] and isinstance(answer, Pulled)


@pytest.mark.parametrize("looked_at", ["queues", "range"])
@pytest.mark.parametrize(("filtered", "look_number"), [(False, 1), (True, 1), (True, 2)])
def test_a_queue_that_grows_while_a_pull_is_looked_at_takes_no_consumer_back(
    running: Callable[..., Any],
    work: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    looked_at: str,
    filtered: bool,
    look_number: int,
) -> None:
    """Whether the queues are complete is looked at before their ends are, never after.

    Whoever looks through them for a filter looks twice.
    """
    broker, reader, client = running()
    reput = broker.start(Reput)
    if looked_at == "range":
        _store(broker, reput, work)
    _store(broker, reput, lambda _: None, count=3)
    cursor = 3 + (looked_at == "range")
    look, looks = getattr(reader._queues, looked_at), count(1)

    def then_the_reput_goes_on(asked: Any) -> Any:
        found = look(asked)
        found = dict(found) if isinstance(found, dict) else found
        if next(looks) == look_number:
            work(reput)
        return found

    monkeypatch.setattr(reader._queues, looked_at, then_the_reput_goes_on)
    subscription = Subscription("TAG", "a || b", {}, "", 0) if filtered else None
    pull = Pull(1, "orders", {0: cursor}, 1, 1 << 20, 0, subscription)
    ((answer, found),) = client.ask(encode(pull))
    assert broker.positions["queued"] == broker.positions["wrote"], "it did go on"
    assert isinstance(answer, Pulled) and found == []
    assert [part for part in answer.slices if part.next_offset != cursor] == []


def test_a_successor_answers_from_where_the_consumer_is(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    """It has no memory to lose: the consumer names its place with every pull."""
    broker, reader, client = running()
    reput = broker.start(Reput)
    for _ in range(3):
        _store(broker, reput, work)
    client.pull({0: 0})
    broker.crash(reader)
    _store(broker, reput, work)
    client.reader = broker.start(Reader)
    _, found = client.pull_until({0: 3}, time.monotonic() + 60)
    assert [message.queue_offset for message in found] == [3]


def test_a_reader_that_stops_answers_those_it_holds(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker, reader, client = running()
    _store(broker, broker.start(Reput), work)
    _held(broker, client, cursors={0: 1}, wait_ms=10_000)
    assert reader.drained()
    for outcome in reader._plain.answer_all():
        reader._send(outcome)
    ((answer, found),) = client.ask(answers=1)
    assert isinstance(answer, Pulled) and found == []


def test_a_topic_is_described_with_the_offsets_of_a_time(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker, _, client = running()
    reput = broker.start(Reput)
    times = []
    for _ in range(5):
        broker.clock.advance(1000)
        times.append(broker.clock.now_ms())
        _store(broker, reput, work)
    for number, at_ms in enumerate(times):
        ((answer, _),) = client.ask(encode(Describe(7, "orders", at_ms)))
        assert isinstance(answer, Described) and answer.exists
        (queue,) = answer.queues
        assert (queue.min_offset, queue.max_offset, queue.at_offset) == (0, 5, number)


def test_who_asks_for_a_topic_that_is_not_there_is_told_one_that_is_named_alike(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker, _, client = running()
    _store(broker, broker.start(Reput), work)
    for topic, exists, hinted in (("orders", True, False), ("oders", False, True)):
        ((answer, _),) = client.ask(encode(Describe(7, topic, -1)))
        assert isinstance(answer, Described) and answer.exists == exists
        assert ("orders" in answer.hint) == hinted and bool(answer.hint) == hinted
        assert len(answer.queues) == exists


def test_the_queues_of_several_topics_are_those_of_each(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker, _, client = running()
    _store(broker, broker.start(Reput), work)
    ((alone, _),) = client.ask(encode(Describe(7, "orders", -1)))
    ((answer, _),) = client.ask(encode(ListQueues(8, ("orders", "oders", "orders"))))
    assert answer == QueueList(8, (alone.queues, (), alone.queues)) and alone.queues


def test_files_of_a_queue_that_cannot_be_read_are_told_to_who_asks_and_end_nobody(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker, _, client = running()
    _store(broker, broker.start(Reput), work)
    file = broker.paths.queue("orders", 0) / segment_name(0)
    file.unlink()
    file.mkdir()
    ((answer, _),) = client.ask(encode(Describe(7, "orders", 1)))
    assert isinstance(answer, Refused) and "topic orders" in answer.value
    ((answer, _),) = client.ask(encode(Describe(8, "others", 1)))
    assert answer == Described(8, "others", False, (), answer.hint, answer.queued)


@pytest.mark.parametrize(("asked", "listed"), [((600, 423, 1), 3), ((600, 424, 1), 2), ((9, 2), 2)])
def test_a_list_of_queues_ends_with_the_topic_that_makes_it_as_long_as_a_topics_may_be(
    running: Callable[..., Any], asked: tuple[int, ...], listed: int
) -> None:
    broker, _, client = running()
    topics = Topics()
    for number, queues in enumerate(asked):
        topics.put(f"t{number}", queues, 1)
    save_topics(broker.paths.topics, topics)
    broker.positions.initialise("topic_changes", 1)
    names = tuple(f"t{number}" for number in range(len(asked)))
    ((answer, _),) = client.ask(encode(ListQueues(7, names)))
    assert [len(each) for each in answer.topics] == list(asked[:listed])


@pytest.mark.parametrize("question", [Describe(7, "orders", -1), ListQueues(7, ("orders",))])
def test_a_question_that_is_asked_again_and_again_is_answered_in_time(
    running: Callable[..., Any], work: Callable[..., None], question: Describe | ListQueues
) -> None:
    """The reput is stuck, say for a full disk: who asks learns of what is there."""
    broker, reader, client = running()
    _store(broker, broker.start(Reput), work)
    broker.append()
    broker.positions.initialise("flushed", broker.positions["wrote"])
    for _ in range(CATCH_UP_MS // 200):
        client.ask(encode(question), answers=0)
        deadline = time.monotonic() + HANG_S
        while not reader._asked:  # it may be on its way yet
            assert time.monotonic() < deadline
            reader.work()
        reader.work()
        assert reader.idle_ms() == SOON_MS, "nobody says when the queues have got there"
        assert not client.socket.poll(20)
        broker.clock.advance(200)
    ((answer, _),) = client.ask(encode(question))
    queues = answer.topics[0] if isinstance(answer, QueueList) else answer.queues
    assert queues[0].max_offset == 1


def test_another_question_takes_the_place_of_one_that_waits(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker, reader, client = running()
    _store(broker, broker.start(Reput), work)
    broker.append()
    broker.positions.initialise("flushed", broker.positions["wrote"])
    deadline = time.monotonic() + HANG_S
    for number in (1, 2):
        client.ask(encode(Describe(number, "orders", -1)), answers=0)
        while [each.request.request for each in reader._asked.values()] != [number]:
            assert time.monotonic() < deadline
            reader.work()
    broker.clock.advance(CATCH_UP_MS)
    ((answer, _),) = client.ask()
    assert isinstance(answer, Described) and answer.request == 2
    assert not client.socket.poll(20)


def test_a_reader_that_ends_tells_those_that_ask_for_a_topic_what_is_there(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    """As in the test above they wait for the reput, and then for a reader that has gone."""
    broker, reader, client = running()
    # As clients have theirs, `immediate`, ZeroMQ may drop an answer when its connection ends before
    # it was read: they ask again.
    client.socket = broker.client("")
    client.socket.connect(broker.run.endpoints.consume)
    _store(broker, broker.start(Reput), work)
    broker.append()
    broker.positions.initialise("flushed", broker.positions["wrote"])
    client.ask(encode(Describe(7, "orders", -1)), answers=0)
    deadline = time.monotonic() + HANG_S
    while not reader._asked:  # it may be on its way yet
        assert time.monotonic() < deadline
        reader.work()
    assert not client.socket.poll(20)
    reader.close()
    assert client.socket.poll(1000 * HANG_S)
    answer = decode_consume_answer(client.socket.recv_multipart()[0])
    assert isinstance(answer, Described) and answer.queues[0].max_offset == 1


@pytest.mark.parametrize(
    "parts",
    [
        (b"",),
        (b"\xc1garbage",),
        (b"", b"", b""),
        (encode(Pull(1, "orders", {0: 0}, 1, 1 << 20, 0)), b"more"),
        (encode(Pull(1, "no such/topic", {}, 0, 1, 0)),),
        (encode(Pull(1, "orders", {-1: 0}, 0, 1, 0)),),
        (encode(Pull(1, "orders", {0: -1}, 0, 1, 0)),),
        (encode(Describe(1, "", 0)),),
        (encode(ListQueues(1, ())),),
        (encode(ListQueues(1, ("orders",) * (MAX_LISTED_TOPICS + 1))),),
        (encode(ListQueues(1, ("orders", "no such/topic"))),),
    ],
)
def test_what_is_no_request_is_refused_and_harms_nobody(
    running: Callable[..., Any], work: Callable[..., None], parts: tuple[bytes, ...]
) -> None:
    broker, _, client = running()
    _store(broker, broker.start(Reput), work)
    ((answer, _),) = client.ask(*parts)
    assert isinstance(answer, Refused), answer
    ((_, found),) = client.pull({0: 0})
    assert len(found) == 1


@pytest.mark.parametrize(
    "request_",
    [
        Pull(7, "orders", {-1: 0}, 0, 1, 0),
        Pull(7, "no such/topic", {}, 0, 1, 0),
        Pull(7, "orders", MORE_QUEUES, 0, 1, 0),
        Pull(7, "orders", {0: 0}, 0, 1, 0, Subscription("TAG", "a", MORE_QUEUES, "", 0)),
        Describe(7, "", 0),
        Query(7, "orders", "", 1, 0, 1, False),
    ],
)
def test_a_refusal_says_which_request_it_is_of(running: Callable[..., Any], request_: Any) -> None:
    _, _, client = running()
    ((answer, _),) = client.ask(encode(request_))
    assert isinstance(answer, Refused) and answer.request == 7


def test_a_pull_may_name_no_queue(running: Callable[..., Any]) -> None:
    """A consumer whose group has given it none hears of new queues by it."""
    _, _, client = running()
    ((answer, found),) = client.pull({}, known=0)
    assert isinstance(answer, Pulled) and found == []


def test_a_pull_may_name_as_many_queues_as_a_topic_may_have(
    running: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker, _, client = running()
    _store(broker, broker.start(Reput), work)
    ((answer, found),) = client.pull(dict.fromkeys(range(MAX_QUEUES_PER_TOPIC), 0))
    assert isinstance(answer, Pulled) and len(found) == 1


# --- messages that expire ---


def _expiring(pipeline: Callable[..., Any], work: Callable[..., None], **settings: Any) -> Any:
    """A reader and a cleaner on a log of three segments; all but the last may go."""
    broker = pipeline(**MAPPED, file_reserved_time_h=0, clean_resource_interval_ms=10, **settings)
    reader, reput = broker.start(Reader), broker.start(Reput)
    while broker.positions["wrote"] < 2 * SEGMENT_BYTES + 9000:
        _store(broker, reput, work, size=3000)
    page = encode_checkpoint(Checkpoint(1, 1, confirm_offset=broker.positions["dispatched_record"]))
    broker.paths.checkpoint.write_bytes(page)
    broker.stop(reput)  # the reader alone has the log open
    broker._end.close()
    return broker, reader, Client(broker, reader)


def _expire(broker: Any, work: Callable[..., None]) -> int:
    """Have a cleaner delete what may go; the queue's first offset then."""
    for path in broker.paths.commit_log.iterdir():
        os.utime(path, (0, 0))  # the test's clock stands before today
    broker.run.clean_request.touch()
    cleaner = broker.start(Cleaner)
    for _ in range(300):
        work(cleaner)
        broker.clock.advance(10)
    assert broker.positions["log_start"] == 2 * SEGMENT_BYTES
    low: int = broker.queues()[QueueKey("orders", 0)][0]
    return low


def _mapped(broker: Any) -> list[str]:
    """Deleted log segments of this broker that this process still has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    place = f"{broker.paths.commit_log}/"
    return [line for line in lines if place in line and line.endswith("(deleted)")]


def _resident_kib(broker: Any) -> int:
    """How much of the log's files counts as memory of this process."""
    found, is_log = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            is_log = f"{broker.paths.commit_log}/" in line
        elif is_log and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


def test_a_reader_that_has_nothing_to_do_for_a_while_gives_the_logs_pages_back(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    """And not one that answers pulls all the time: it would read them again and again."""
    broker, reader, client = _expiring(pipeline, work)
    broker.clock.advance(1)
    for _ in range(2):
        broker.clock.advance(REST_MS)
        client.pull({0: 0})
        assert _resident_kib(broker) > 0
    work(reader)
    broker.clock.advance(REST_MS)
    work(reader)
    assert _resident_kib(broker) > 0
    broker.clock.advance(1)
    work(reader)
    assert _resident_kib(broker) == 0


def test_a_pull_of_what_is_gone_is_told_where_the_queue_begins(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker, _, client = _expiring(pipeline, work)
    low = _expire(broker, work)
    high = broker.queues()[QueueKey("orders", 0)][1]
    ((answer, found),) = client.pull({0: low - 1})
    assert found == []
    assert answer.slices == (QueueSlice(0, low - 1, low - 1, low, high, 0),)
    ((_, found),) = client.pull({0: low})
    assert found[0].queue_offset == low


def test_a_file_that_goes_while_a_pull_is_answered_is_no_error(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    """The reader has looked at the queue's range, and then the cleaner comes."""
    broker, reader, client = _expiring(pipeline, work)
    ranges = reader._queues.range
    moves = []

    def range_before(slot: int) -> tuple[int, int]:
        found: tuple[int, int] = ranges(slot)
        if not moves:
            moves.append(_expire(broker, work))
        return found

    reader._queues.range = range_before
    ((answer, found),) = client.pull({0: 0})
    assert isinstance(answer, Pulled) and found == []
    assert answer.slices[0].min_offset == moves[0] > 0


def test_a_file_that_goes_while_a_time_is_looked_for_is_no_error(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker, reader, client = _expiring(pipeline, work)
    ranges = reader._queues.range
    looks = []

    def range_before(slot: int) -> tuple[int, int]:
        found: tuple[int, int] = ranges(slot)
        looks.append(_expire(broker, work) if len(looks) == 1 else 0)
        return found

    reader._queues.range = range_before
    ((answer, _),) = client.ask(encode(Describe(1, "orders", 1)))
    assert isinstance(answer, Described)
    assert answer.queues[0].at_offset == looks[1] > 0


def test_a_deleted_segment_is_let_go_of_when_it_is_sent(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker, reader, client = _expiring(pipeline, work)
    ((_, found),) = client.pull({0: 0})
    assert found[0].queue_offset == 0
    _expire(broker, work)
    assert _mapped(broker), "the reader has it still"
    deadline = time.monotonic() + HANG_S
    while _mapped(broker):  # ZeroMQ gives a frame back when its own thread comes to it
        reader.release_deleted()
        assert time.monotonic() < deadline
    assert reader._queues.range(0)[0] > 0


def test_who_does_not_read_a_deleted_segment_loses_the_connection_and_nobody_a_byte(
    pipeline: Callable[..., Any], work: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, reader, client = _expiring(pipeline, work, destroy_mapped_file_interval_forcibly_ms=500)
    reader._socket.copy_threshold = 1000  # this log's segments are shorter than the usual one
    monkeypatch.setattr(unread_answers, "SHORT_ANSWER_BYTES", 1000)
    stuck = broker.client("")
    stuck.rcvhwm, stuck.rcvbuf = 1, 4096
    stuck.connect(broker.run.endpoints.consume)
    pull = encode(Pull(1, "orders", {0: 0}, 1, 40_000, 0))
    deadline = time.monotonic() + 60
    for _ in range(400):  # answers of 16 MB, more than sockets and kernel hold
        stuck.send(pull)
    answered = 0
    while answered < 400:
        answered += reader.work()
        assert time.monotonic() < deadline
    _expire(broker, work)
    # connections that close with it: one waits for a message, one for a match, one for the reput,
    # and one for its filter to be read
    end = {0: reader._queues.range(0)[1]}
    wanted = Subscription("TAG", "a", {}, "", 0)
    broker.positions.initialise("flushed", broker.positions["flushed"] + 1)
    broker.positions.initialise("wrote", broker.positions["wrote"] + 1)
    for asked in (
        Pull(1, "orders", end, 1, 1 << 20, 20_000),
        Pull(1, "orders", end, 1, 1 << 20, 20_000, wanted),
        Describe(1, "orders", -1),
    ):
        Client(broker, reader).ask(encode(asked), answers=0)
    while not (len(reader._plain) and len(reader._filtered) and reader._asked):
        reader.work()
        assert time.monotonic() < deadline
    long = Subscription("SQL92", " OR ".join(["a = 1"] * 100), {}, "", 0)
    assert reader._filters.has_to_wait(b"one", Pull(1, "orders", end, 1, 1, 0, long))
    stage = broker.stage_of(reader)
    stage.sleep(0)
    before = reader._socket
    reader.release_deleted()
    broker.clock.advance(500)
    reader.release_deleted()
    assert _mapped(broker) and reader._socket is before, "not yet"
    broker.clock.advance(1)
    while _mapped(broker):
        reader.release_deleted()
        assert time.monotonic() < deadline
    assert (len(reader._plain), len(reader._filtered), reader._asked) == (0, 0, {})
    assert reader._filters.next() is None, "nothing waits for whom nobody can answer"
    stage.sleep(0)  # it listens to the new socket alone: the old one is closed
    answer, _ = client.pull_until({0: 0}, deadline)
    assert answer.slices[0].min_offset > 0, "the others have come back"


@pytest.mark.parametrize("first", [1, 1_000_000])
def test_no_queue_of_a_pull_starves_another(
    running: Callable[..., Any], work: Callable[..., None], first: int
) -> None:
    """Each queue has more than an answer may hold, and each is first in its turn."""
    broker, _, client = running(mapped_file_size_commit_log_bytes=1 << 18)
    reput = broker.start(Reput)
    for number in range(30):
        _store(broker, reput, work, queue_id=number % 3, size=2000)
    cursors, served = {0: 0, 1: 0, 2: 0}, []
    for request in range(first, first + 6):
        pull = encode(Pull(request, "orders", cursors, 3, 4000, 0))
        ((answer, found),) = client.ask(pull)
        served.append({message.queue_id for message in found})
        cursors |= {part.queue_id: part.next_offset for part in answer.slices if part.size}
    assert set().union(*served[:3]) == set().union(*served[3:]) == {0, 1, 2}
    assert all(len(queues) < 3 for queues in served), "an answer has no room for all"


def test_a_pull_for_many_queues_waits_only_while_all_together_are_few(
    running: Callable[..., tuple[Any, Any, Client]],
    work: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, reader, first = running()
    _store(broker, broker.start(Reput), work)
    monkeypatch.setattr(f"{Reader.__module__}.MAX_HELD_CURSORS", 20)
    pull = encode(Pull(1, "orders", {0: 1, **dict.fromkeys(range(1, 10), 0)}, 1, 1000, 10_000))
    clients = [first, Client(broker, reader), Client(broker, reader)]
    for number, each in enumerate(clients[:2], 1):
        each.ask(pull, answers=0)
        while len(reader._plain) < number:
            reader.work()
    assert broker.ask(reader, clients[2].socket, pull), "ten more are too many"
    assert len(reader._plain) == 2
    assert not any(each.socket.poll(0) for each in clients[:2])


@pytest.mark.parametrize("filtered", [False, True])
def test_where_too_many_wait_the_one_that_has_waited_longest_asks_again(
    running: Callable[..., tuple[Any, Any, Client]],
    work: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    filtered: bool,
) -> None:
    broker, reader, first = running()
    _store(broker, broker.start(Reput), work)
    monkeypatch.setattr(f"{Reader.__module__}.MAX_HELD", 3)
    wanted = Subscription("TAG", "a", {}, "", 0) if filtered else None
    pull = encode(Pull(1, "orders", {0: 1}, 1, 1000, 10_000, wanted))
    waiting: Any = reader._filtered if filtered else reader._plain
    clients = [first, *(Client(broker, reader) for _ in range(3))]
    for number, each in enumerate(clients):
        each.ask(pull, answers=0)
        while len(waiting) < min(3, number + 1):
            reader.work()
    assert broker.ask(reader, first.socket), "it is answered, with nothing"
    assert len(waiting) == 3
    work(reader)
    assert not any(each.socket.poll(0) for each in clients[1:])
