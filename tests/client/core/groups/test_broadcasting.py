"""A member that broadcasts, on the wires of test_member_core.py: it has all queues, unclaimed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.client.core.groups.assigned_core import AssignedCore
from penstock.client.core.groups.member_core import Back, MemberCore
from penstock.client.core.start import StartAt
from penstock.shared.errors import NoPermission
from penstock.shared.wire import group_messages as wire
from penstock.shared.wire.messages import encode, refusal
from tests.client.core.groups.test_member_core import QUEUES, TOPIC, Member, World


@pytest.fixture
def world(make_reader: Callable[..., Any]) -> World:
    return World(make_reader(declared=QUEUES))


def broadcasting(world: World) -> Member:
    member = Member("a", False, 0)
    usual: dict[str, Any] = {"timeout_ms": 10**6, "max_body_bytes": 1000, "direct": False}
    member.reader = AssignedCore("tcp://x:1", TOPIC, selection=None, everything=StartAt(), **usual)
    options = member.core.options._replace(model="broadcasting")
    member.core = MemberCore(options, member.core.settings, {TOPIC: member.reader})
    return member


def test_what_comes_later_of_a_queue_joins_what_is_in_hand_of_it(world: World) -> None:
    world.reader.append(0, 2)
    member = broadcasting(world)
    for now_ms in range(1000, 3000, 100):
        member.exchange(world, now_ms)
    handful = member.take(3000)
    assert handful is not None and len(handful.messages) == 2
    world.reader.append(0, 2)
    for now_ms in range(3000, 5000, 100):
        member.exchange(world, now_ms)
    assert member.core.waiting == 4
    later = member.take(5000)
    assert later is not None and [each.queue_offset for each in later.messages] == [2, 3]
    member.core.done(later, later.start, later.stop)
    assert member.core.offsets[TOPIC, 0] == 0, "the first two are in hand still"
    member.core.done(handful, handful.start, handful.stop)
    assert member.core.offsets[TOPIC, 0] == 4


def test_nothing_is_handed_out_before_it_has_joined_or_while_its_group_is_switched_off(
    world: World,
) -> None:
    world.reader.append(0, 1)
    member = broadcasting(world)
    core = member.core
    assert core.is_suspended(1000)
    for now_ms in range(1000, 3000, 100):
        member.exchange(world, now_ms)
    assert not core.is_suspended(3000) and core.has_work(3000)
    core.membership.connection_lost()
    ((header,),) = core.membership.outgoing(3000)
    request = wire.decode_group_request(header)
    assert isinstance(request, wire.Join)
    off = refusal(NoPermission("the group is switched off", "CG"), request.request)
    core.membership.received([encode(off)], 3001)
    assert core.is_suspended(3001) and core.take(1, 3001) is None


def test_a_queue_that_it_first_hears_of_while_it_closes_is_not_begun(world: World) -> None:
    member = broadcasting(world)
    for now_ms in range(1000, 3000, 100):
        member.exchange(world, now_ms)
    member.core.close()
    world.reader.append(0, 2)
    for now_ms in range(3000, 5000, 100):
        member.exchange(world, now_ms)
    assert member.core.waiting == 2
    assert not member.core.has_work(5000) and member.take(5000) is None


def test_what_its_handler_gives_back_is_lost_and_counted_once(world: World) -> None:
    world.reader.append(0, 2)
    member = broadcasting(world)
    for now_ms in range(1000, 3000, 100):
        member.exchange(world, now_ms)
    handful = member.take(3000)
    assert handful is not None
    for _ in range(2):
        member.core.back(handful, Back(handful.start), 3000)
    assert member.core.lost == 1 and not len(member.core.send_back)
    assert member.core.offsets[TOPIC, 0] == 1


def test_a_handler_may_take_as_long_as_it_likes(world: World) -> None:
    """Nobody else would be given its message."""
    world.reader.append(0, 1)
    member = broadcasting(world)
    for now_ms in range(1000, 3000, 100):
        member.exchange(world, now_ms)
    assert member.take(3000) is not None
    member.exchange(world, 2_000_000)
    assert member.core.lost == 0 and member.core.offsets[TOPIC, 0] == 0
