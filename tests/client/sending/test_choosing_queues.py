"""Selectors and one-way sends, against a broker, from both clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from penstock.client import Consumer, Producer, aio, at_random, by_hash
from penstock.shared.errors import InvalidMessage
from penstock.shared.formats.java_hash import shard_queue

WAIT_S = 60


@pytest.fixture
def producer(broker: Any) -> Iterator[Producer]:
    with Producer(broker.produce) as producer:
        yield producer


def bodies(broker: Any, topic: str) -> list[tuple[int, bytes]]:
    with Consumer(broker.consume, topic, follow=False) as consumer:
        return sorted((message.queue_id, message.body) for message in consumer)


def test_a_selector_chooses_among_the_topics_queues(broker: Any, producer: Producer) -> None:
    producer.create_topic("selected", 5)
    futures = [
        producer.send("selected", b"last", selector=lambda queues: queues[-1]),
        producer.send("selected", b"hash", selector=by_hash("customer 7"), properties={"a": "b"}),
        producer.send_batch("selected", [b"batch"] * 3, selector=by_hash(13)),
    ]
    assert producer.send("selected", b"any", selector=at_random).result(WAIT_S).queue_id in range(5)
    queues = [future.result(WAIT_S).queue_id for future in futures]
    assert queues == [4, shard_queue("customer 7", 5), 3]


def test_a_queue_and_a_shard_together_are_refused_and_nothing_is_sent(
    broker: Any, producer: Producer
) -> None:
    producer.create_topic("both", 3)
    producer.send("both", b"known", queue=0).result(WAIT_S)
    both: Any = {"queue": 1, "shard": "k"}
    calls: list[Callable[[], Any]] = [
        lambda: producer.send("both", b"x", **both),
        lambda: producer.send("both", b"x", properties={"a": "b"}, **both),
        lambda: producer.send_batch("both", [b"x"], **both),
        lambda: producer.send_oneway("both", b"x", **both),
        lambda: producer.send("not yet known", b"x", **both),
    ]
    for call in calls:
        with pytest.raises(InvalidMessage, match="more than one argument chooses"):
            call()
    producer.flush(WAIT_S)
    assert bodies(broker, "both") == [(0, b"known")]


def test_one_way_messages_are_stored_in_their_places(broker: Any, producer: Producer) -> None:
    producer.create_topic("oneway", 2)
    for number in range(0, 200, 2):
        producer.send_oneway("oneway", b"%03d" % number, queue=1)
        producer.send("oneway", b"%03d" % (number + 1), queue=1)
    producer.flush(WAIT_S)
    assert bodies(broker, "oneway") == [(1, b"%03d" % number) for number in range(200)]


def test_nobody_is_told_of_a_one_way_message_that_is_refused(
    broker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "penstock"), Producer(broker.produce) as producer:
        producer.create_topic("refused-oneway", 1)
        # parked while the route is not known, and refused once it is
        with Producer(broker.produce) as other:
            other.send_oneway("refused-oneway", b"x", queue=7)
            other.flush(WAIT_S)
    assert not caplog.records and bodies(broker, "refused-oneway") == []


def test_both_from_a_coroutine(broker: Any) -> None:
    async def test() -> None:
        async with aio.Producer(broker.produce) as producer:
            await producer.create_topic("aio-selected", 4)
            receipt = await producer.send("aio-selected", b"1", selector=lambda queues: 2)
            assert receipt.queue_id == 2
            batch = producer.send_batch("aio-selected", [b"2"], selector=lambda queues: 3)
            assert (await batch).queue_id == 3
            producer.send_oneway("aio-selected", b"3", queue=1, properties={"a": "b"})
            producer.send_oneway("aio-selected", b"4", queue=1)
            with pytest.raises(InvalidMessage, match="more than one argument chooses"):
                producer.send("aio-selected", b"x", queue=1, shard="k")

    asyncio.run(asyncio.wait_for(test(), 30))
    with Consumer(broker.consume, "aio-selected") as consumer:  # nobody has heard of those one-way
        found = sorted((each.queue_id, each.body) for each in islice(consumer, 4))
    assert found == [(1, b"3"), (1, b"4"), (2, b"1"), (3, b"2")]
