"""One member's words to the coordinator, where the model of a whole group does not look."""

from __future__ import annotations

import pytest

from penstock.client.core.groups import membership as core
from penstock.client.core.groups.asked import MAX_REPEAT_MS, NOT_SENT_MS, REPEAT_MS
from penstock.client.core.groups.member_options import MemberOptions
from penstock.client.core.groups.membership import Membership
from penstock.client.core.groups.strategies import Averagely
from penstock.shared.errors import (
    NoPermission,
    PenstockError,
    StoreUnavailable,
    UnknownMember,
    WrongStore,
)
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


@pytest.mark.parametrize("first_ms", [0, 1000])
def test_the_lease_counts_from_when_the_answered_join_was_first_sent(first_ms: int) -> None:
    membership = member()
    assert membership.lease_ends_ms < 0
    asked(membership, first_ms)
    (again,) = asked(membership, first_ms + 2000)
    topics = (wire.TopicQueues("orders", 0),)
    answer = wire.Joined(again.request, "g", 1, ("a",), topics, 5000, "b", 16, 1, 900_000)
    membership.received([encode(answer)], first_ms + 2500)
    assert membership.lease_ends_ms == first_ms + 15_000


def test_what_could_not_be_sent_is_tried_again_soon_and_not_at_once() -> None:
    membership = member()
    (join,) = asked(membership, 1000)
    membership.not_connected(1000)
    assert membership.wait_ms(1000) == NOT_SENT_MS
    assert asked(membership, 1000 + NOT_SENT_MS - 1) == []
    assert asked(membership, 1000 + NOT_SENT_MS) == [join]


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


def claimed(membership: Membership, epoch: int) -> wire.Claim:
    """The member asks for its queue, and is given it."""
    joined(membership, 1000)
    (claim,) = [each for each in asked(membership, 1000) if isinstance(each, wire.Claim)]
    given = wire.Claimed(claim.request, "g", "orders", (wire.ClaimedQueue(0, 5, epoch),), ())
    membership.received([encode(given)], 1001)
    assert membership.take_gained() == {("orders", 0): 5}
    return claim


def test_a_lost_connection_has_everything_asked_again_by_the_next_one() -> None:
    membership = member()
    claimed(membership, 9)
    membership.commit({("orders", 0): 7})
    (commit,) = asked(membership, 1002)
    assert asked(membership, 1003) == []
    membership.connection_lost()
    assert commit in asked(membership, 1004)


def test_a_queue_that_a_second_copy_of_a_claim_has_given_is_given_up() -> None:
    membership = member()
    claim = claimed(membership, 9)
    membership.assign({"orders": frozenset()})
    membership.release({("orders", 0): 7})
    (release,) = asked(membership, 1002)
    membership.received([encode(wire.Released(release.request, "g"))], 1003)
    second = wire.Claimed(claim.request, "g", "orders", (wire.ClaimedQueue(0, 7, 12),), ())
    membership.received([encode(second)], 1004)
    assert membership.claims == {} and membership.take_gained() == {}
    (declined,) = asked(membership, 1005)
    assert isinstance(declined, wire.Release)
    assert declined.commits == (wire.QueueCommit("orders", 0, -1, 12),)
    membership.received([encode(second)], 1006)
    assert asked(membership, 1007) == [], "once is enough"


def test_a_claim_that_was_given_up_is_not_believed_again() -> None:
    membership = member()
    claimed(membership, 9)
    membership.release({("orders", 0): 7})
    (claim,) = [each for each in asked(membership, 2000) if isinstance(each, wire.Claim)]
    late = wire.Claimed(claim.request, "g", "orders", (wire.ClaimedQueue(0, 5, 9),), ())
    membership.received([encode(late)], 2001)
    assert membership.claims == {} and membership.take_gained() == {}


