"""Retries: a failure puts the next try off, a success forgets it."""

from __future__ import annotations

from penstock.shared.clock import ManualClock
from penstock.shared.process.retry import RETRY_MS, Retry


def test_what_has_not_failed_waits_for_nothing() -> None:
    retry = Retry(ManualClock())
    assert not retry.waits and not retry.has_failed


def test_after_a_failure_the_next_try_waits_and_after_another_one_again() -> None:
    clock = ManualClock()
    retry = Retry(clock)
    for _ in range(2):
        retry.put_off()
        clock.advance(RETRY_MS - 1)
        assert retry.waits
        clock.advance(1)
        assert not retry.waits and retry.has_failed, "due, and not made yet"


def test_a_success_ends_it() -> None:
    retry = Retry(ManualClock())
    retry.put_off()
    retry.succeeded()
    assert not retry.waits and not retry.has_failed
