"""News of groups: to whom they go, and how often while nothing is heard."""

from __future__ import annotations

import pytest

from penstock.actors.coordinator.membership import Member, Membership
from penstock.actors.coordinator.notifications import (
    GATHER_MS,
    MOST_UNHEARD,
    Joining,
    Notifications,
)
from penstock.shared.wire.group_messages import Changed, HeldClaim, Join, SubscriptionData

NOW_MS = 10_000


class Groups:
    """Members by their names, each by a connection of its own, and what they are told."""

    def __init__(self) -> None:
        self.members = Membership()
        self.tell = Notifications(self.members, lambda topic: 4)

    def join(self, client: str, *topics: str, group: str = "g", now_ms: int = NOW_MS) -> Member:
        wanted = tuple(SubscriptionData(topic, "TAG", "*", 1) for topic in topics or ("orders",))
        request = Join(1, group, client, wanted, 15_000)
        peer = f"{group}/{client}".encode()
        member = self.members.join(request, peer, len(self.members.groups) + 1, now_ms, 1)
        member.told_version = member.group.version
        return member

    def changed(self, group: str, now_ms: int) -> None:
        self.members.change(self.members.groups[group])
        self.tell.changed(group, now_ms)

    def told(self, now_ms: int) -> list[tuple[list[bytes], Changed]]:
        return list(self.tell.due(now_ms))

    def peers(self, now_ms: int) -> list[bytes]:
        return [peer for peers, _ in self.told(now_ms) for peer in peers]


@pytest.fixture
def groups() -> Groups:
    return Groups()


def test_a_change_is_told_once_and_the_next_one_a_while_later(groups: Groups) -> None:
    groups.join("a")
    groups.join("b", "orders", "paid")
    groups.changed("g", NOW_MS)
    assert groups.tell.waits
    told = groups.told(NOW_MS)
    assert {tuple(peers): [each.topic for each in news.topics] for peers, news in told} == {
        (b"g/a",): ["orders"],
        (b"g/b",): ["orders", "paid"],
    }
    assert groups.told(NOW_MS) == [] and not groups.tell.waits
    groups.changed("g", NOW_MS + 1)
    groups.join("c", group="h")
    groups.changed("h", NOW_MS + 1)
    assert groups.peers(NOW_MS + GATHER_MS - 1) == [b"h/c"], "which waits for no other group"
    assert groups.tell.waits
    assert sorted(groups.peers(NOW_MS + GATHER_MS)) == [b"g/a", b"g/b"]
    groups.tell.changed("g", NOW_MS + 9 * GATHER_MS)
    assert groups.peers(NOW_MS + 9 * GATHER_MS) == [], "they know that version"


def test_a_member_that_knows_the_present_version_is_told_nothing(groups: Groups) -> None:
    groups.join("a")
    groups.join("b")
    for group in ("g", "gone"):
        groups.tell.changed(group, NOW_MS)
    groups.join("c", group="h")
    groups.changed("h", NOW_MS)
    assert groups.peers(NOW_MS) == [b"g/a", b"h/c"], "b has come last, and knows both"


def test_a_member_that_says_nothing_is_told_only_so_often(groups: Groups) -> None:
    member, now_ms = groups.join("a"), NOW_MS

    def change() -> list[bytes]:
        """The peers that are told of it, a second later."""
        nonlocal now_ms
        groups.changed("g", now_ms)
        now_ms += 1000
        return groups.peers(now_ms)

    for _ in range(MOST_UNHEARD):
        assert change() == [b"g/a"]
    assert change() == []
    member.waits_for = {"orders"}
    groups.tell.freed("g", [("orders", 0)])
    assert groups.peers(now_ms) == [] and member.waits_for == {"orders"}
    groups.members.heard(member, now_ms, b"g/a")
    assert change() == [b"g/a"]


def test_a_queue_that_comes_free_is_told_once_to_those_that_wait_for_its_topic(
    groups: Groups,
) -> None:
    waits, other, content = (groups.join(name) for name in "abc")
    waits.waits_for, other.waits_for = {"orders", "paid"}, {"paid"}
    groups.tell.freed("g", [])
    groups.tell.freed("gone", [("orders", 0)])
    assert groups.told(NOW_MS) == []
    groups.tell.freed("g", [("orders", 0), ("orders", 1)])
    groups.tell.freed("g", [("bills", 0)])
    ((peers, news),) = groups.told(NOW_MS)
    assert peers == [b"g/a"] and news.version == waits.group.version
    assert (waits.waits_for, other.waits_for, content.waits_for) == ({"paid"}, {"paid"}, set())
    groups.tell.freed("g", [("orders", 0)])
    assert groups.told(NOW_MS) == []


def test_a_queue_that_comes_free_is_told_though_its_group_has_news_for_others_alone(
    groups: Groups,
) -> None:
    groups.join("a")
    waits = groups.join("b")  # it knows itself, and a does not know it yet
    waits.waits_for = {"orders"}
    groups.tell.changed("g", NOW_MS)
    groups.tell.freed("g", [("orders", 0)])
    assert groups.peers(NOW_MS) == [b"g/a", b"g/b"]


def test_a_reset_is_told_at_once_with_all_claims_of_the_owner_in_one(groups: Groups) -> None:
    groups.join("a")
    held = [HeldClaim("orders", number, 9) for number in range(2)]
    for claim in held:
        groups.tell.reset("g", "a", claim)
    groups.tell.reset("g", "gone", held[0])
    assert groups.told(NOW_MS) == [([b"g/a"], Changed(0, "g", tuple(held)))]
    assert groups.told(NOW_MS) == []


def test_those_that_join_are_answered_when_their_group_is_told_or_at_once_if_nothing_can_be(
    groups: Groups,
) -> None:
    first, gone, other = groups.join("a"), groups.join("b"), groups.join("c", group="h")
    for member in (first, gone, other):
        groups.tell.joined(Joining(member, 1, ()))
    assert groups.tell.waits
    groups.members.remove(gone)
    for number in range(400):
        groups.tell.changed(f"others-{number}", NOW_MS)
    groups.tell.changed("g", NOW_MS)
    assert [each.member for each in groups.tell.welcomed(NOW_MS + 99, False)] == [other]
    assert [each.member for each in groups.tell.welcomed(NOW_MS + 100, False)] == [first]
    assert first.told_version == first.group.version
    groups.tell.joined(Joining(first, 2, ()))
    assert [each.request for each in groups.tell.welcomed(NOW_MS, True)] == [2]
    assert not list(groups.tell.welcomed(NOW_MS, True))