def test_of_an_answer_that_names_a_claim_that_was_given_up_the_others_are_had() -> None:
    membership = member()
    joined(membership, 1000, 3)
    (claim,) = [each for each in asked(membership, 1000) if isinstance(each, wire.Claim)]
    first = wire.Claimed(claim.request, "g", "orders", (wire.ClaimedQueue(0, 5, 9),), ())
    membership.received([encode(first)], 1001)
    membership.release({("orders", 0): 7})
    claim = [each for each in asked(membership, 2000) if isinstance(each, wire.Claim)][0]
    queues = tuple(wire.ClaimedQueue(number, 5, 9) for number in range(3))
    membership.received([encode(wire.Claimed(claim.request, "g", "orders", queues, ()))], 2001)
    assert membership.claims == {("orders", 1): 9, ("orders", 2): 9}


def test_who_joins_again_gives_up_the_claims_that_somebody_else_has_by_now() -> None:
    membership = member()
    joined(membership, 1000, queues=3)
    (claim,) = [each for each in asked(membership, 1000) if isinstance(each, wire.Claim)]
    queues = tuple(wire.ClaimedQueue(queue, 5, 9 + queue) for queue in range(3))
    membership.received([encode(wire.Claimed(claim.request, "g", "orders", queues, ()))], 1001)
    membership.take_gained()
    membership.connection_lost()
    (join,) = [each for each in asked(membership, 1002) if isinstance(each, wire.Join)]
    held = tuple(wire.HeldClaim("orders", queue, 9 + queue) for queue in range(3))
    assert {*join.held} == {*held}
    topics = (wire.TopicQueues("orders", 3),)
    # of the last one it has another claim than the one that is lost
    lost = held[0], wire.HeldClaim("orders", 2, 9)
    answer = wire.Joined(join.request, "g", 1, ("a",), topics, 5000, "b", 16, 1, 900_000, lost=lost)
    membership.received([encode(answer)], 1003)
    assert membership.claims == {("orders", 1): 10, ("orders", 2): 11}
    assert membership.take_lost() == [("orders", 0)]
    (again,) = [each for each in asked(membership, 1003) if isinstance(each, wire.Claim)]
    assert again.queue_ids == (0,), "it may have it again"


def test_an_offset_of_a_claim_that_was_lost_does_not_count_as_committed() -> None:
    for kind in (wire.Committed, wire.Released):
        membership = member()
        claimed(membership, 9)
        if kind is wire.Committed:
            membership.commit({("orders", 0): 7})
        else:
            membership.release({("orders", 0): 7})
        (said,) = [
            each for each in asked(membership, 1002) if isinstance(each, wire.Commit | wire.Release)
        ]
        lost = (wire.HeldClaim("orders", 0, 9),)
        membership.received([encode(kind(said.request, "g", lost))], 1003)
        assert membership.committed == {("orders", 0): 5}, "as the claim said"


def test_what_was_said_of_a_queue_before_a_seek_is_no_news_when_it_is_answered() -> None:
    membership = member()
    claimed(membership, 9)
    membership.commit({("orders", 0): 7})
    (commit,) = asked(membership, 1002)
    membership.begin_again(("orders", 0))
    membership.received([encode(wire.Committed(commit.request, "g", ()))], 1003)
    assert membership.committed == {}
    membership.commit({("orders", 0): 2})
    (commit,) = asked(membership, 1004)
    membership.received([encode(wire.Committed(commit.request, "g", ()))], 1005)
    assert membership.committed == {("orders", 0): 2}


def test_a_member_of_a_group_that_is_switched_off_gives_its_queues_back_until_it_is_on_again() -> (
    None
):
    membership = member()
    claimed(membership, 9)
    membership.connection_lost()
    (join,) = [each for each in asked(membership, 2000) if isinstance(each, wire.Join)]
    told = join.request, 0, "NO_PERMISSION", "consuming is switched off", "g", ""
    membership.received([encode(messages.Refused(*told))], 2001)
    assert membership.refused is None, "its program waits, as it does where there is no message"
    assert membership.revoked == [("orders", 0)]
    # neither news of the group nor the program's wish make it claim anything
    news = wire.Changed(0, "g", (), 7, ("a",), (wire.TopicQueues("orders", 1),))
    membership.received([encode(news)], 2002)
    membership.assign({"orders": frozenset({0})})
    membership.release({("orders", 0): 6})
    said = asked(membership, 2003)
    assert [type(each) for each in said] == [wire.Release]
    assert asked(membership, 2001 + core.OFF_AGAIN_MS - 1) == []
    membership.assign(None)
    joined(membership, 2001 + core.OFF_AGAIN_MS)
    assert wire.Claim in [type(each) for each in asked(membership, 2001 + core.OFF_AGAIN_MS)]


