"""What a member says of its claims, and what it does without any."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.client.core.groups.member_options import MemberOptions
from penstock.client.core.groups.membership import ORDERLY_LEASE_MS, Membership
from penstock.client.core.groups.strategies import Averagely
from penstock.shared.wire import group_messages as wire
from penstock.shared.wire import messages
from penstock.shared.wire.messages import encode


def member(**options: Any) -> Membership:
    subscription = wire.SubscriptionData("orders", "TAG", "*", 1)
    return Membership(MemberOptions("g", "a", (subscription,), Averagely(), 15_000, **options))


def asked(membership: Membership, now_ms: int) -> list[wire.GroupRequest]:
    return [wire.decode_group_request(parts[0]) for parts in membership.outgoing(now_ms)]


def join(membership: Membership, queues: int) -> list[wire.GroupRequest]:
    """It joins at 1000 ms. What it asks then."""
    (request,) = asked(membership, 1000)
    topics = (wire.TopicQueues("orders", queues),)
    answer = wire.Joined(request.request, "g", 1, ("a",), topics, 5000, "b", 16, 1, 900_000)
    membership.received([encode(answer)], 1000)
    return asked(membership, 1000)


def joined_with_a_claim(queues: int) -> Membership:
    """A member that has been given queue 0, with epoch 9."""
    membership = member()
    (claim,) = join(membership, queues)
    given = wire.Claimed(claim.request, "g", "orders", (wire.ClaimedQueue(0, 5, 9),), ())
    membership.received([encode(given)], 1001)
    assert membership.take_gained() == {("orders", 0): 5}
    return membership


@pytest.mark.parametrize(("orderly", "lease_ms"), [(False, 15_000), (True, ORDERLY_LEASE_MS)])
def test_an_orderly_member_works_on_for_longer(orderly: bool, lease_ms: int) -> None:
    membership = member(orderly=orderly)
    join(membership, 1)
    assert membership.lease_ends_ms == 1000 + lease_ms


def test_a_member_that_broadcasts_claims_nothing() -> None:
    membership = member(model="broadcasting")
    assert join(membership, 3) == [] and len(membership.wanted) == 3


def test_a_heartbeat_says_how_many_queues_the_member_has() -> None:
    membership = joined_with_a_claim(queues=2)
    (beat,) = [each for each in asked(membership, 6000) if isinstance(each, wire.Beat)]
    assert (beat.version, beat.claims) == (1, 1)


def test_a_claim_that_a_commit_finds_lost_is_lost() -> None:
    membership = joined_with_a_claim(queues=1)
    membership.commit({("orders", 0): 7})
    (commit,) = asked(membership, 1002)
    lost = (wire.HeldClaim("orders", 0, 9),)
    membership.received([encode(wire.Committed(commit.request, "g", lost))], 1003)
    assert membership.take_lost() == [("orders", 0)] and membership.claims == {}
    assert membership.committed == {("orders", 0): 5}, "that of the claim"


def test_a_member_that_is_not_known_any_more_may_leave() -> None:
    membership = joined_with_a_claim(queues=1)
    membership.commit({("orders", 0): 7})
    (commit,) = asked(membership, 1002)
    told = commit.request, 0, "UNKNOWN_MEMBER", "the group has no such member", "a", "join again"
    membership.received([encode(messages.Refused(*told))], 1003)
    membership.leave()
    assert [type(each) for each in asked(membership, 1004)] == [wire.Leave]


def test_a_member_that_cannot_send_looks_for_its_broker() -> None:
    membership = member()
    assert not membership.aim.away
    membership.not_connected(1000)
    assert membership.aim.away
