"""The members of groups by themselves: what each word and each loss changes, and when one is dead.
The times are the test's."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.actors.coordinator.membership import (
    CARRIED_GRACE_MS,
    GRACE_MS,
    LOOK_MS,
    ORDERLY_KEEP_MS,
    Member,
    Membership,
    return_ms,
    size_of,
)
from penstock.shared.errors import InvalidArgument
from penstock.shared.progress.group_journal import Gone
from penstock.shared.wire.group_messages import Join, SubscriptionData

SESSION_MS = 10_000


def join(
    members: Membership,
    client: str = "a",
    *,
    topics: str = "t",
    tag: str = "*",
    peer: bytes = b"1",
    connection: int = 5,
    now_ms: int = 100,
    **more: Any,
) -> Member:
    wanted = tuple(SubscriptionData(topic, "TAG", tag, 1) for topic in topics)
    asked = Join(1, "g", client, wanted, SESSION_MS, **more)
    return members.join(asked, peer, connection, now_ms, 1000)


def dead(members: Membership, now_ms: int) -> list[str]:
    return [member.client_id for member in members.dead(now_ms)]


@pytest.mark.parametrize(
    ("again", "is_changed", "is_noted"),
    [
        ({}, False, False),
        ({"tag": "x"}, False, True),
        ({"topics": "tu"}, True, True),
        ({"topics": "u"}, True, True),
        ({"orderly": True}, False, True),
        ({"parting": True}, True, False),
        ({"peer": b"2", "connection": 6}, False, False),
    ],
)
def test_a_group_is_another_when_its_members_or_their_topics_are(
    again: dict[str, Any], is_changed: bool, is_noted: bool
) -> None:
    members = Membership()
    member = join(members)
    assert (member.group.version, members.take_changed()) == (1001, {"g"})
    assert members.changes() == [member.row]
    assert join(members, **again) is member
    assert member.group.version == 1001 + is_changed
    assert members.take_changed() == ({"g"} if is_changed else set())
    assert members.changes() == ([member.row] if is_noted else [])
    assert members.count == 1 and members.take_changed() == set()


def test_members_that_part_divide_no_queues_and_those_that_go_are_none() -> None:
    members = Membership()
    for client in ("b", "a", "c"):
        join(members, client)
    group = members.groups["g"]
    assert (group.ids, members.count, group.version) == (("a", "b", "c"), 3, 1003)
    join(members, "b", parting=True)
    assert (group.ids, members.count) == (("a", "c"), 3)
    join(members, "b")
    assert group.ids == ("a", "b", "c")
    for left, client in ((2, "b"), (1, "a"), (0, "c")):
        members.remove(group.members[client])
        assert members.count == left == len(group.ids)
        assert members.member("g", client) is None
    assert not members.groups and list(members.rows()) == []


def test_what_is_asked_of_the_members_of_groups() -> None:
    members = Membership()
    join(members, "a", topics="tu", model="broadcasting")
    assert [each.name for each in members.subscribed(["u", "v"])] == ["g"]
    assert list(members.subscribed(["v"])) == []
    assert members.model("g", "b") == "broadcasting"
    assert members.model("g", "a") is None and members.model("h", "a") is None
    assert size_of([SubscriptionData("topic", "TAG", "a || b", 1)]) == 5 + 3 + 6
    assert size_of([]) == 0


@pytest.mark.parametrize(
    ("first", "second", "is_lost", "is_refused"),
    [
        ("one", "two", False, True),
        ("one", "two", True, False),
        ("one", "one", False, False),
        ("", "two", False, False),
        ("one", "", False, False),
    ],
)
def test_a_name_is_one_process_s_while_that_is_connected(
    first: str, second: str, is_lost: bool, is_refused: bool
) -> None:
    members = Membership()
    member = join(members, instance=first)
    assert not member.is_anothers(b"1") and member.is_anothers(b"2") == (first != "")
    if is_lost:
        members.lost(5, 200)
        assert not member.is_anothers(b"2")
    if is_refused:
        with pytest.raises(InvalidArgument, match="another process"):
            join(members, instance=second, peer=b"2", connection=6)
        assert (member.instance, member.peer) == (first, b"1")
    else:
        join(members, instance=second, peer=b"2", connection=6)
        assert (member.instance, member.peer, member.connection) == (second, b"2", 6)


@pytest.mark.parametrize(("carried", "grace_ms"), [(False, GRACE_MS), (True, CARRIED_GRACE_MS)])
def test_one_whose_connection_has_ended_is_dead_after_its_grace(
    carried: bool, grace_ms: int
) -> None:
    members = Membership()
    join(members, "a", carried=carried)
    join(members, "b", connection=6)
    members.lost(99, 150)
    members.lost(5, 200)
    # the session of the other one is not over in the time that is looked at
    assert dead(members, 199 + min(grace_ms, 9000)) == []
    found = [member.client_id for member in members.dead(200 + grace_ms) if member.gone_ms >= 0]
    assert found == ["a"]
    (late,) = (each for each in members.groups["g"].members.values() if each.gone_ms >= 0)
    members.heard(late, 300, b"1")
    assert late.gone_ms == 200, "what that connection has left brings nobody back"
    members.heard(late, 300, b"2")
    assert late.gone_ms == -1 and late.seen_ms == 300
    assert "a" not in dead(members, 300 + SESSION_MS)


def test_one_that_says_nothing_is_dead_after_its_session_and_looked_for_now_and_then() -> None:
    members = Membership()
    join(members, "b", now_ms=100)
    join(members, "a", now_ms=100, connection=6)
    join(members, "c", now_ms=200, connection=7)
    assert dead(members, 100 + SESSION_MS) == []
    assert dead(members, 100 + SESSION_MS + LOOK_MS - 1) == [], "it has just been looked"
    assert dead(members, 100 + SESSION_MS + LOOK_MS) == ["a", "b", "c"]
    members.heard(members.groups["g"].members["a"], 9000 + SESSION_MS, b"1")
    assert dead(members, 100 + SESSION_MS + 2 * LOOK_MS) == ["b", "c"]


def test_a_member_without_a_connection_when_it_joins_has_lost_it() -> None:
    members = Membership()
    member = join(members, connection=-1, now_ms=100)
    assert (member.connection, member.gone_ms) == (-1, 100)
    assert dead(members, 99 + GRACE_MS) == [] and dead(members, 100 + GRACE_MS) == ["a"]
    join(members, connection=-1, now_ms=300)
    assert member.gone_ms == 100, "its time does not begin again"
    join(members, connection=7, peer=b"2", now_ms=400)
    assert member.gone_ms == -1 and dead(members, 400 + GRACE_MS) == []


@pytest.mark.parametrize(
    ("orderly", "carried", "gone_ms", "kept_until_ms"),
    [
        (False, False, -1, 0),
        (True, False, -1, 100 + ORDERLY_KEEP_MS),
        (True, False, 100, 0),
        (True, False, 100 + SESSION_MS, 0),
        (True, False, 101 + SESSION_MS, 100 + ORDERLY_KEEP_MS),
        (True, True, 100, 100 + ORDERLY_KEEP_MS),
        (False, True, 100, 0),
    ],
)
def test_an_orderly_member_keeps_its_queues_through_a_silence_and_not_over_its_end(
    orderly: bool, carried: bool, gone_ms: int, kept_until_ms: int
) -> None:
    members = Membership()
    member = join(members, now_ms=100, orderly=orderly, carried=carried)
    if gone_ms >= 0:
        members.lost(5, gone_ms)
    assert members.keep_until(member) == kept_until_ms


def test_queues_that_are_kept_are_so_until_their_time_or_until_their_member_is_back() -> None:
    members = Membership()
    members.keep("g", "a", 500)
    members.keep("g", "b", 600)
    kept = [Gone("g", "a", 500), Gone("g", "b", 600)]
    assert members.changes() == kept == list(members.rows())
    assert members.keeps_over(499) == []
    assert members.keeps_over(500) == [("g", "a")] and members.keeps_over(500) == []
    join(members, "b")
    assert members.keeps_over(9999) == []


def test_a_member_of_the_coordinator_before_is_unheard_until_it_is_heard() -> None:
    members, before = Membership(), join(Membership())
    members.restore(before.row, 700, 300, 2000)
    member = members.groups["g"].members["a"]
    assert (member.row.unheard_ms, member.silent_after_ms, member.gone_ms) == (700, 300, -1)
    assert dead(members, 1000) == [] and dead(members, 1001 + LOOK_MS) == ["a"]
    again = Membership()
    again.restore(member.row, 800, 300, 3000)
    assert again.groups["g"].members["a"].row.unheard_ms == 700, "the first time counts"
    members.changes()
    member.told_unheard = 3
    members.heard(member, 900, b"2")
    assert (member.row.unheard_ms, member.told_unheard) == (0, 0)
    assert members.changes() == [member.row]
    members.heard(member, 901, b"2")
    assert members.changes() == []


@pytest.mark.parametrize(
    ("more", "heartbeat_ms", "expected_ms"),
    [
        ({}, 0, SESSION_MS),
        ({}, 1000, 2000),
        ({}, 9000, SESSION_MS),
        ({"orderly": True}, 1000, SESSION_MS),
        ({"carried": True}, 1000, min(SESSION_MS, CARRIED_GRACE_MS)),
    ],
)
def test_a_member_has_two_heartbeats_to_return_and_no_longer_than_its_session(
    more: dict[str, Any], heartbeat_ms: int, expected_ms: int
) -> None:
    assert return_ms(join(Membership(), **more).row, heartbeat_ms) == expected_ms


def test_only_the_connection_that_a_member_has_now_takes_it_along() -> None:
    members = Membership()
    member, other = join(members), join(members, "b")
    join(members, peer=b"2", connection=6)
    members.lost(5, 200)
    assert (member.gone_ms, other.gone_ms) == (-1, 200)
    members.lost(6, 300)
    assert (member.gone_ms, member.connection) == (300, -1)
    back = join(members, connection=7, peer=b"3", now_ms=350)
    members.changes()
    for each in (back, other):
        members.remove(each)
    assert members.changes() == [Gone("g", "a"), Gone("g", "b")]
    members.lost(7, 400)
    assert dead(members, 99_999) == [], "who has been removed dies no second time"
    assert not members._by_connection


def test_descriptor_0_is_a_connection_and_so_are_two_members_of_one() -> None:
    members = Membership()
    one, two = (join(members, client, connection=0, instance=client) for client in "ab")
    assert one.gone_ms == -1 and one.is_anothers(b"2")
    with pytest.raises(InvalidArgument):
        join(members, instance="x", connection=8, peer=b"2")
    members.remove(one)
    members.lost(0, 200)
    assert two.gone_ms == 200


def test_the_session_is_what_the_member_said_last() -> None:
    members, before = Membership(), join(Membership())
    members.restore(before.row, 100, 300, 1)
    member = join(members, now_ms=200)
    assert member.silent_after_ms == SESSION_MS and dead(members, 600) == []
    assert member.told_version == member.told_unheard == member.group.tell_ms == 0


def test_members_that_want_different_things_are_told_once_in_a_groups_life(
    caplog: pytest.LogCaptureFixture,
) -> None:
    members = Membership()
    for client, tag in (("a", "x"), ("b", "x")):
        join(members, client, tag=tag)
    join(members, "a", tag="x")
    assert caplog.records == []
    join(members, "b", tag="y")
    assert len(caplog.records) == 1 and "a to t (x) and b to t (y)" in caplog.text
    for tag in ("x", "z"):
        join(members, "b", tag=tag)
    assert len(caplog.records) == 1


def test_members_that_want_the_same_in_another_order_want_nothing_different(
    caplog: pytest.LogCaptureFixture,
) -> None:
    members = Membership()
    join(members, "a", topics="tu")
    join(members, "b", topics="ut")
    assert caplog.records == []


def test_one_member_with_the_topic_is_enough() -> None:
    members = Membership()
    for client, topics in (("a", "t"), ("b", "u")):
        join(members, client, topics=topics)
    assert [each.name for each in members.subscribed("u")] == ["g"]