def test_a_release_that_is_refused_is_repeated() -> None:
    membership = member()
    claimed(membership, 9)
    membership.assign({"orders": frozenset()})
    membership.release({("orders", 0): 7})
    (release,) = asked(membership, 1002)
    told = release.request, 0, "SERVICE_NOT_AVAILABLE", "the disk is full", "", ""
    membership.received([encode(messages.Refused(*told))], 1003)
    assert membership.refused is not None
    assert asked(membership, 1002 + REPEAT_MS) == [release]


def test_heartbeats_leave_nothing_in_memory() -> None:
    membership = member()
    joined(membership, 1000)
    sizes = []
    for now_ms in range(10_000, 400_000, 10_000):
        membership.connection_lost()
        joined(membership, now_ms)
        sizes.append(sum(len(v) for v in vars(membership).values() if isinstance(v, dict | list)))
    assert sizes[-1] == sizes[0]


def beat(membership: Membership, now_ms: int, is_same: bool = True) -> wire.Beat:
    """The member's heartbeat, answered."""
    (said,) = asked(membership, now_ms)
    assert isinstance(said, wire.Beat)
    membership.received([encode(wire.Beaten(said.request, is_same, 5000))], now_ms)
    return said


def test_who_has_joined_says_only_that_it_is_there_and_keeps_its_lease_by_that() -> None:
    membership = member()
    claimed(membership, 9)
    assert membership.wait_ms(1001) == 4999
    said = beat(membership, 6000)
    assert (said.version, said.claims) == (1, 1)
    assert membership.lease_ends_ms == 6000 + 15_000 and membership.wait_ms(6000) == 5000


def test_a_heartbeat_without_an_answer_is_repeated_and_waited_for() -> None:
    membership = member()
    joined(membership, 1000, queues=0)
    (first,) = asked(membership, 6000)
    assert asked(membership, 6001) == [] and membership.wait_ms(6001) == REPEAT_MS - 1
    for now_ms in range(6000, 60_000, 100):
        assert asked(membership, now_ms) in ([], [first])
        assert membership.wait_ms(now_ms) > 0


def test_a_member_that_is_not_what_it_says_joins_and_names_what_it_has() -> None:
    for unlike in ("not the same", "unknown", "another connection"):
        membership = member()
        claimed(membership, 9)
        if unlike == "not the same":
            beat(membership, 6000, is_same=False)
        else:
            (said,) = asked(membership, 6000)
            assert isinstance(said, wire.Beat)
        if unlike == "unknown":
            told = said.request, 0, "UNKNOWN_MEMBER", "no such member", "a", "join again"
            membership.received([encode(messages.Refused(*told))], 6001)
        elif unlike == "another connection":
            membership.connection_lost()
        (join,) = asked(membership, 6002)
        assert isinstance(join, wire.Join), unlike
        assert join.held == (wire.HeldClaim("orders", 0, 9),)
        assert membership.lease_ends_ms == 1000 + 15_000, "nothing was confirmed since"


def test_news_of_the_group_are_gone_by_without_a_word() -> None:
    membership = member()
    news = wire.Changed(0, "g", (), 2, ("a", "b"), (wire.TopicQueues("orders", 2),))
    membership.received([encode(news)], 999)
    joined(membership, 1000)
    assert membership.wanted == {("orders", 0)}, "the answer to the join is the later word"
    (claim,) = asked(membership, 1000)
    given = wire.Claimed(claim.request, "g", "orders", (wire.ClaimedQueue(0, 5, 9),), ())
    membership.received([encode(given)], 1001)
    more = wire.Changed(0, "g", (), 3, ("a", "b"), (wire.TopicQueues("orders", 4),))
    membership.received([encode(more)], 1002)
    assert membership.joined is not None and membership.joined.version == 3
    (claim,) = asked(membership, 1002)
    assert isinstance(claim, wire.Claim) and claim.queue_ids == (1,)
    taken = wire.Claimed(claim.request, "g", "orders", (), (1,))
    membership.received([encode(taken)], 1003)
    assert asked(membership, 1004) == []
    membership.received([encode(more)], 1005)
    assert [type(each) for each in asked(membership, 1005)] == [wire.Claim], "it has come free"


