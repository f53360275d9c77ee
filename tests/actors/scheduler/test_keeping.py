"""What the scheduler saves: whoever comes after it, each message comes once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.shared.messaging.delayed import Delay

Maker = Callable[..., Any]


@pytest.mark.parametrize("timed", [False, True])
def test_what_is_saved_between_a_message_and_its_answer_leads_the_next_life_to_it(
    scene: Maker, timed: bool
) -> None:
    it = scene()
    it.send(Delay(out_ms=it.now_ms + 900) if timed else Delay(1))
    actor = it.actor
    it.until(lambda: len(actor._sender), "it is on its way")
    before, it.actor = it.broker.positions["wrote"], None
    it.until(lambda: it.broker.positions["wrote"] > before, "it is stored")
    it.actor = actor
    actor._keeping._save_ms = -(1 << 60)
    actor._keep(it.now_ms)
    assert len(actor._sender), "else this shows nothing"
    it.crash()
    assert len(it.await_bodies(1, ms=50)) == 1


def save(it: Any) -> int:
    """Have the scheduler save now; below which log offset the next life looks for nothing."""
    it.actor._keeping._save_ms = -(1 << 60)
    it.actor._keep(it.now_ms)
    return int(it.progress().floor)


@pytest.mark.parametrize("turns", range(8))
def test_a_second_death_soon_after_the_first_leaves_its_doubt_too(scene: Maker, turns: int) -> None:
    """Of some of what waits it is known by then whether it is stored, and of the rest not."""
    it = scene()
    for level in (1, 2):
        it.send(Delay(level))
    it.send(Delay(out_ms=it.now_ms + 4000))
    it.until(lambda: it.broker.positions["pending_delayed"] == 3, "all are known")
    it.actor._keeping._save_ms = 1 << 60  # nothing is saved any more
    it.until(lambda: len(it.queue()) == 3, "all are stored", ms=50)
    wrote = it.broker.positions["wrote"]
    it.crash()
    for _ in range(turns):
        it.turn()
        save(it)
    it.crash()
    assert len(it.await_bodies(3, ms=50)) == 3
    it.send(Delay(1))
    it.await_bodies(4, ms=50)
    assert save(it) == it.broker.positions["wrote"] > wrote, "what is over is not looked for"


def test_what_comes_in_the_last_moment_before_a_stop_is_known_to_the_next_life(
    scene: Maker,
) -> None:
    it = scene()
    positions = it.broker.positions
    it.send(Delay(1))
    it.send(Delay(out_ms=it.now_ms + 900))
    it.until(lambda: positions["pending_delayed"] == 2, "both are known")
    it.actor._keeping._save_ms = 1 << 60  # nothing is saved before the stop
    it.until(lambda: len(it.queue()) == 2, "both", ms=50)
    assert positions["delivered"] == 0
    it.stop()
    assert (positions["delivered"], positions["pending_delayed"]) == (2, 0)
    it.start()
    assert len(it.await_bodies(2, ms=50)) == 2 == positions["delivered"]
