"""How long an actor sleeps: short while something happens, and long when nothing does."""

from __future__ import annotations

import pytest

from penstock.shared.process.doorbells import (
    QUIET_AFTER_MS,
    QUIET_AFTER_WORK_MS,
    QUIET_TICK_MS,
    TICK_MS,
    Ticks,
)

NOW_MS = 1_000_000


def test_ticks_are_long_when_nothing_has_happened_for_a_while() -> None:
    ticks = Ticks(stall_timeout_ms=10_000)
    assert ticks.most_ms(NOW_MS) == QUIET_TICK_MS
    ticks.note(NOW_MS, True)
    assert ticks.most_ms(NOW_MS) == ticks.most_ms(NOW_MS + QUIET_AFTER_MS - 1) == TICK_MS
    assert ticks.most_ms(NOW_MS + QUIET_AFTER_MS) == QUIET_TICK_MS


def test_work_that_no_bell_has_told_of_keeps_ticks_short_for_less_long_and_ends_no_bells_time() -> (
    None
):
    ticks = Ticks(stall_timeout_ms=10_000)
    ticks.note(NOW_MS, False)
    assert ticks.most_ms(NOW_MS + QUIET_AFTER_WORK_MS - 1) == TICK_MS
    assert ticks.most_ms(NOW_MS + QUIET_AFTER_WORK_MS) == QUIET_TICK_MS - QUIET_AFTER_WORK_MS
    ticks.note(NOW_MS, True)
    ticks.note(NOW_MS + 1, False)
    assert ticks.most_ms(NOW_MS + QUIET_AFTER_MS - 1) == TICK_MS


def test_actors_that_have_nothing_to_do_look_at_the_same_instants() -> None:
    ticks = Ticks(stall_timeout_ms=10_000)
    for late_ms in (0, 1, 499, 999):
        assert ticks.most_ms(NOW_MS + late_ms) == QUIET_TICK_MS - late_ms


@pytest.mark.parametrize("stall_timeout_ms", [1, 3, 100, 399, 400, 1999, 2000])
def test_no_sleep_is_as_long_as_what_is_taken_for_a_stall(stall_timeout_ms: int) -> None:
    ticks = Ticks(stall_timeout_ms)
    quiet_ms = max(map(ticks.most_ms, range(NOW_MS, NOW_MS + QUIET_TICK_MS)))
    ticks.note(NOW_MS, True)
    assert 1 <= ticks.most_ms(NOW_MS) <= min(TICK_MS, quiet_ms)
    assert quiet_ms <= max(1, stall_timeout_ms // 4)