def test_what_no_request_has_room_for_is_said_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member may have more claims than its join can name, and gives all of them up in the end."""
    monkeypatch.setattr(core, "MAX_CLAIMS", 2)
    membership = member()
    joined(membership, 1000, queues=5)
    while claims := [each for each in asked(membership, 9000) if isinstance(each, wire.Claim)]:
        queues = tuple(wire.ClaimedQueue(at, 5, 10 + at) for at in claims[0].queue_ids)
        given = wire.Claimed(claims[0].request, "g", "orders", queues, ())
        membership.received([encode(given)], 1001)
        membership._claim_at_ms = 0
    assert membership.take_gained() == {("orders", at): 5 for at in range(5)}

    membership.commit({("orders", at): 7 for at in range(5)})
    (commit,) = [each for each in asked(membership, 9000) if isinstance(each, wire.Commit)]
    assert [each.queue_id for each in commit.commits] == [0, 1]

    membership.connection_lost()
    (join,) = [each for each in asked(membership, 10_000) if isinstance(each, wire.Join)]
    assert [each.queue_id for each in join.held] == [0, 1]
    topics = (wire.TopicQueues("orders", 5),)
    again = wire.Joined(join.request, "g", 1, ("a",), topics, 5000, "b", 16, 1, 900_000)
    membership.received([encode(again)], 10_000)
    # one is its own still, one was given again after its silence, one is another member's
    answers = {2: (2, 5, 12), 3: (3, 7, 99)}
    seen: set[int] = set()
    for now_ms in range(20_000, 60_000, 10_000):
        for claim in [each for each in asked(membership, now_ms) if isinstance(each, wire.Claim)]:
            seen |= set(claim.queue_ids)
            mine = tuple(wire.ClaimedQueue(*answers[at]) for at in claim.queue_ids if at in answers)
            taken = tuple(at for at in claim.queue_ids if at not in answers)
            told = wire.Claimed(claim.request, "g", "orders", mine, taken)
            membership.received([encode(told)], now_ms)
    assert seen == {2, 3, 4}
    assert membership.take_gained() == {("orders", 3): 7}
    assert membership.take_lost() == [("orders", 4)]

    membership.release({("orders", at): 9 for at in range(4)})
    releases = [each for each in asked(membership, 70_000) if isinstance(each, wire.Release)]
    said = [(each.queue_id, each.offset) for release in releases for each in release.commits]
    assert sorted(said) == [(at, 9) for at in range(4)]
    assert max(len(each.commits) for each in releases) == 2


def test_a_member_says_once_that_it_is_parting() -> None:
    membership = member()
    joined(membership, 1000)
    membership.part()
    (join,) = [each for each in asked(membership, 1001) if isinstance(each, wire.Join)]
    assert join.parting
    topics = (wire.TopicQueues("orders", 1),)
    answer = wire.Joined(join.request, "g", 2, ("b",), topics, 5000, "b", 16, 1, 900_000)
    membership.received([encode(answer)], 1002)
    membership.part()
    assert not [each for each in asked(membership, 1003) if isinstance(each, wire.Join)]


def claims(membership: Membership, now_ms: int) -> list[wire.Claim]:
    return [each for each in asked(membership, now_ms) if isinstance(each, wire.Claim)]


def test_queues_that_are_assigned_are_claimed_at_once_and_others_again_after_a_pause() -> None:
    membership = member()
    joined(membership, 1000, queues=3)
    (claim,) = claims(membership, 1000)
    assert claim.queue_ids == (0, 1, 2)
    membership.received([encode(wire.Claimed(claim.request, "g", "orders", (), (0, 1, 2)))], 1001)
    assert claims(membership, 1002) == [], "they are another's for now"
    assert membership.wait_ms(1002) == core.CLAIM_AGAIN_MS - 2
    membership.assign({"orders": frozenset({1})})
    assert membership.wait_ms(1003) == 0
    (again,) = claims(membership, 1003)
    assert again.queue_ids == (1,)


def test_a_member_that_leaves_asks_for_nothing_any_more_but_says_what_it_has_to() -> None:
    membership = member()
    joined(membership, 1000, queues=2)
    (claim,) = claims(membership, 1000)
    given = (wire.ClaimedQueue(0, 5, 9), wire.ClaimedQueue(1, 0, 10))
    membership.received([encode(wire.Claimed(claim.request, "g", "orders", given, ()))], 1001)
    membership.connection_lost()
    (join,) = asked(membership, 1002)
    assert isinstance(join, wire.Join)
    membership.commit({("orders", 0): 7})
    membership.release({("orders", 1): 3})
    membership.leave()
    left = [type(each) for each in asked(membership, 1003)]
    assert left == [wire.Commit, wire.Release, wire.Leave]
    again = [type(each) for each in asked(membership, 1003 + REPEAT_MS)]
    assert again == left, "and the join is not repeated"


def refused(membership: Membership, request: int, error: PenstockError, now_ms: int) -> None:
    membership.received([encode(messages.refusal(error, request))], now_ms)


def given(membership: Membership, now_ms: int) -> None:
    """Queue 0 is the member's, with epoch 9."""
    (claim,) = claims(membership, now_ms)
    queue = wire.ClaimedQueue(0, 5, 9)
    membership.received([encode(wire.Claimed(claim.request, "g", "orders", (queue,), ()))], now_ms)
    assert membership.take_gained() == {("orders", 0): 5}


