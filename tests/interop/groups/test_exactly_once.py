"""Blocks that work exactly once, with a RocketMQ broker and its consumer in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client.groups.consumer import GroupConsumer
from penstock.client.sending.producer import Producer

pytestmark = pytest.mark.takes(45)
TOPIC, QUEUES, OUTPUTS, GROUP = "orders", 4, "bills", "billing"
WAIT_S = 60


def work(place: Any, count: int) -> list[int]:
    """The group's next inputs, each with an output of its own, in blocks."""
    done: list[int] = []
    until = time.monotonic() + WAIT_S
    with GroupConsumer(store=place.store, group=GROUP, topics=TOPIC, start="first") as consumer:
        while len(done) < count:
            assert time.monotonic() < until, f"{len(done)} of {count} came"
            batch = consumer.poll(0.5, min(7, count - len(done)))
            with consumer.exactly_once() as out:
                for message in batch:
                    out.send(OUTPUTS, message.body)
            if out.stored:
                done += [int(message.body) for message in batch]
    return sorted(done)


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["body"]) for row in rows)


def test_rocketmqs_consumer_goes_on_where_blocks_are_and_blocks_go_on_after_it(
    place: Any,
    penstock: Callable[..., Any],
    rocketmq: Callable[..., Any],
    client: Any,
    sides: Any,
    record_property: Callable[[str, object], None],
) -> None:
    ours = penstock(place)
    with Producer(store=place.store) as producer:
        producer.create_topic(TOPIC, QUEUES)
        producer.create_topic(OUTPUTS, QUEUES)
    sides.send_ours(range(40))
    first = work(place, 20)
    ours.stop()

    theirs = rocketmq(place)
    client.open(place)
    left = sorted({*range(40)} - {*first})
    assert numbers(sides.consume_theirs(20, settle_ms=3000)) == left
    bills = sides.consume_theirs(20, group="readers", topics={OUTPUTS: "*"}, settle_ms=3000)
    assert numbers(bills) == first, "outputs are ordinary messages"
    sides.send_theirs(range(40, 60))
    client.ask("close")
    theirs.stop()
    assert sides.left(40) == []

    ours = penstock(place)
    assert work(place, 20) == [*range(40, 60)]
    assert sides.consume_ours(0) == []
    ours.stop()
    assert sides.left(60) == []

    theirs = rocketmq(place)
    client.open(place)
    bills = sides.consume_theirs(20, group="readers", topics={OUTPUTS: "*"}, settle_ms=3000)
    assert numbers(bills) == [*range(40, 60)]
    client.ask("close")
    theirs.stop()
    record_property("messages", 60)
