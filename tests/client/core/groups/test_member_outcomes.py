"""What a member's handlers say of messages more than once, or too late; and what its program says
of its queues.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.client.core.groups.member_core import HANDOVER_MS, Back, member_topics
from penstock.shared.errors import InvalidArgument
from penstock.shared.wire import group_messages as wire
from tests.client.core.groups.test_member_core import (
    GROUP,
    QUEUES,
    TOPIC,
    Member,
    SlowWriter,
    World,
    in_hand,
    joined,
)


@pytest.fixture
def world(make_reader: Callable[..., Any]) -> World:
    return World(make_reader(declared=QUEUES))


def test_a_message_goes_back_once_and_not_at_all_once_it_is_done(world: World) -> None:
    member, handful = in_hand(world, 2)
    core = member.core
    core.back(handful, Back(0), 6000)
    core.back(handful, Back(0), 6000)
    assert len(core.send_back) == 1
    core.done(handful, 1, 2)
    core.back(handful, Back(1), 6000)
    assert len(core.send_back) == 1
    for now_ms in range(6000, 8000, 100):
        member.exchange(world, now_ms)
    assert len(world.writer.stored) == 1 and core.offsets[TOPIC, 0] == 2


def test_nothing_goes_back_of_a_queue_that_was_begun_again_meanwhile(world: World) -> None:
    member, handful = in_hand(world, 2)
    member.core.seek((TOPIC, 0), 0)
    member.core.back(handful, Back(0), 6000)
    member.core.failed(handful, Back(1), 6000)
    assert len(member.core.send_back) == 0
    assert member.core.queues[TOPIC, 0].failures == {}
    assert handful.queue.dropped, "which tells its handlers to stop"
    turns = member.core._rotation._queues
    assert {id(each) for each in turns} == {id(each) for each in member.core.queues.values()}


def test_what_is_handed_out_is_the_members_own_until_its_lease_is_over(world: World) -> None:
    member, handful = in_hand(world, 1)
    ends_ms = member.core.membership.lease_ends_ms
    member.core.untouched(handful, 6000)
    assert member.core.has_work(ends_ms - 1) and not member.core.is_suspended(ends_ms - 1)
    assert not member.core.has_work(ends_ms) and member.core.take(1, ends_ms) is None
    assert member.core.take(1, ends_ms - 1) is not None


def test_a_refusal_of_the_group_is_raised_once(world: World) -> None:
    (member,) = joined(world, "a")
    member.core.membership.refused = InvalidArgument("the group is another's", GROUP)
    with pytest.raises(InvalidArgument):
        member.core.turn(6000)
    member.core.turn(6000)


def test_a_member_that_closes_gives_back_at_once_what_nobody_works_on(world: World) -> None:
    member, handful = in_hand(world, 1)
    assert world.coordinator.owners.keys() == {0, 1, 2}
    member.core.close()
    for now_ms in range(6000, 6500, 100):
        member.exchange(world, now_ms)
        assert handful.queue.dropped
    assert world.coordinator.owners.keys() == {0}
    member.core.done(handful, handful.start, handful.stop)
    for now_ms in range(6500, 7000, 100):
        member.exchange(world, now_ms)
    assert world.coordinator.owners.keys() == set() and world.coordinator.offsets[0] == 1


def test_a_turn_is_wanted_where_something_is_to_be_said_or_asked_for(world: World) -> None:
    member, handful = in_hand(world, 2)
    core, queue = member.core, handful.queue
    assert not core.wants_turn(queue)
    world.reader.append(0, 3)
    for now_ms in range(6000, 8000, 100):
        member.exchange(world, now_ms)
    assert member.reader.is_paused(0) and not core.wants_turn(queue), "it is full"
    core.done(handful, 0, 2)
    assert core.wants_turn(queue), "there is room again, and nobody has asked for more"
    member.exchange(world, 8000)
    assert not core.wants_turn(queue)
    later = member.take(8000)
    assert later is not None
    core.back(later, Back(later.start), 8000)
    assert core.wants_turn(queue), "a message is to go back"
    for now_ms in range(8000, 9000, 100):
        member.exchange(world, now_ms)
    assert not core.wants_turn(queue)
    core.close()
    assert core.wants_turn(queue), "it is to be released"


def test_what_is_stored_of_a_queue_that_was_begun_again_hides_no_other_outcome(
    world: World,
) -> None:
    world.reader.append(1, 1)
    member, handful = in_hand(world, 1)
    other = member.take(6000)
    assert other is not None and {handful.queue.queue_id, other.queue.queue_id} == {0, 1}
    for each in (handful, other):
        member.core.back(each, Back(each.start), 6000)
    member.core.seek((TOPIC, handful.queue.queue_id), 0)
    for now_ms in range(6000, 8000, 100):
        member.exchange(world, now_ms)
    assert member.core.offsets[TOPIC, other.queue.queue_id] == 1


def test_nothing_more_is_handed_out_of_a_queue_that_goes_to_another_member_unless_it_stays(
    world: World,
) -> None:
    first, handful = in_hand(world, 4)
    (rest,) = [queue for name, queue in first.core.queues.items() if name == (TOPIC, 0)]
    assert rest.has_work(6000), "two of four are in hand"
    world.coordinator.members["0"] = 0  # which comes before it, and has queue 0 of now on
    world.coordinator._change()
    first.exchange(world, 6001)
    assert (TOPIC, 0) in first.core.membership.revoked
    assert first.core.take(1, 6001) is None and rest.dropped
    assert first.reader.is_paused(0), "nor is more of it asked for"
    world.coordinator.drop("0")
    first.exchange(world, 6002)
    assert not rest.dropped and not first.reader.is_paused(0), "it is this member's again"
    again = first.core.take(1, 6002)
    assert again is not None and again.queue is rest
    world.coordinator.members["0"] = 0
    world.coordinator._change()
    for now_ms, is_held in ((7500, True), (7499 + HANDOVER_MS, True), (7500 + HANDOVER_MS, False)):
        first.exchange(world, now_ms)
        assert ((TOPIC, 0) in first.core.membership.claims) == is_held, "its handlers have time"


def test_a_queue_is_asked_for_nothing_more_while_the_program_pauses_it(world: World) -> None:
    (member,) = joined(world, "a")
    assert not member.reader.is_paused(1)
    member.core.pause([(TOPIC, 1)], True)
    member.exchange(world, 6000)
    assert member.reader.is_paused(1) and not member.reader.is_paused(0)
    member.core.pause([(TOPIC, 1)], False)
    member.exchange(world, 6001)
    assert not member.reader.is_paused(1)


def test_the_program_may_choose_the_queues(world: World) -> None:
    (member,) = joined(world, "a")
    assert len(member.core.queues) == QUEUES
    member.core.assign({TOPIC: frozenset({1})})
    for now_ms in range(6000, 8000, 100):
        member.exchange(world, now_ms)
    assert member.core.queues.keys() == {(TOPIC, 1)}


def committed(member: Member, now_ms: int) -> list[tuple[int, int]]:
    """Queue and offset of each commit that leaves now."""
    return [
        (each.queue_id, each.offset)
        for (header,) in member.core.membership.outgoing(now_ms)
        if isinstance(request := wire.decode_group_request(header), wire.Commit)
        for each in request.commits
    ]


def test_what_was_said_of_a_queue_is_unsaid_by_a_seek(world: World) -> None:
    member, handful = in_hand(world, 2)
    core = member.core
    core.done(handful, 0, 2)
    core.commit(6000)
    core.seek((TOPIC, 0), 2)
    assert committed(member, 6000) == []
    assert (TOPIC, 0) not in core.membership.committed
    assert core.queues[TOPIC, 0].given == 0, "the claim came with this"


def test_a_queue_that_ends_before_its_committed_offset_is_committed_to_its_end(
    world: World,
) -> None:
    """The next owner would miss what is stored until that offset is reached again."""
    world.coordinator.offsets[0] = 5
    (member,) = joined(world, "a")
    queue = member.core.queues[TOPIC, 0]
    assert queue.committable == 5
    queue.put([], 0, 2)  # as its reader says it
    member.core.turn(6000)
    assert committed(member, 6000) == [(0, 2)]


def test_of_a_queue_that_it_has_not_begun_a_member_that_leaves_says_nothing(world: World) -> None:
    """Else the group would begin it again."""
    world.coordinator.offsets[0] = 5
    member = Member("a", False, 1000)
    membership = member.core.membership
    while len(membership.claims) < QUEUES:  # without a turn of the member
        for (header,) in membership.outgoing(1000):
            answer = world.coordinator.answer(header)
            assert answer is not None
            membership.received([answer], 1000)
    member.core.leave()
    for (header,) in membership.outgoing(1000):
        world.coordinator.answer(header)
    assert world.coordinator.owners == {} and world.coordinator.offsets[0] == 5


def test_a_member_is_not_drained_before_all_it_has_sent_back_is_stored(world: World) -> None:
    world.writer = writer = SlowWriter()
    member, handful = in_hand(world, 1)
    member.core.back(handful, Back(handful.start), 6000)
    member.core.seek((TOPIC, 0), 1)  # nobody has it in hand any more
    assert not member.core.is_drained
    writer.takes = True
    for now_ms in range(6000, 8000, 100):
        member.exchange(world, now_ms)
    assert member.core.is_drained and len(writer.stored) == 1


def test_nor_before_its_queues_are_known_to_be_released(world: World) -> None:
    member, handful = in_hand(world, 1)
    member.core.done(handful, handful.start, handful.stop)
    member.core.close()
    member.exchange(world, 6100, lambda: True)
    assert not member.core.queues and not member.core.is_drained
    member.core.membership.connection_lost()
    for now_ms in range(6200, 7000, 100):
        member.exchange(world, now_ms)
    assert member.core.is_drained and world.coordinator.owners == {}


def test_it_sleeps_until_a_message_is_to_be_tried_again(world: World) -> None:
    member, handful = in_hand(world, 1, orderly=True)
    member.exchange(world, 6100, lambda: True)  # it waits for an answer to its pull
    member.core.failed(handful, Back(handful.start, delay_ms=30), 6100)
    assert member.core.wait_ms(6100) == 30


def test_a_member_that_leaves_says_how_far_each_queue_is_done(world: World) -> None:
    member, handful = in_hand(world, 2)
    member.core.done(handful, 0, 1)
    member.core.leave()
    for now_ms in range(6000, 7000, 100):
        member.exchange(world, now_ms)
    assert member.core.membership.left
    assert world.coordinator.offsets == {0: 1, 1: 0, 2: 0}


def test_a_member_reads_its_groups_retries_unless_it_broadcasts() -> None:
    assert member_topics("CG", ["a", "b"], "clustering") == ["a", "b", "%RETRY%CG"]
    assert member_topics("CG", ["a", "b"], "broadcasting") == ["a", "b"]