def test_what_is_not_given_is_claimed_again_each_time_after_twice_as_long_up_to_a_limit() -> None:
    membership, at_ms, pauses = member(), 1000, list[int]()
    joined(membership, at_ms)
    for _ in range(5):
        (claim,) = claims(membership, at_ms)
        taken = wire.Claimed(claim.request, "g", "orders", (), (0,))
        membership.received([encode(taken)], at_ms)
        pauses.append(membership._claim_at_ms - at_ms)
        at_ms += pauses[-1]
        assert claims(membership, at_ms - 1) == []
    expected = [min(core.CLAIM_AGAIN_MS << at, core.MAX_CLAIM_AGAIN_MS) for at in range(5)]
    assert pauses == expected and pauses[-1] == core.MAX_CLAIM_AGAIN_MS > pauses[1]


def test_a_second_copy_of_an_answer_and_an_answer_to_nobody_change_nothing() -> None:
    membership = member()
    joined(membership, 1000)
    known = membership.joined
    topics = (wire.TopicQueues("orders", 9),)
    copy = wire.Joined(1, "g", 7, ("a", "b"), topics, 5000, "b", 16, 1, 900_000)
    membership.received([encode(copy)], 1001)
    refused(membership, 77, NoPermission("the group is switched off", "g"), 1001)
    assert membership.joined == known and membership.wanted == {("orders", 0)}
    assert membership.refused is None and not membership.is_off


def test_what_a_member_that_leaves_is_refused_is_no_error_and_an_unknown_one_has_left() -> None:
    membership = member()
    joined(membership, 1000)
    given(membership, 1000)
    membership.commit({("orders", 0): 7})
    membership.leave()
    commit, leave = asked(membership, 1001)
    refused(membership, commit.request, StoreUnavailable("the disk is full", "x"), 1002)
    assert membership.refused is None and not membership.left
    refused(membership, leave.request, UnknownMember("there is no such member", "a"), 1003)
    assert membership.left and membership.refused is None
    second = wire.Claimed(2, "g", "orders", (wire.ClaimedQueue(0, 5, 99),), ())
    membership.received([encode(second)], 1004)
    assert asked(membership, 1004 + REPEAT_MS) == [], "it needs to give nothing up any more"


def test_only_a_join_may_be_told_that_a_group_is_switched_off() -> None:
    membership = member()
    joined(membership, 1000)
    (claim,) = claims(membership, 1000)
    refused(membership, claim.request, NoPermission("a topic may not be read", "orders"), 1001)
    assert isinstance(membership.refused, NoPermission) and not membership.is_off
    membership.refused = None
    membership.connection_lost()
    (join,) = [each for each in asked(membership, 1002) if isinstance(each, wire.Join)]
    refused(membership, join.request, StoreUnavailable("the disk is full", "x"), 1003)
    assert isinstance(membership.refused, StoreUnavailable) and not membership.is_off


