"""One member's words to the coordinator, where the model of a whole group does not look."""

from __future__ import annotations

from penstock.client.core.groups.membership import REPEAT_MS, MemberOptions, Membership
from penstock.client.core.groups.strategies import Averagely
from penstock.shared.wire import group_messages as wire
from penstock.shared.wire import messages
from penstock.shared.wire.messages import encode


def member() -> Membership:
    subscription = wire.SubscriptionData("orders", "TAG", "*", 1)
    return Membership(MemberOptions("g", "a", (subscription,), Averagely(), 15_000))


def asked(membership: Membership, now_ms: int) -> list[wire.GroupRequest]:
    return [wire.decode_group_request(parts[0]) for parts in membership.outgoing(now_ms)]


def joined(membership: Membership, now_ms: int, queues: int = 1) -> None:
    (join,) = [each for each in asked(membership, now_ms) if isinstance(each, wire.Join)]
    topics = (wire.TopicQueues("orders", queues),)
    answer = wire.Joined(join.request, "g", 1, ("a",), topics, 5000, "b", 16, 1, 900_000)
    membership.received([encode(answer)], now_ms)


def test_what_is_not_answered_is_asked_again_and_not_sooner() -> None:
    membership = member()
    (first,) = asked(membership, 1000)
    assert asked(membership, 1000 + REPEAT_MS - 1) == []
    assert asked(membership, 1000 + REPEAT_MS) == [first]


def test_a_join_names_the_run_to_which_the_broker_has_moved() -> None:
    membership = member()
    membership.aim.run = "old"
    (first,) = asked(membership, 1000)
    membership.aim.run = "new"
    (again,) = asked(membership, 1000 + REPEAT_MS)
    assert isinstance(first, wire.Join) and isinstance(again, wire.Join)
    assert (first.run, again.run) == ("old", "new")
    assert first.request == again.request


def test_a_lost_connection_is_answered_with_a_join() -> None:
    membership = member()
    joined(membership, 1000)
    assert not [each for each in asked(membership, 1100) if isinstance(each, wire.Join)]
    membership.connection_lost()
    assert [each for each in asked(membership, 1200) if isinstance(each, wire.Join)]


def test_an_unknown_member_joins_before_it_commits_again() -> None:
    membership = member()
    joined(membership, 1000)
    (claim,) = [each for each in asked(membership, 1000) if isinstance(each, wire.Claim)]
    given = wire.Claimed(claim.request, "g", "orders", (wire.ClaimedQueue(0, 5, 9),), ())
    membership.received([encode(given)], 1001)
    assert membership.take_gained() == {("orders", 0): 5}
    membership.commit({("orders", 0): 7})
    (commit,) = asked(membership, 1002)
    told = commit.request, 0, "UNKNOWN_MEMBER", "the group has no such member", "a", "join again"
    membership.received([encode(messages.Refused(*told))], 1003)
    (join,) = asked(membership, 2000)
    assert isinstance(join, wire.Join)
    assert join.held == (wire.HeldClaim("orders", 0, 9),)
    answer = wire.Joined(
        join.request, "g", 2, ("a",), (wire.TopicQueues("orders", 1),), 5000, "b", 16, 1, 900_000
    )
    membership.received([encode(answer)], 2001)
    assert commit in asked(membership, 2002)


def test_the_lease_counts_from_when_the_answered_join_was_first_sent() -> None:
    membership = member()
    assert membership.lease_ends_ms < 0
    asked(membership, 1000)
    (again,) = asked(membership, 3000)
    topics = (wire.TopicQueues("orders", 0),)
    answer = wire.Joined(again.request, "g", 1, ("a",), topics, 5000, "b", 16, 1, 900_000)
    membership.received([encode(answer)], 3500)
    assert membership.lease_ends_ms == 1000 + 15_000


def test_a_claim_that_is_not_wanted_any_more_is_released() -> None:
    membership = member()
    joined(membership, 1000)
    (claim,) = [each for each in asked(membership, 1000) if isinstance(each, wire.Claim)]
    membership.assign({"orders": frozenset()})
    given = wire.Claimed(claim.request, "g", "orders", (wire.ClaimedQueue(0, 5, 9),), ())
    membership.received([encode(given)], 1001)
    assert membership.take_gained() == {}
    (release,) = asked(membership, 1002)
    assert isinstance(release, wire.Release)
    assert release.commits == (wire.QueueCommit("orders", 0, -1, 9),)
