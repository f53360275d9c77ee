"""The producer against a broker: what is sent is stored, what is wrong is said, and it goes on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.client import Consumer, Producer
from penstock.shared.errors import (
    InvalidArgument,
    InvalidMessage,
    PenstockError,
    PropertiesTooLarge,
    QueueNotFound,
    StoreUnavailable,
    TopicNotFound,
)
from penstock.shared.formats.java_hash import shard_queue
from penstock.shared.formats.message_id import parse_message_id

WAIT_S = 60


@pytest.fixture
def producer(broker: Any) -> Iterator[Producer]:
    with Producer(broker.produce) as producer:
        yield producer


def stored(broker: Any, topic: str) -> dict[int, list[bytes]]:
    """The bodies of each queue, in order."""
    found: dict[int, list[bytes]] = {}
    with Consumer(broker.consume, topic, follow=False) as consumer:
        for message in consumer:
            assert message.queue_offset == len(found.setdefault(message.queue_id, []))
            found[message.queue_id].append(message.body)
    return found


def test_a_message_is_stored_with_all_it_came_with(broker: Any, producer: Producer) -> None:
    producer.create_topic("whole", 2)
    future = producer.send(
        "whole",
        b"body",
        tags="t",
        keys="k1 k2",
        shard="s",  # of two queues the second
        properties={"own": "värde"},
        flag=-7,
        ack="durable",
    )
    receipt = future.result(WAIT_S)
    with Consumer(broker.consume, "whole", follow=False) as consumer:
        (message,) = list(consumer)
    assert (message.topic, message.queue_id, message.queue_offset) == ("whole", 1, 0)
    assert (message.body, message.tags, message.keys, message.shard) == (b"body", "t", "k1 k2", "s")
    assert (message.flag, message.properties["own"]) == (-7, "värde")
    assert message.born_host == "127.0.0.1:0"
    assert message.store_host == f"127.0.0.1:{broker.produce.rpartition(':')[2]}"
    assert 0 <= message.store_timestamp_ms - message.born_timestamp_ms < 60_000
    assert receipt.unique_key == future.unique_key == message.unique_key
    assert receipt.message_id == message.message_id
    assert parse_message_id(receipt.message_id)[1] == message.physical_offset
    assert (receipt.topic, receipt.queue_id, receipt.queue_offset) == ("whole", 1, 0)
    assert receipt.physical_offset == message.physical_offset
    assert receipt.store_timestamp_ms == message.store_timestamp_ms


def test_messages_take_turns_or_follow_their_key_or_go_where_they_are_told(
    broker: Any, producer: Producer
) -> None:
    producer.create_topic("routes", 5)
    for number in range(20):
        producer.send("routes", b"turn %d" % number)
        producer.send("routes", b"key %d" % number, shard=f"k{number}")
        producer.send("routes", b"told %d" % number, queue=3)
    producer.flush(WAIT_S)
    queues = stored(broker, "routes")
    turns = {q: [b for b in bodies if b.startswith(b"turn")] for q, bodies in queues.items()}
    assert {len(bodies) for bodies in turns.values()} == {4}
    for queue_id, bodies in queues.items():
        for body in bodies:
            kind, number = body.decode().split()
            if kind == "key":
                assert queue_id == shard_queue(f"k{number}", 5)
            if kind == "told":
                assert queue_id == 3
        for kind in (b"turn", b"key", b"told"):
            numbers = [int(body.split()[1]) for body in bodies if body.startswith(kind)]
            assert numbers == sorted(numbers), "in order of sending"


def test_flush_waits_for_every_outcome(broker: Any, producer: Producer) -> None:
    futures = [producer.send("flushed", b"x" * (i % 3000)) for i in range(2000)]
    producer.flush(WAIT_S)
    assert all(future.done() for future in futures)
    assert sum(map(len, stored(broker, "flushed").values())) == 2000


def test_leaving_the_block_waits_for_every_outcome(broker: Any) -> None:
    with Producer(broker.produce) as producer:
        futures = [producer.send("left", b"x") for _ in range(500)]
    assert all(future.exception(0) is None for future in futures)
    assert sum(map(len, stored(broker, "left").values())) == 500


def test_callbacks_are_told_from_the_producers_thread(producer: Producer) -> None:
    told: list[tuple[int, str]] = []
    for _ in range(50):
        future = producer.send("callbacks", b"x", queue=0)
        future.add_done_callback(
            lambda done: told.append((done.result(0).queue_offset, threading.current_thread().name))
        )
    producer.flush(WAIT_S)
    assert [offset for offset, _ in told] == list(range(50))
    assert {name for _, name in told[1:]} <= {"penstock-producer", "MainThread"}


def test_a_callback_that_would_end_its_thread_ends_nothing(producer: Producer) -> None:
    def leave(done: Any) -> None:
        raise SystemExit

    future = producer.send("callbacks", b"x")
    future.add_done_callback(leave)
    assert producer.send("callbacks", b"x").result(WAIT_S)
    future.add_done_callback(leave)  # at once, and what it raises is logged all the same


def test_a_callback_may_send_and_is_told_when_it_waits(broker: Any) -> None:
    """For itself: its thread is the one that brings outcomes."""
    errors: list[PenstockError] = []
    told = threading.Event()

    with Producer(broker.produce) as producer:

        def wait(done: Any) -> None:
            later = producer.send("callbacks", b"later")
            waits: list[Any] = [
                *(later.result, producer.flush, producer.topics, producer.close, later.exception),
                lambda: producer.request("callbacks", b"x", timeout=WAIT_S),
            ]
            for call in waits:
                try:
                    call()
                except PenstockError as error:
                    errors.append(error)
            told.set()

        with producer._lock:  # else it may have its outcome before it has its callback
            producer.send("callbacks", b"x").add_done_callback(wait)
        assert told.wait(WAIT_S)
        assert [type(error) for error in errors] == [InvalidArgument] * 6
        assert producer.send("callbacks", b"x").result(WAIT_S)


@pytest.mark.parametrize("ack", ["durable", "written", ""])
def test_every_acknowledgement_is_answered(producer: Producer, ack: str) -> None:
    assert producer.send("acks", b"x", ack=ack).result(WAIT_S).topic == "acks"


# --- what is wrong ---

WRONG: list[tuple[type[PenstockError], dict[str, Any]]] = [
    (InvalidArgument, {"topic": "a b"}),
    (InvalidArgument, {"topic": ""}),
    (InvalidArgument, {"topic": "x" * 128}),
    (InvalidArgument, {"topic": "SCHEDULE_TOPIC_XXXX"}),
    (InvalidMessage, {"body": "text"}),
    (InvalidMessage, {"body": None}),
    (InvalidMessage, {"properties": {"KEYS": "k"}}),
    (InvalidMessage, {"properties": {"a": "\x01"}}),
    (InvalidMessage, {"tags": "\x02"}),
    (PropertiesTooLarge, {"properties": {"a": "x" * 32_768}}),
    (InvalidMessage, {"body": b"x" * 65_537}),
    (InvalidMessage, {"flag": 1 << 31}),
    (InvalidArgument, {"ack": "all"}),
    (QueueNotFound, {"queue": 4}),
    (QueueNotFound, {"queue": -1}),
]


@pytest.mark.parametrize(("error", "arguments"), WRONG)
@pytest.mark.parametrize("first", [True, False], ids=["first send", "later send"])
def test_what_is_wrong_is_a_typed_error_and_the_connection_goes_on(
    broker: Any, error: type[PenstockError], arguments: dict[str, Any], first: bool
) -> None:
    usual: dict[str, Any] = {"topic": "good", "body": b"x"}
    with Producer(broker.produce) as producer:
        if not first:
            producer.send(**usual).result(WAIT_S)
        before = producer.send(**usual)
        with pytest.raises(error) as caught:
            producer.send(**(usual | arguments)).result(WAIT_S)
        assert caught.value.what and type(caught.value) is error
        assert before.exception(WAIT_S) is None
        assert producer.send(**usual).result(WAIT_S).topic == "good"


def test_a_message_that_is_too_large_fails_alone(broker: Any) -> None:
    """Also when the broker has not said yet how large one may be."""
    with Producer(broker.produce) as producer:
        before = producer.send("alone", b"x", queue=0)
        try:
            too_large = producer.send("alone", b"x" * 65_537, queue=0)
        except InvalidMessage as error:  # the broker has said it by now
            refused: BaseException | None = error
        else:
            refused = None
        after = producer.send("alone", b"x" * 65_536, queue=0)
        refused = refused or too_large.exception(WAIT_S)
        assert isinstance(refused, InvalidMessage) and "larger than 65536 bytes" in str(refused)
        assert [each.result(WAIT_S).queue_offset for each in (before, after)] == [0, 1]


def test_a_failure_that_nobody_has_looked_at_is_raised_by_flush_once(producer: Producer) -> None:
    producer.send("unseen", b"x", queue=77)
    with pytest.raises(QueueNotFound):
        producer.flush(WAIT_S)
    producer.flush(WAIT_S)


# --- topics ---


def test_topics_are_created_listed_and_only_grow(producer: Producer) -> None:
    assert producer.create_topic("grows", 2) == 2
    assert producer.create_topic("grows", 6) == 6
    assert producer.topics()["grows"] == 6
    with pytest.raises(InvalidArgument, match="has 6 queues, and creating it takes none"):
        producer.create_topic("grows", 3)
    for wrong in (0, -1, 1025):
        with pytest.raises(InvalidArgument):
            producer.create_topic("grows", wrong)
    with pytest.raises(InvalidArgument):
        producer.create_topic("a/b", 1)
    assert producer.send("grows", b"x", queue=5).result(WAIT_S).queue_id == 5


def test_where_topics_are_not_made_by_themselves_they_are_not(strict_broker: Any) -> None:
    with Producer(strict_broker.produce) as producer:
        future = producer.send("unknown", b"x")
        with pytest.raises(TopicNotFound, match="penstock topics create"):
            future.result(WAIT_S)
        with pytest.raises(TopicNotFound):
            producer.send("unknown", b"x").result(WAIT_S)
        producer.create_topic("unknown", 1)
        assert producer.send("unknown", b"x").result(WAIT_S).queue_offset == 0


@pytest.fixture
def strict_broker(start_broker: Any) -> Any:
    return start_broker(auto_create_topic_enable="false")


# --- many, and ends ---


def test_many_producers_of_many_threads_store_every_message_once(broker: Any) -> None:
    count, each = 12, 150

    def produce(number: int) -> None:
        with Producer(broker.produce) as producer:
            for i in range(each):
                producer.send("many", b"%d %d" % (number, i), shard=str(number))

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    seen: dict[int, list[int]] = {}
    for bodies in stored(broker, "many").values():
        for body in bodies:
            number, i = map(int, body.split())
            seen.setdefault(number, []).append(i)
    assert seen == {number: list(range(each)) for number in range(count)}


def test_threads_share_a_producer(broker: Any, producer: Producer) -> None:
    def produce(number: int) -> None:
        for i in range(200):
            producer.send("shared", b"%d %d" % (number, i), queue=0)

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    producer.flush(WAIT_S)
    bodies = stored(broker, "shared")[0]
    for number in range(4):
        own = [int(b.split()[1]) for b in bodies if int(b.split()[0]) == number]
        assert own == list(range(200)), "each thread's messages in its own order"


def test_a_closed_producer_says_so(broker: Any) -> None:
    producer = Producer(broker.produce)
    producer.send("closed", b"x")
    producer.close()
    producer.close()
    for use in (
        lambda: producer.send("closed", b"x"),
        lambda: producer.flush(1),
        producer.topics,
        lambda: producer.create_topic("closed", 1),
    ):
        with pytest.raises(StoreUnavailable, match="closed"):
            use()


def test_what_was_sent_while_another_thread_closes_has_an_outcome(broker: Any) -> None:
    producer = Producer(broker.produce)
    producer.create_topic("closing", 1)
    futures: list[Any] = []

    def send() -> None:
        while True:
            try:
                futures.append(producer.send("closing", bytes(20_000), queue=0))
            except StoreUnavailable:
                return  # it is closed

    threads = [threading.Thread(target=send) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(futures) < 5000:  # more than may wait, so that some of them wait for room
        time.sleep(0.001)
    producer._disconnect()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert all(future.done() for future in futures)


def test_a_fork_cannot_use_its_parents_producer(broker: Any) -> None:
    with Producer(broker.produce) as producer:
        producer.send("forked", b"parent").result(WAIT_S)
        child = os.fork()
        if not child:
            code = 1
            try:
                producer.send("forked", b"child")
            except StoreUnavailable as error:
                code = 42 if "fork" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
        producer.send("forked", b"parent again").result(WAIT_S)
    assert sorted(sum(stored(broker, "forked").values(), [])) == [b"parent", b"parent again"]


def test_an_error_in_the_block_counts_and_is_not_waited_behind(broker: Any) -> None:
    with pytest.raises(ZeroDivisionError), Producer(broker.produce) as producer:
        future = producer.send("broken", b"x")
        raise ZeroDivisionError
    assert future.done()


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:1", "tcp://", "tcp://host", "udp://127.0.0.1:1", "tcp://127.0.0.1:x"]
)
def test_an_endpoint_that_is_none_is_a_typed_error(endpoint: str) -> None:
    with pytest.raises(InvalidArgument, match="endpoint") as caught:
        Producer(endpoint)
    assert caught.value.exit_code == 2


def test_the_ipc_endpoint_serves_too(broker: Any) -> None:
    with Producer(broker.status()["endpoints"]["produce_ipc"]) as producer:
        assert producer.send("ipc", b"x").result(WAIT_S).queue_offset == 0