def test_the_lease_of_a_member_that_is_switched_off_never_goes_back() -> None:
    membership = member()
    joined(membership, 1000)
    ends_ms = membership.lease_ends_ms
    membership.connection_lost()
    (join,) = [each for each in asked(membership, 1500) if isinstance(each, wire.Join)]
    refused(membership, join.request, NoPermission("the group is switched off", "g"), 1600)
    assert membership.is_off and membership.lease_ends_ms == ends_ms + 500, "it was heard"


def test_a_member_that_parts_while_it_joins_says_so_when_that_is_answered() -> None:
    membership = member()
    (join,) = asked(membership, 1000)
    membership.part()
    topics = (wire.TopicQueues("orders", 1),)
    answer = wire.Joined(join.request, "g", 1, ("a",), topics, 5000, "b", 16, 1, 900_000)
    membership.received([encode(answer)], 1001)
    (again,) = [each for each in asked(membership, 1001 + 5000) if not isinstance(each, wire.Claim)]
    assert isinstance(again, wire.Join) and again.parting


def test_a_queue_whose_offset_an_operator_has_set_is_left_and_claimed_again_at_once() -> None:
    membership = member()
    joined(membership, 1000)
    given(membership, 1000)
    news = wire.Changed(0, "g", (wire.HeldClaim("orders", 0, 9),))
    membership.received([encode(news)], 1001)
    assert membership.take_lost() == [("orders", 0)] and not membership.claims
    (claim,) = claims(membership, 1001)
    assert claim.queue_ids == (0,)
    queue = wire.ClaimedQueue(0, 3, 10)
    membership.received([encode(wire.Claimed(claim.request, "g", "orders", (queue,), ()))], 1002)
    news = wire.Changed(0, "g", (wire.HeldClaim("orders", 0, 10),))
    membership.received([encode(news)], 1003)
    assert membership.take_gained() == {}, "it was taken away before anybody had it"


def test_while_a_claim_has_no_answer_no_other_is_made() -> None:
    membership = member()
    joined(membership, 1000, queues=3)
    (claim,) = claims(membership, 1000)
    repeats = [each for now_ms in range(1100, 20_000, 100) for each in claims(membership, now_ms)]
    assert repeats and all(each == claim for each in repeats)


def test_a_member_that_closes_claims_nothing_more() -> None:
    membership = member()
    joined(membership, 1000)
    membership.closing = True
    assert claims(membership, 1000) == [] and membership.wait_ms(1000) == 5000


def test_what_waits_for_a_join_does_not_keep_the_member_awake() -> None:
    membership = member()
    joined(membership, 1000)
    (claim,) = claims(membership, 1000)
    refused(membership, claim.request, UnknownMember("no such member", "a"), 1001)
    assert [type(each) for each in asked(membership, 4000)] == [wire.Join]
    assert membership.wait_ms(4000) == REPEAT_MS


def test_a_member_says_that_it_is_there_twice_in_a_session_whatever_the_coordinator_asks() -> None:
    options = member().options._replace(session_timeout_ms=6000)
    membership = Membership(options)
    joined(membership, 1000, queues=0)
    assert membership.wait_ms(1000) == 3000, "it was asked for a sign of life each 5 s"
    assert [type(each) for each in asked(membership, 4000)] == [wire.Beat]


def test_a_broker_of_another_store_is_looked_for_elsewhere_and_refuses_nothing() -> None:
    membership = member()
    (join,) = asked(membership, 1000)
    refused(membership, join.request, WrongStore("it runs on another store", "/theirs"), 1001)
    assert membership.refused is None and membership.aim.away
    assert isinstance(membership.aim.elsewhere, WrongStore)
    joined(membership, 1000 + REPEAT_MS)
    assert not membership.aim.away and membership.aim.elsewhere is None


