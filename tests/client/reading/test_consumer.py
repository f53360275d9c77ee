"""The consumer against a broker: from where it is told, in order, and for as long as it is told."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Consumer, Message, Producer, aio
from penstock.client.reading.consume_link import ConsumeLink
from penstock.shared.errors import (
    InvalidArgument,
    PenstockError,
    QueueNotFound,
    StoreUnavailable,
    TopicNotFound,
)
from penstock.shared.layout import StorePaths
from penstock.shared.memory.run_directory import read_run

pytestmark = pytest.mark.takes(15)

WAIT_S = 60


def bodies(consumer: Consumer, count: int) -> list[bytes]:
    """The next this many messages."""
    found: list[Message] = []
    while len(found) < count:
        batch = consumer.poll(WAIT_S)
        assert batch, f"only {len(found)} of {count} came"
        found += batch
    assert len(found) == count
    return [message.body for message in found]


@pytest.fixture(scope="module")
def numbers(broker: Any) -> dict[str, Any]:
    """Topic `numbers`: one queue with ten messages, a moment between the fifth and the sixth."""
    with Producer(broker.produce) as producer:
        producer.create_topic("numbers", 1)
        receipts = []
        for number in range(10):
            if number == 5:
                # times are in whole milliseconds: begin the next one
                until = receipts[-1].store_timestamp_ms + 2
                while time.time() * 1000 < until:
                    time.sleep(0.001)
            receipts.append(producer.send("numbers", b"%d" % number).result(WAIT_S))
    return {"times": [receipt.store_timestamp_ms for receipt in receipts]}


def test_iterating_without_follow_ends_with_the_last_message(
    broker: Any, numbers: dict[str, Any]
) -> None:
    with Consumer(broker.consume, "numbers", follow=False) as consumer:
        found = list(consumer)
        assert [message.body for message in found] == [b"%d" % i for i in range(10)]
        assert [message.queue_offset for message in found] == list(range(10))
        assert list(consumer) == [], "it stays at its end"
        assert consumer.positions == {0: 10} and consumer.skipped == 0


@pytest.mark.parametrize(
    ("start", "first"),
    [("earliest", 0), ("latest", 10), (7, 7), ("7", 7), ({0: 4}, 4), ("-1d", 0), (10, 10)],
)
def test_a_consumer_starts_where_it_is_told(
    broker: Any, numbers: dict[str, Any], start: Any, first: int
) -> None:
    with Consumer(broker.consume, "numbers", start=start, follow=False) as consumer:
        assert [int(message.body) for message in consumer] == list(range(first, 10))


def test_a_consumer_starts_at_a_time(broker: Any, numbers: dict[str, Any]) -> None:
    at_ms = numbers["times"][5]
    assert numbers["times"][4] < at_ms
    first = numbers["times"].index(at_ms)
    moment = dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC)
    for start in (moment, moment.isoformat()):
        with Consumer(broker.consume, "numbers", start=start, follow=False) as consumer:
            assert [int(message.body) for message in consumer] == list(range(first, 10))


def test_following_waits_for_what_comes_and_wakes_at_once(broker: Any) -> None:
    with (
        Producer(broker.produce) as producer,
        Consumer(broker.consume, "waits") as consumer,
    ):
        assert consumer.poll(0) == []
        for number in range(5):
            waking = threading.Thread(target=producer.send, args=("waits", b"%d" % number))
            waking.start()
            assert bodies(consumer, 1) == [b"%d" % number]
            waking.join()


def test_a_long_poll_is_answered_when_the_message_comes_and_not_at_its_end(broker: Any) -> None:
    with (
        Producer(broker.produce) as producer,
        Consumer(broker.consume, "prompt") as consumer,
    ):
        producer.send("prompt", b"first").result(WAIT_S)
        bodies(consumer, 1)
        best = 60.0
        for _ in range(5):
            assert consumer.poll(0.05) == []
            began = time.monotonic()
            producer.send("prompt", b"x", ack="durable")
            bodies(consumer, 1)
            best = min(best, time.monotonic() - began)
        assert best < 1, "a pull waits up to five seconds, and a repetition 0.2"


def test_iterating_with_follow_goes_on_for_ever(broker: Any) -> None:
    with Producer(broker.produce) as producer, Consumer(broker.consume, "ever") as consumer:
        sent = 0
        for _ in range(3):
            producer.send("ever", b"%d" % sent)
            sent += 1
        seen = []
        for message in consumer:
            seen.append(int(message.body))
            if len(seen) == 12:
                break
            if len(seen) == sent:
                producer.send("ever", b"%d" % sent)
                sent += 1
        assert sorted(seen) == list(range(12))


def test_without_follow_what_comes_meanwhile_is_not_shown(broker: Any) -> None:
    with Producer(broker.produce) as producer:
        producer.create_topic("meanwhile", 2)
        for queue in (0, 1):
            producer.send("meanwhile", b"before", queue=queue).result(WAIT_S)
        with Consumer(broker.consume, "meanwhile", follow=False) as consumer:
            seen = list(consumer.poll(WAIT_S))
            for queue in (0, 1):
                producer.send("meanwhile", b"after", queue=queue).result(WAIT_S)
            seen += list(consumer)
        assert [message.body for message in seen] == [b"before", b"before"]
        with Consumer(broker.consume, "meanwhile", follow=False) as consumer:
            assert len(list(consumer)) == 4


def test_two_consumers_each_see_everything(broker: Any) -> None:
    with Producer(broker.produce) as producer:
        producer.create_topic("twice", 3)
        with (
            Consumer(broker.consume, "twice") as one,
            Consumer(broker.consume, "twice") as two,
        ):
            for number in range(300):
                producer.send("twice", b"%d" % number)
            expected = sorted(b"%d" % number for number in range(300))
            assert sorted(bodies(one, 300)) == sorted(bodies(two, 300)) == expected


def test_bodies_come_alone_and_a_loop_that_broke_off_goes_on_behind_the_last(
    broker: Any, numbers: dict[str, Any]
) -> None:
    expected = [b"%d" % number for number in range(10)]
    with Consumer(broker.consume, "numbers", follow=False) as consumer:
        seen = []
        for body in consumer.bodies():
            seen.append(body)
            if len(seen) == 4:
                break
        assert seen + list(consumer.bodies()) == expected
        assert list(consumer.bodies()) == [] and consumer.positions == {0: 10}
    with Consumer(broker.consume, "numbers", follow=False, start=3) as consumer:
        consumer.end_at(6)
        assert list(consumer.bodies()) == expected[3:6], "what lies behind the end is not shown"


def test_what_an_iteration_has_not_given_when_it_broke_off_comes_next(
    broker: Any, numbers: dict[str, Any]
) -> None:
    expected = [b"%d" % number for number in range(10)]
    ways: tuple[Callable[[Consumer], list[bytes]], ...] = (
        lambda consumer: [message.body for message in consumer],
        lambda consumer: [message.body for message in consumer.poll(0)],
        lambda consumer: list(consumer.bodies()),
        lambda consumer: consumer.poll_arrow(0, iter(["body"]))["body"].to_pylist(),
    )
    for others in ways:
        with Consumer(broker.consume, "numbers", follow=False) as consumer:
            first = [message.body for message, _ in zip(consumer, range(3), strict=False)]
            assert first == expected[:3] and consumer.positions == {0: 4}
            # zip has taken one more than it gave
            assert others(consumer) == expected[4:]
            assert consumer.positions == {0: 10} and consumer.poll(0) == []

    async def looped() -> list[bytes]:
        async with aio.Consumer(broker.consume, "numbers", follow=False) as consumer:
            async for message in consumer:
                assert message.body == b"0"
                break
            return [message.body async for message in consumer]

    assert asyncio.run(looped()) == expected[1:]


@pytest.mark.parametrize("chosen", [{}, {"tags": "even"}])
def test_bodies_that_do_not_stand_there_as_sent_are_made(
    broker: Any, chosen: dict[str, str]
) -> None:
    topic = f"made-{len(chosen)}"
    sent = [b"plain %d" % number + b"." * 5000 * (number % 3) for number in range(12)]
    with Producer(broker.produce, compression="zlib") as producer:
        for number, body in enumerate(sent):
            producer.send(topic, body, queue=0, tags=("even", "odd")[number % 2])
    with Consumer(broker.consume, topic, follow=False, **chosen) as consumer:
        assert list(consumer.bodies()) == (sent[::2] if chosen else sent)


def test_only_some_queues_are_read(broker: Any) -> None:
    with Producer(broker.produce) as producer:
        producer.create_topic("some", 4)
        for queue in range(4):
            producer.send("some", b"%d" % queue, queue=queue).result(WAIT_S)
    with Consumer(broker.consume, "some", queues=[1, 3], follow=False) as consumer:
        assert sorted(message.body for message in consumer) == [b"1", b"3"]


def test_a_queue_whose_first_message_comes_later_is_found(broker: Any) -> None:
    with Producer(broker.produce) as producer:
        producer.create_topic("later", 2)
        producer.send("later", b"0", queue=0).result(WAIT_S)
        with Consumer(broker.consume, "later", start="latest") as consumer:
            assert consumer.poll(0.05) == []
            producer.create_topic("later", 5)
            producer.send("later", b"4", queue=4)
            assert bodies(consumer, 1) == [b"4"]


def test_messages_larger_than_a_pull_come_whole(broker: Any) -> None:
    with Producer(broker.produce) as producer:
        for number in range(40):
            producer.send("large", b"%02d" % number * 32_000, queue=0)
    with Consumer(broker.consume, "large", follow=False) as consumer:
        found = [message.body for message in consumer]
    assert found == [b"%02d" % number * 32_000 for number in range(40)]


# --- what is wrong ---


def send_many(broker: Any, topic: str, first: int) -> None:
    with Producer(broker.produce) as producer:
        sent = [producer.send(topic, b"%06d" % n + bytes(2000)) for n in range(first, first + 1000)]
        for each in sent:
            each.result(WAIT_S)


def numbers_of(consumer: Consumer, count: int) -> list[int]:
    return sorted(int(body[:6]) for body in bodies(consumer, count))


def test_a_backlog_is_read_from_the_logs_files_and_by_the_socket_alike(broker: Any) -> None:
    with Producer(broker.produce) as producer:
        producer.create_topic("backlog", 2)
    send_many(broker, "backlog", 0)
    for direct in (True, False):
        with Consumer(broker.consume, "backlog", follow=False, direct=direct) as consumer:
            assert numbers_of(consumer, 1000) == list(range(1000))
            # it looks for the run only once an answer leads to its files
            assert (consumer._core._files._run_id is not None) == direct


def test_where_there_are_no_files_to_read_messages_come_by_the_socket(broker: Any) -> None:
    with Producer(broker.produce) as producer:
        producer.create_topic("elsewhere", 1)
    send_many(broker, "elsewhere", 0)
    run = read_run(StorePaths(broker.store))
    assert run is not None
    name = run.path / "store"
    with Consumer(broker.consume, "elsewhere", follow=False) as consumer:
        hidden = name.rename(run.path / "hidden")  # as in another container
        try:
            assert numbers_of(consumer, 1000) == list(range(1000))
        finally:
            hidden.rename(name)
        assert not consumer._core._files.usable(0)


def test_a_consumer_reads_the_log_of_whichever_broker_answers(start_broker: Any) -> None:
    """It starts again: another run, of which the store has the name."""
    broker = start_broker()
    with Producer(broker.produce) as producer:
        producer.create_topic("backlog", 1)
    send_many(broker, "backlog", 0)
    with Consumer(broker.consume, "backlog") as consumer:
        assert numbers_of(consumer, 1000) == list(range(1000))
        before = consumer._core._files._run_id
        broker.stop()
        port = int(broker.consume.rpartition(":")[2])
        again = start_broker(broker.store.parent, consume_port=port)
        send_many(again, "backlog", 1000)
        assert numbers_of(consumer, 1000) == list(range(1000, 2000))
        assert before != consumer._core._files._run_id is not None


def test_a_topic_or_queue_that_is_not_there_is_a_typed_error(
    broker: Any, numbers: dict[str, Any]
) -> None:
    with (
        Consumer(broker.consume, "nowhere", follow=False) as consumer,
        pytest.raises(TopicNotFound, match="nowhere"),
    ):
        list(consumer)
    with (
        Consumer(broker.consume, "numbers", queues=[0, 9]) as consumer,
        pytest.raises(QueueNotFound, match="9"),
    ):
        consumer.poll(WAIT_S)


@pytest.mark.parametrize("arguments", [{"topic": "a/b"}, {"start": "soon"}, {"start": -1}])
def test_a_wrong_argument_is_a_typed_error_at_once(broker: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Consumer(broker.consume, **({"topic": "numbers"} | arguments))


def test_a_closed_consumer_says_so(broker: Any, numbers: dict[str, Any]) -> None:
    with Consumer(broker.consume, "numbers") as consumer:
        consumer.poll(WAIT_S)
    with pytest.raises(StoreUnavailable, match="closed"):
        consumer.poll(1)
    consumer.close()


def test_a_fork_cannot_use_its_parents_consumer(broker: Any, numbers: dict[str, Any]) -> None:
    with Consumer(broker.consume, "numbers") as consumer:
        child = os.fork()
        if not child:
            code = 1
            try:
                consumer.poll(1)
            except StoreUnavailable:
                code = 42
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
        assert len(bodies(consumer, 10)) == 10


def test_a_queue_that_cannot_be_read_is_an_error_for_its_reader_alone(start_broker: Any) -> None:
    broker = start_broker(
        flush_interval_consume_queue_ms=50, flush_consume_queue_thorough_interval_ms=100
    )
    with Producer(broker.produce) as producer:
        for topic in ("broken", "whole"):
            producer.create_topic(topic, 1)
            producer.send(topic, b"x").result(WAIT_S)
        with Consumer(broker.consume, "whole", follow=False) as consumer:
            assert len(list(consumer)) == 1, "and what was sent before has its queue too"
        (segment,) = StorePaths(broker.store).queue("broken", 0).iterdir()
        (flusher,) = (a["pid"] for a in broker.status()["actors"] if a["name"] == "flusher")
        deadline = time.monotonic() + WAIT_S
        while not any(link.resolve() == segment for link in Path(f"/proc/{flusher}/fd").iterdir()):
            assert time.monotonic() < deadline, "the flusher has not opened it"
        segment.rename(segment.with_name("elsewhere"))
        with Consumer(broker.consume, "broken") as consumer:
            for _ in range(3):
                with pytest.raises(PenstockError, match="broken"):
                    consumer.poll(WAIT_S)
        with Consumer(broker.consume, "whole", follow=False) as consumer:
            assert [message.body for message in consumer] == [b"x"]
        segment.with_name("elsewhere").rename(segment)
        with Consumer(broker.consume, "broken", follow=False) as consumer:
            assert [message.body for message in consumer] == [b"x"]


def test_what_was_acknowledged_is_there_for_who_asks_then(broker: Any) -> None:
    with Producer(broker.produce) as producer:
        for number in range(1, 40):
            producer.send("promptly", b"x").result(WAIT_S)
            with Consumer(broker.consume, "promptly", follow=False) as consumer:
                assert len(list(consumer)) == number


def test_a_quiet_topic_is_no_silent_broker(broker: Any) -> None:
    """The pull is asked again and again, and is answered all the same when its wait is over."""
    with Producer(broker.produce) as producer:
        producer.send("quiet", b"first").result(WAIT_S)
        with Consumer(broker.consume, "quiet", timeout_ms=1000) as consumer:
            assert [message.body for message in consumer.poll(WAIT_S)] == [b"first"]
            began = time.monotonic()
            assert consumer.poll(2.5) == []
            assert time.monotonic() - began > 2.4
            producer.send("quiet", b"second").result(WAIT_S)
            assert [message.body for message in consumer.poll(WAIT_S)] == [b"second"]


def test_a_consumer_that_waits_looks_again_only_when_something_has_come(
    broker: Any, numbers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would take a whole processor, and give the same."""
    looks, exchange = [], ConsumeLink.exchange

    def note(link: ConsumeLink, now_ms: int) -> None:
        looks.append(now_ms)
        exchange(link, now_ms)

    with Consumer(broker.consume, "numbers") as consumer:
        assert len(bodies(consumer, 10)) == 10
        monkeypatch.setattr(ConsumeLink, "exchange", note)
        assert consumer.poll(0.5) == []
    assert 0 < len(looks) < 50
