"""Timed messages that one broker has taken come from the other: once, and not before their time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.dataframes import Store
from penstock.shared.layout import StorePaths

pytestmark = pytest.mark.takes(145)
TOPIC, QUEUES = "orders", 4
SOON_S, LATER_S = 1, 30  # the second is longer than a change of brokers
PRECISION_MS = 1000  # RocketMQ rounds times down
SETTLE_MS = 5000


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["body"]) for row in rows)


def stored(place: Any) -> list[int]:
    """All that has come, each as often as it has."""
    bodies = Store(place.store).to_arrow(TOPIC, columns=["body"])["body"].to_pylist()
    return sorted(map(int, bodies))


def test_timed_messages_come_from_the_other_broker_once_and_not_early(
    place: Any,
    penstock: Callable[..., Any],
    rocketmq: Callable[..., Any],
    client: Any,
    sides: Any,
    record_property: Callable[[str, object], None],
) -> None:
    paths = StorePaths(place.store)
    theirs = rocketmq(place)
    client.open(place)
    client.ask("create", topic=TOPIC, queues=QUEUES)
    sides.send_theirs(range(10), delay_ms=SOON_S * 1000)
    due_ms = time.time() * 1000 + LATER_S * 1000
    sides.send_theirs(range(10, 20), delay_ms=LATER_S * 1000)
    assert numbers(sides.consume_theirs(10)) == [*range(10)]
    client.ask("close")
    theirs.stop()
    assert paths.timer_wheel.exists() and paths.timer_log.exists()

    ours = penstock(place)
    assert numbers(sides.consume_ours(10)) == [*range(10, 20)]
    assert time.time() * 1000 >= due_ms
    sides.send_ours(range(20, 30), delay=SOON_S)
    assert numbers(sides.consume_ours(10)) == [*range(20, 30)]
    due_ms = time.time() * 1000 + LATER_S * 1000
    sides.send_ours(range(30, 40), delay=LATER_S)
    ours.stop()
    assert not paths.timer_wheel.exists() and not paths.timer_log.exists()

    theirs = rocketmq(place)
    client.open(place)
    found = sides.consume_theirs(10, settle_ms=SETTLE_MS)
    assert numbers(found) == [*range(30, 40)]
    assert min(row["at_ms"] for row in found) >= due_ms - PRECISION_MS
    sides.send_theirs(range(40, 50), delay_ms=SOON_S * 1000)
    assert numbers(sides.consume_theirs(10)) == [*range(40, 50)]
    client.ask("close")
    theirs.stop()

    ours = penstock(place)
    sides.send_ours(range(50, 60), delay=SOON_S)
    assert numbers(sides.consume_ours(10)) == [*range(50, 60)]
    ours.stop()
    assert stored(place) == [*range(60)]
    record_property("messages", 60)


def test_what_has_come_after_the_first_that_waits_comes_from_rocketmq_once_more(
    place: Any,
    penstock: Callable[..., Any],
    rocketmq: Callable[..., Any],
    client: Any,
    sides: Any,
    record_property: Callable[[str, object], None],
) -> None:
    """It reads the queue from there on, and has no word of what has come."""
    ours = penstock(place)
    sides.send_ours(range(5), delay=SOON_S)
    assert numbers(sides.consume_ours(5)) == [*range(5)]
    sides.send_ours(range(5, 10), delay=LATER_S)
    sides.send_ours(range(10, 15), delay=SOON_S)
    assert numbers(sides.consume_ours(5)) == [*range(10, 15)]
    ours.stop()
    theirs = rocketmq(place)
    client.open(place)
    assert numbers(sides.consume_theirs(10, settle_ms=SETTLE_MS)) == [*range(5, 15)]
    client.ask("close")
    theirs.stop()
    assert stored(place) == sorted([*range(15), *range(10, 15)])
    record_property("messages", 20)
