"""Any history of some hours: hours are split, minutes are taken, segments expire, and lives end."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock.shared.messaging.delayed import Delay
from tests.actors.scheduler.test_rolling import HOUR_MS, MINUTE_MS, fill

# A scene has eight segments, and what waits and comes needs some, too.
MOST_FILLED = 4


@pytest.mark.parametrize("seed", range(6))
def test_over_hours_each_message_comes_once_and_none_early(
    scene: Callable[..., Any], seed: int
) -> None:
    it, dice = scene(), random.Random(seed)
    due: dict[str, int] = {}
    filled = 0
    for _ in range(15):
        for _ in range(dice.randrange(4)):
            wait_ms = dice.choice([MINUTE_MS, 15 * MINUTE_MS, 50 * MINUTE_MS, 3 * HOUR_MS])
            at_ms = it.now_ms + wait_ms + dice.randrange(MINUTE_MS)
            due[it.send(Delay(out_ms=at_ms))] = at_ms
        match dice.choice(["expire", "kill", "stop", ""]):
            case "expire" if filled < MOST_FILLED:
                filled += 1
                fill(it, 1)
            case "kill":
                it.crash()
            case "stop":
                it.stop()
                it.start()
        step_ms = dice.choice([20, 1000, 20_000])
        for _ in range(dice.randrange(60)):
            it.turn(step_ms)
    it.until(lambda: len(it.bodies()) >= len(due), "all", ms=20_000)
    for _ in range(40):
        it.turn(1000)
    assert sorted(it.bodies()) == sorted(due)
    early = [r for r in it.queue() if r.store_timestamp_ms < due[r.body.decode()]]
    assert not early


def test_what_is_due_as_the_next_minute_begins_comes_once(scene: Callable[..., Any]) -> None:
    """Its minute is not in memory yet: it comes from that minute's file, and from nowhere else."""
    it = scene()
    first = it.send(Delay(out_ms=it.now_ms + 100))
    it.await_bodies(1)
    edge_ms = it.actor._timers.loaded_to_ms
    assert edge_ms - it.now_ms > 1000, "it is soon over"
    second = it.send(Delay(out_ms=edge_ms))
    it.until(lambda: len(it.queue()) > 1, "the second", ms=100)
    for _ in range(30):
        it.turn(20)
    assert [each.body.decode() for each in it.queue()] == [first, second]
    assert it.queue()[1].store_timestamp_ms >= edge_ms