@pytest.mark.parametrize(("offset", "counts"), [(7, 7), (0, 0), (-1, 5)])
def test_the_offset_with_which_a_queue_is_released_counts_as_committed(
    offset: int, counts: int
) -> None:
    membership = member()
    claimed(membership, 9)
    membership.release({("orders", 0): offset})
    (release,) = [each for each in asked(membership, 2000) if isinstance(each, wire.Release)]
    membership.received([encode(wire.Released(release.request, "g"))], 2001)
    assert membership.committed == {("orders", 0): counts}


def test_a_commit_of_an_earlier_claim_does_not_count_for_the_present_one() -> None:
    membership = member()
    claimed(membership, 9)
    membership.commit({("orders", 0): 7})
    (commit,) = [each for each in asked(membership, 2000) if isinstance(each, wire.Commit)]
    reset = wire.Changed(0, "g", (wire.HeldClaim("orders", 0, 9),), 0, (), ())
    membership.received([encode(reset)], 2001)
    (claim,) = claims(membership, 2002)
    given = wire.Claimed(claim.request, "g", "orders", (wire.ClaimedQueue(0, 3, 10),), ())
    membership.received([encode(given)], 2003)
    membership.received([encode(wire.Committed(commit.request, "g", ()))], 2004)
    assert membership.committed == {("orders", 0): 3}


def test_a_release_that_is_refused_is_not_repeated_by_a_member_that_leaves() -> None:
    membership = member()
    claimed(membership, 9)
    membership.release({("orders", 0): 7})
    membership.leave()
    (release,) = [each for each in asked(membership, 2000) if isinstance(each, wire.Release)]
    refused(membership, release.request, StoreUnavailable("the disk is full", "97%"), 2001)
    assert not membership.has_asked(wire.Release) and membership.has_asked(wire.Leave)
    assert membership.refused is None


def test_a_second_copy_of_a_granted_claim_does_not_give_it_up() -> None:
    membership = member()
    claim = claimed(membership, 9)
    copy = wire.Claimed(claim.request, "g", "orders", (wire.ClaimedQueue(0, 5, 9),), ())
    membership.received([encode(copy)], 1002)
    assert membership.claims == {("orders", 0): 9}
    assert not membership.has_asked(wire.Release)


def test_a_group_that_is_on_again_is_divided_even_if_nothing_else_has_changed() -> None:
    membership = member()
    joined(membership, 1000)
    membership.connection_lost()
    (join,) = [each for each in asked(membership, 2000) if isinstance(each, wire.Join)]
    refused(membership, join.request, NoPermission("the group is switched off", "g"), 2001)
    assert membership.is_off and membership.wanted == set()
    joined(membership, 2001 + core.OFF_AGAIN_MS)  # as the same version
    assert not membership.is_off and membership.wanted == {("orders", 0)}


def test_who_joins_a_changed_group_does_not_wait_as_long_as_before_for_its_claims() -> None:
    membership = member()
    joined(membership, 1000)
    at_ms = 1000
    for version in (1, 1, 2):
        if version == 2:
            membership.connection_lost()
            (join,) = asked(membership, at_ms - 1)
            topics = (wire.TopicQueues("orders", 1),)
            news = wire.Joined(join.request, "g", 2, ("a",), topics, 5000, "b", 16, 1, 900_000)
            membership.received([encode(news)], at_ms)
        (claim,) = claims(membership, at_ms)
        membership.received([encode(wire.Claimed(claim.request, "g", "orders", (), (0,)))], at_ms)
        pause_ms = membership._claim_at_ms - at_ms
        at_ms += pause_ms
    assert pause_ms == core.CLAIM_AGAIN_MS


def test_after_a_connection_that_failed_the_pauses_begin_again() -> None:
    membership = member()
    assert len(asked(membership, 1000)) == 1
    for now_ms in (3000, 7000, 15_000, 15_000 + MAX_REPEAT_MS):
        assert asked(membership, now_ms - 1) == []
        assert len(asked(membership, now_ms)) == 1
    membership.not_connected(24_000)
    again_ms = 24_000 + NOT_SENT_MS
    assert len(asked(membership, again_ms)) == 1
    assert asked(membership, again_ms + REPEAT_MS - 1) == []
    assert len(asked(membership, again_ms + REPEAT_MS)) == 1
