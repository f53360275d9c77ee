"""One store, opened by both sides in turn: each finds everything, appends to it, and goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.takes(80)

TOPIC, QUEUES = "orders", 4
ROUNDS = 3
MESSAGES = 6000  # each side, in each round


def test_nothing_is_lost_when_a_store_goes_back_and_forth(
    place: Any,
    penstock: Callable[..., Any],
    rocketmq: Callable[..., Any],
    client: Any,
    sides: Any,
    make_wanted: Callable[..., Any],
    produce: Callable[..., Any],
    same: Callable[..., None],
    holds: Callable[..., None],
    record_property: Callable[[str, object], None],
) -> None:
    known: dict[Any, Any] = {}
    queues = [(TOPIC, queue) for queue in range(QUEUES)]
    for number in range(ROUNDS):
        ours = penstock(place, transient_store_pool_enable=number % 2 == 0)
        if known:
            holds(sides.consumed(ours, [TOPIC]), known)
        known |= produce(ours, make_wanted(TOPIC, QUEUES, MESSAGES, seed=2 * number)).finish()
        last = number == ROUNDS - 1
        if last:
            ours.kill()  # acknowledged messages are on disk
            ours.forget_memory()
        else:
            ours.stop()
            sides.verify(place)

        theirs = rocketmq(place)
        client.open(place)
        before = sides.pulled(place, queues)
        assert before.keys() == known.keys()
        holds(before, known)
        known |= sides.send(place, make_wanted(TOPIC, QUEUES, MESSAGES, seed=2 * number + 1))
        found = sides.pulled(place, queues)
        assert found.keys() == known.keys()
        holds(found, known)
        client.ask("close")
        if last:
            theirs.stop()
        else:
            theirs.kill()
        stored = sides.stored(place)
        same(stored, found)
        assert dense(stored)
    sides.verify(place)
    same(stored, sides.opened_by_classes(place, "5.3"))
    same(stored, sides.opened_by_classes(place, "4.9"))
    record_property("messages", len(stored))


def dense(rows: dict[Any, Any]) -> bool:
    """Whether each queue's offsets are 0, 1, 2 and so on."""
    offsets: dict[Any, list[int]] = {}
    for topic, queue, offset in rows:
        offsets.setdefault((topic, queue), []).append(offset)
    return all(sorted(found) == list(range(len(found))) for found in offsets.values())
