"""Clocks: the system's own, and one that stands still until it is moved."""

from __future__ import annotations

import time

from penstock.shared.clock import ManualClock, SystemClock


def test_the_system_clock_counts_milliseconds_of_the_system() -> None:
    clock = SystemClock()
    before = time.time_ns(), time.monotonic_ns()
    now_ms, monotonic_ms = clock.now_ms(), clock.monotonic_ms()
    after = time.time_ns(), time.monotonic_ns()
    assert before[0] // 10**6 <= now_ms <= after[0] // 10**6
    assert before[1] // 10**6 <= monotonic_ms <= after[1] // 10**6


def test_a_manual_clock_moves_only_when_it_is_told_to() -> None:
    clock = ManualClock(5000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (5000, 0)
    clock.advance(30)
    assert (clock.now_ms(), clock.monotonic_ms()) == (5030, 30)
    clock.jump(-1000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (4030, 30), "a jump is of wall time alone"
