"""How long news of groups is gathered."""

from __future__ import annotations

import pytest

from penstock.actors.coordinator.membership import Membership
from penstock.actors.coordinator.notifications import (
    CHANGES_PER_MS,
    MOST_HELD_MS,
    WINDOW_MS,
    Notifications,
)
from penstock.shared.wire.group_messages import Join, SubscriptionData


def made(changes: int) -> Notifications:
    """A group "g" of one member, and this many other groups that changed in a window of time."""
    members = Membership()
    told = Notifications(members, lambda topic: 1)
    for number in range(changes):
        told.changed(f"others-{number}", WINDOW_MS)
    assert not list(told.due(WINDOW_MS + MOST_HELD_MS)), "groups without members"
    subscription = SubscriptionData("orders", "TAG", "*", 1)
    members.join(Join(1, "g", "a", (subscription,), 15_000), b"peer", 1, WINDOW_MS, 1)
    return told


@pytest.mark.parametrize(
    ("later_ms", "held_ms"),
    [
        (0, 100),
        (WINDOW_MS - 1, 100),
        (WINDOW_MS, 100),
        (2 * WINDOW_MS - 1, 100),
        (2 * WINDOW_MS, 0),
    ],
)
def test_a_change_waits_for_as_long_as_the_many_of_the_window_before_ask(
    later_ms: int, held_ms: int
) -> None:
    told = made(100 * CHANGES_PER_MS)
    now_ms = WINDOW_MS + later_ms
    told.changed("g", now_ms)
    assert not held_ms or not list(told.due(now_ms + held_ms - 1))
    ((peers, _),) = told.due(now_ms + held_ms)
    assert peers == [b"peer"]


@pytest.mark.parametrize(
    ("held_ms", "again_ms", "until_ms"), [(100, 60, 160), (900, 800, MOST_HELD_MS)]
)
def test_another_change_has_its_group_wait_again_but_no_longer_than_a_second_in_all(
    held_ms: int, again_ms: int, until_ms: int
) -> None:
    told = made(held_ms * CHANGES_PER_MS)
    for later_ms in (0, again_ms):
        told.changed("g", WINDOW_MS + later_ms)
    assert not list(told.due(WINDOW_MS + until_ms - 1))
    assert list(told.due(WINDOW_MS + until_ms))


def test_of_two_windows_the_one_with_more_changes_counts_and_not_both_together() -> None:
    told, now_ms = made(100 * CHANGES_PER_MS), 2 * WINDOW_MS
    for number in range(100 * CHANGES_PER_MS):
        told.changed(f"others-{number}", now_ms)
    told.changed("g", now_ms)
    assert list(told.due(now_ms + 100))
