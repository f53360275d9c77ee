"""Which members are dead, in any order in which a coordinator hears of it: no sockets, no clock."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.actors.coordinator.membership import (
    CARRIED_GRACE_MS,
    GRACE_MS,
    ORDERLY_KEEP_MS,
    Membership,
)
from penstock.shared.wire.group_messages import Join

SESSION_MS = 15_000


@pytest.fixture
def join() -> Join:
    return Join(1, "g", "a", (), SESSION_MS, orderly=True)


def dead(members: Membership, now_ms: int) -> list[str]:
    return [member.client_id for member in members.dead(now_ms)]


def test_what_a_dead_connection_still_delivers_brings_nobody_back(join: Join) -> None:
    """ZeroMQ tells that a connection has ended before the last frames of it are read."""
    members = Membership()
    member = members.join(join, b"peer", 7, 1000, 1)
    members.lost(7, 2000)
    members.heard(member, 2001, b"peer")  # a claim that it sent before it was killed
    assert dead(members, 2000 + GRACE_MS) == ["a"]
    assert not members.keep_until(member), "an orderly one that was alive has ended"
    members.join(join, b"peer", -1, 2002, 1)  # and a join
    assert dead(members, 2000 + GRACE_MS) == ["a"]


def test_a_member_whose_join_is_read_after_its_end_is_soon_gone(join: Join) -> None:
    members = Membership()
    members.join(join, b"peer", -1, 1000, 1)
    assert dead(members, 1000 + GRACE_MS) == ["a"]


def test_a_member_that_comes_back_by_another_connection_stays(join: Join) -> None:
    members = Membership()
    member = members.join(join, b"peer", 7, 1000, 1)
    members.lost(7, 2000)
    members.heard(member, 2100, b"another")
    assert dead(members, 2000 + GRACE_MS) == []
    members.join(join, b"another", 8, 2200, 1)
    members.lost(7, 2300)
    assert dead(members, 2300 + GRACE_MS) == []
    members.lost(8, 3000)
    assert dead(members, 3000 + GRACE_MS) == ["a"]


def test_members_are_counted_over_all_groups_while_they_are_there(join: Join) -> None:
    members, counts = Membership(), []
    joined = [
        members.join(replace(join, group=group, client_id=client), b"peer", 7, 1000, 1)
        for group, client in (("g", "a"), ("g", "b"), ("h", "a"), ("g", "a"))
    ]
    counts.append(members.count)
    for member in joined[:3]:
        members.remove(member)
        counts.append(members.count)
    assert counts == [3, 2, 1, 0]


def test_a_members_time_runs_from_the_first_word_that_its_connection_has_ended(join: Join) -> None:
    members = Membership()
    members.join(join, b"peer", 7, 1000, 1)
    members.join(join, b"peer", -1, 2000, 1)  # a join that is read after the end
    members.lost(7, 2000 + GRACE_MS - 1)
    assert dead(members, 2000 + GRACE_MS) == ["a"]


def test_an_orderly_one_that_another_speaks_for_keeps_its_queues_when_that_one_is_killed(
    join: Join,
) -> None:
    """As a gateway does for RocketMQ's clients, which may be in the middle of a message."""
    members = Membership()
    member = members.join(replace(join, carried=True), b"gateway", 7, 1000, 1)
    members.lost(7, 2000)
    assert dead(members, 2000 + CARRIED_GRACE_MS) == ["a"]
    assert members.keep_until(member) == 1000 + ORDERLY_KEEP_MS
