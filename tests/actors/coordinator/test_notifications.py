"""How long news of groups is gathered."""

from __future__ import annotations

import pytest

from penstock.actors.coordinator.membership import Membership
from penstock.actors.coordinator.notifications import CHANGES_PER_MS, WINDOW_MS, Notifications
from penstock.shared.wire.group_messages import Join, SubscriptionData


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
    members = Membership()
    told = Notifications(members, lambda topic: 1)
    for number in range(100 * CHANGES_PER_MS):
        told.changed(f"others-{number}", WINDOW_MS)
    assert not list(told.due(WINDOW_MS)), "groups without members"
    now_ms = WINDOW_MS + later_ms
    subscription = SubscriptionData("orders", "TAG", "*", 1)
    members.join(Join(1, "g", "a", (subscription,), 15_000), b"peer", 1, now_ms, 1)
    members.groups["g"].version = 2
    told.changed("g", now_ms)
    assert not held_ms or not list(told.due(now_ms + held_ms - 1))
    ((peers, _),) = told.due(now_ms + held_ms)
    assert peers == [b"peer"]
