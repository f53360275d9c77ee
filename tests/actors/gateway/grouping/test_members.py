"""Which members the coordinator hears of: none that has gone, and none in place of another."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq

from penstock.actors.gateway.asking.link import TIMEOUT_MS
from penstock.actors.gateway.asking.questions import AGAIN_MS
from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.grouping.groups import FORGOTTEN_MS, Groups
from penstock.actors.gateway.grouping.members import (
    LAST_WORD_MS,
    LOCKED_MS,
    PROBATION_MS,
    Claim,
    Member,
)
from penstock.actors.gateway.requests.readers import groups_of_topic
from penstock.actors.gateway.services import Services
from penstock.actors.gateway.serving import Serving
from penstock.remoting.bodies import ConsumerBody, Heartbeat, SubscriptionBody
from penstock.remoting.codes import Request, Response
from penstock.remoting.command import Command
from penstock.remoting.fields import QueryOffsetFields, UpdateOffsetFields
from penstock.shared.clock import ManualClock
from penstock.shared.errors import StoreUnavailable
from penstock.shared.process.actor import Stage
from penstock.shared.wire import group_messages as words
from penstock.shared.wire.messages import encode, refusal

Connect = Callable[[], Connection]
HANG_S = 60
QUERY = QueryOffsetFields("g", "t", 0)
UPDATE = UpdateOffsetFields("g", "t", 0, 3)


class Coordinator:
    """Hears what the gateway's groups say, and answers when the test says so."""

    def __init__(self, tmp_path: Any) -> None:
        self.context = zmq.Context[Any]()
        self._socket = self.context.socket(zmq.ROUTER)
        endpoint = f"ipc://{tmp_path}/group"
        self._socket.bind(endpoint)
        self.now_ms = 0
        self.answered: list[Reply] = []
        # whenever a member is to rebalance: whether it is to in any case
        self.rebalanced: list[bool] = []
        run = SimpleNamespace(run_id="r", endpoints=SimpleNamespace(group_ipc=endpoint))
        stage = SimpleNamespace(run=run, context=self.context, clock=ManualClock())
        serving = Serving(lambda call, reply: self.answered.append(reply), self._fail)
        self.groups = Groups(
            cast(Stage, stage), serving, lambda call, reply: self.answered.append(reply),
            lambda member, is_always: self.rebalanced.append(is_always), lambda group: None,
        )  # fmt: skip
        self._peer = b""

    def _fail(self, call: Call, error: Exception) -> None:
        raise error

    def hear(self, kind: type) -> Any:
        """The next that is said, of this kind; joins that are repeated are passed over."""
        until = time.monotonic() + HANG_S
        while True:
            self.groups.work(self.now_ms)
            if not self._socket.poll(10):  # the connection is being made
                assert time.monotonic() < until, f"no {kind.__name__} is said"
                continue
            self._peer, header = self._socket.recv_multipart()
            request = words.decode_group_request(header)
            if isinstance(request, kind):
                return request

    def hears_nothing_more(self) -> None:
        """By the same socket a question comes after all that was said before it."""
        self.groups.work(self.now_ms)
        self.groups.describe("last", lambda answer: None)
        assert self._socket.poll(1000 * HANG_S)
        _, header = self._socket.recv_multipart()
        assert isinstance(words.decode_group_request(header), words.DescribeGroup)

    def tell(self, answer: Any) -> None:
        self._socket.send_multipart((self._peer, encode(answer)))
        until = time.monotonic() + HANG_S
        while not self.groups.work(self.now_ms):
            assert time.monotonic() < until

    def close(self) -> None:
        self.groups.close()
        self._socket.close(linger=0)
        self.context.term()


@pytest.fixture
def coordinator(tmp_path: Any) -> Iterator[Coordinator]:
    found = Coordinator(tmp_path)
    yield found
    found.close()


@pytest.fixture
def connect() -> Iterator[Callable[[], Connection]]:
    pairs: list[tuple[socket.socket, socket.socket]] = []

    def one() -> Connection:
        pairs.append(socket.socketpair())
        return Connection(pairs[-1][0], ("127.0.0.1", len(pairs)), 0)

    yield one
    for each in pairs:
        each[0].close()
        each[1].close()


def beat(coordinator: Coordinator, by: Connection, client: str = "c", **more: Any) -> Call:
    call = Call(by, Command(34, 1), coordinator.now_ms)
    consumer = ConsumerBody("g", subscription_data_set=[SubscriptionBody("t", **more)])
    coordinator.groups.heartbeat(call, Heartbeat(client, None, [consumer]))
    return call


def joined(request: words.Join) -> words.Joined:
    return words.Joined(
        request.request, "g", 1, (request.client_id,), (), 60_000, "b", 16, 1, 60_000
    )


def test_who_has_left_is_not_joined_again(coordinator: Coordinator, connect: Connect) -> None:
    by = connect()
    beat(coordinator, by)
    coordinator.hear(words.Join)  # and that coordinator dies before it has answered
    coordinator.groups.gone(by)
    left = coordinator.hear(words.Leave)
    coordinator.tell(words.Left(left.request, "g"))
    coordinator.now_ms += AGAIN_MS + 1
    coordinator.hears_nothing_more()


def test_a_connection_is_one_member_of_a_group(coordinator: Coordinator, connect: Connect) -> None:
    by = connect()
    beat(coordinator, by, "first")
    beat(coordinator, by, "second")
    assert coordinator.hear(words.Leave).client_id == "first"
    assert [each.client_id for each in coordinator.groups.members] == ["second"]
    coordinator.groups.gone(by)
    assert [*coordinator.groups.members] == []


@pytest.mark.parametrize("ends", ["by its connection", "by its word", "by another name"])
@pytest.mark.parametrize("stays", [0, 1])
def test_a_member_is_there_while_one_of_its_connections_is(
    coordinator: Coordinator, connect: Connect, stays: int, ends: str
) -> None:
    both = [connect(), connect()]
    for each in both:
        beat(coordinator, each)
        coordinator.tell(joined(coordinator.hear(words.Join)))
    members, groups = coordinator.groups.members, coordinator.groups
    (member,) = members
    left, other = both[stays], both[1 - stays]
    if ends == "by its connection":
        groups.gone(other)
    elif ends == "by its word":
        groups.part(other, member)
    else:
        beat(coordinator, other, "d")
        coordinator.tell(joined(coordinator.hear(words.Join)))
        groups.gone(other)
        assert coordinator.hear(words.Leave).client_id == "d"
    coordinator.hears_nothing_more()
    assert list(members) == [member] and members.of(left, "g") is member
    assert members.of(other, "g") is None and member.connection is left
    groups.gone(left)
    assert not list(members)
    assert coordinator.hear(words.Leave).client_id == "c"


def test_who_cannot_join_is_no_member(coordinator: Coordinator, connect: Connect) -> None:
    beat(coordinator, connect(), "")
    assert [*coordinator.groups.members] == []
    assert [each.code for each in coordinator.answered] == [Response.INVALID_PARAMETER]


def test_after_each_change_a_group_is_to_show_once_what_it_goes_on_with(
    coordinator: Coordinator, connect: Connect
) -> None:
    """Its pulls that wait are answered for that, and asked again at once."""
    beat(coordinator, connect())
    members = coordinator.groups.members
    for changed_ms in (0, LAST_WORD_MS + 3, 20_000):
        members.change("g", changed_ms)
        looks_ms = [changed_ms + LAST_WORD_MS + past_ms for past_ms in (0, 1, 2)]
        assert [members.to_be_shown(at_ms) for at_ms in looks_ms] == [[], ["g"], []]


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("changed_ms", [0, 20_000])
def test_a_queue_that_its_member_does_not_go_on_with_is_left_over_once_its_time_is_up(
    coordinator: Coordinator, connect: Connect, changed_ms: int, goes_on: bool
) -> None:
    beat(coordinator, connect())
    members = coordinator.groups.members
    (member,) = members
    held = member.claims["t", 0] = Claim(9, 0)
    members.change("g", changed_ms)
    if goes_on:
        held.committed_ms = changed_ms + LAST_WORD_MS + 1
    up_ms = changed_ms + PROBATION_MS
    looks = [[*members.left_over(at_ms)] for at_ms in (up_ms - 1, up_ms, up_ms + 1)]
    assert looks == [[], [] if goes_on else [(member, ("t", 0))], []]


def test_a_group_of_no_right_name_costs_a_client_none_of_its_others(
    coordinator: Coordinator, connect: Connect
) -> None:
    topic = [SubscriptionBody("t")]
    named = [ConsumerBody(name, subscription_data_set=topic) for name in ("g", "no group", "h")]
    call = Call(connect(), Command(34, 1), coordinator.now_ms)
    coordinator.groups.heartbeat(call, Heartbeat("c", None, named))
    assert [each.group for each in coordinator.groups.members] == ["g", "h"]
    for _ in range(2):
        request = coordinator.hear(words.Join)
        assert not coordinator.answered, "not before all have their answers"
        coordinator.tell(joined(request))
    (reply,) = coordinator.answered
    assert reply.code != Response.SUCCESS and "no group" in (reply.remark or "")


def test_who_says_nothing_of_a_group_any_more_leaves_it(
    coordinator: Coordinator, connect: Connect
) -> None:
    """As in RocketMQ: its connection may live on, for a producer of the same client."""
    beat(coordinator, connect())
    coordinator.tell(joined(coordinator.hear(words.Join)))
    coordinator.now_ms += FORGOTTEN_MS - 1
    coordinator.groups.work(coordinator.now_ms)
    assert len([*coordinator.groups.members]) == 1
    coordinator.now_ms += 200
    coordinator.hear(words.Leave)
    assert [*coordinator.groups.members] == []


def lock(coordinator: Coordinator, member: Member) -> None:
    """What its gateway does when a member locks its queue."""
    coordinator.groups.keep_order(member)
    claim(coordinator, member)


def claim(coordinator: Coordinator, member: Member) -> None:
    coordinator.groups.claim(member, "t", [0], lambda answer: None)
    asked = coordinator.hear(words.Claim)
    coordinator.tell(words.Claimed(asked.request, "g", "t", (words.ClaimedQueue(0, 5, 9),), ()))


def test_a_lock_outlives_its_connection_as_long_as_rocketmqs(
    coordinator: Coordinator, connect: Connect
) -> None:
    """Its client may be in the middle of a message: the next one of that key is not to overtake."""
    before, after = connect(), connect()
    beat(coordinator, before)
    coordinator.tell(joined(coordinator.hear(words.Join)))
    (member,) = coordinator.groups.members
    lock(coordinator, member)
    coordinator.groups.gone(before)
    coordinator.now_ms += LOCKED_MS - 1
    coordinator.groups.work(coordinator.now_ms)
    assert [*coordinator.groups.members] == [member]

    beat(coordinator, after)
    while not (join := coordinator.hear(words.Join)).held:
        pass
    assert join.held == (words.HeldClaim("t", 0, 9),)
    coordinator.tell(joined(join))
    lock(coordinator, member)
    coordinator.groups.gone(after)
    coordinator.groups.work(coordinator.now_ms)
    assert [*coordinator.groups.members] == [member]
    coordinator.now_ms += LOCKED_MS
    assert coordinator.hear(words.Leave).client_id == "c"
    assert [*coordinator.groups.members] == []


def test_a_lock_that_is_renewed_after_its_connection_has_ended_lasts_from_then_on(
    coordinator: Coordinator, connect: Connect
) -> None:
    by = connect()
    beat(coordinator, by)
    coordinator.tell(joined(coordinator.hear(words.Join)))
    (member,) = coordinator.groups.members
    lock(coordinator, member)
    coordinator.groups.gone(by)
    coordinator.now_ms += LOCKED_MS - 1
    coordinator.groups.work(coordinator.now_ms)
    coordinator.groups.keep_order(member)
    coordinator.now_ms += LOCKED_MS - 1
    coordinator.groups.work(coordinator.now_ms)
    assert [*coordinator.groups.members] == [member]
    coordinator.now_ms += LOCKED_MS
    assert coordinator.hear(words.Leave).client_id == "c"
    assert [*coordinator.groups.members] == []


@pytest.mark.parametrize(
    ("locks", "claims", "later_ms"), [(False, True, 0), (True, False, 0), (True, True, LOCKED_MS)]
)
def test_who_has_no_queue_that_is_locked_leaves_with_its_connection(
    coordinator: Coordinator, connect: Connect, locks: bool, claims: bool, later_ms: int
) -> None:
    by = connect()
    beat(coordinator, by)
    coordinator.tell(joined(coordinator.hear(words.Join)))
    (member,) = coordinator.groups.members
    if locks:
        coordinator.groups.keep_order(member)
    if claims:
        claim(coordinator, member)
        while not member.claims:
            coordinator.groups.work(coordinator.now_ms)
    coordinator.now_ms += later_ms
    coordinator.groups.work(coordinator.now_ms)
    coordinator.groups.gone(by)
    assert [*coordinator.groups.members] == []


def test_who_locks_and_says_that_it_leaves_has_gone_with_its_connection(
    coordinator: Coordinator, connect: Connect
) -> None:
    by = connect()
    beat(coordinator, by)
    coordinator.tell(joined(coordinator.hear(words.Join)))
    (member,) = coordinator.groups.members
    lock(coordinator, member)
    coordinator.groups.part(by, member)
    coordinator.groups.gone(by)
    assert [*coordinator.groups.members] == []


def test_a_queue_is_given_to_the_member_that_its_client_is_by_then(
    coordinator: Coordinator, connect: Connect
) -> None:
    before, after = connect(), connect()
    call = beat(coordinator, before)
    coordinator.tell(joined(coordinator.hear(words.Join)))
    coordinator.groups.query(call, QUERY, lambda: 0)
    claim = coordinator.hear(words.Claim)
    coordinator.groups.gone(before)
    beat(coordinator, after)
    coordinator.tell(words.Claimed(claim.request, "g", "t", (words.ClaimedQueue(0, 5, 9),), ()))
    member = coordinator.groups.members.get("g", "c")
    assert member is not None and [*member.claims] == [("t", 0)]


@pytest.mark.parametrize("asks", [False, True])
def test_a_claim_tells_that_an_operator_has_set_the_offset_unless_its_client_begins_there(
    coordinator: Coordinator, connect: Connect, asks: bool
) -> None:
    """The coordinator had taken the member for dead, and told nobody."""
    call = beat(coordinator, connect())
    coordinator.tell(joined(coordinator.hear(words.Join)))
    (member,) = coordinator.groups.members
    if asks:
        coordinator.groups.query(call, QUERY, lambda: 0)
    else:
        coordinator.groups.pulled(member, ("t", 0))
    asked = coordinator.hear(words.Claim)
    given = words.ClaimedQueue(0, 5, 9, is_moved=True)
    coordinator.tell(words.Claimed(asked.request, "g", "t", (given,), ()))
    while not member.claims:
        coordinator.groups.work(coordinator.now_ms)
    assert member.moved == (set() if asks else {("t", 0)})


def test_who_asks_where_its_group_is_while_it_pulls_elsewhere_is_still_told(
    coordinator: Coordinator, connect: Connect
) -> None:
    """A program may ask what is committed, and its client goes on pulling where it was."""
    call = beat(coordinator, connect())
    coordinator.tell(joined(coordinator.hear(words.Join)))
    (member,) = coordinator.groups.members
    member.moved.add(("t", 0))
    coordinator.groups.query(call, QUERY, lambda: 0)
    asked = coordinator.hear(words.Claim)
    given = words.ClaimedQueue(0, 5, 9, is_moved=True)
    coordinator.tell(words.Claimed(asked.request, "g", "t", (given,), ()))
    while not member.claims:
        coordinator.groups.work(coordinator.now_ms)
    assert member.moved == {("t", 0)}


@pytest.mark.parametrize("claimed", [False, True])
def test_what_a_member_commits_that_is_to_be_told_of_an_operators_offset_is_not_said(
    coordinator: Coordinator, connect: Connect, claimed: bool
) -> None:
    call = beat(coordinator, connect())
    coordinator.tell(joined(coordinator.hear(words.Join)))
    (member,) = coordinator.groups.members
    if claimed:
        claim(coordinator, member)
    member.moved.add(("t", 0))
    answered = len(coordinator.answered)
    coordinator.groups.update(call, UPDATE)
    assert len(coordinator.answered) == answered + 1
    coordinator.hears_nothing_more()


@pytest.mark.parametrize("is_member", [False, True])
def test_a_commit_of_no_claim_undoes_no_operators_offset_unless_no_member_says_it(
    coordinator: Coordinator, connect: Connect, is_member: bool
) -> None:
    by = connect()
    if is_member:
        beat(coordinator, by)
        coordinator.tell(joined(coordinator.hear(words.Join)))
    coordinator.groups.update(Call(by, Command(15, 1), coordinator.now_ms), UPDATE)
    said = coordinator.hear(words.ResetOffsets)
    assert (said.offsets, said.unclaimed, said.unmoved) == ({0: 3}, True, is_member)


@pytest.mark.parametrize("is_heard", [True, False])
@pytest.mark.parametrize("kind", [words.DescribeGroup, words.ResetOffsets])
def test_who_is_no_member_is_told_that_the_coordinator_refuses_or_is_silent(
    coordinator: Coordinator, connect: Connect, kind: type, is_heard: bool
) -> None:
    call = Call(connect(), Command(14, 1), coordinator.now_ms)
    if kind is words.DescribeGroup:
        coordinator.groups.query(call, QUERY, lambda: 0)
    else:
        coordinator.groups.update(call, UPDATE)
    asked = coordinator.hear(kind)
    assert not coordinator.answered
    if is_heard:
        coordinator.tell(refusal(StoreUnavailable("no room", "g", "later"), asked.request))
    else:
        coordinator.now_ms += TIMEOUT_MS
        coordinator.groups.work(coordinator.now_ms)
    (reply,) = coordinator.answered
    expected = Response.SERVICE_NOT_AVAILABLE if is_heard else Response.SYSTEM_ERROR
    assert reply.code == expected
    assert ("no room" if is_heard else "has not answered") in reply.remark


def test_a_member_that_has_more_queues_than_a_join_can_name_joins_with_the_others() -> None:
    member = Member("g", "a")
    member.claims = {("t", number): Claim(number, 0) for number in range(words.MAX_CLAIMS + 1)}
    join = member.join(1, "r")
    assert len(join.held) == words.MAX_CLAIMS
    assert words.decode_group_request(encode(join)) == join


def test_what_asks_for_all_groups_is_answered_once_where_the_coordinator_falls_silent(
    coordinator: Coordinator, connect: Connect
) -> None:
    """Each group's answer is late then. A client that has used its number again by the second
    refusal would take that for the answer to another request."""
    call = Call(connect(), Command(Request.QUERY_TOPIC_CONSUME_BY_WHO, 1, {"topic": "t"}), 0)
    answered = coordinator.answered
    services = SimpleNamespace(
        groups=coordinator.groups, run_id="r", answer=lambda call, reply: answered.append(reply)
    )
    groups_of_topic(cast(Services, services), call)
    listed = coordinator.hear(words.ListGroups)
    coordinator.tell(words.GroupList(listed.request, {"a": (0, 0), "b": (0, 0)}))
    for _ in range(2):
        coordinator.hear(words.DescribeGroup)
    coordinator.now_ms += TIMEOUT_MS
    coordinator.groups.work(coordinator.now_ms)
    assert [reply.code for reply in answered] == [Response.SYSTEM_ERROR]


def test_a_member_is_to_rebalance_in_any_case_when_another_one_is_lost(
    coordinator: Coordinator, connect: Connect
) -> None:
    """Of a change its group may have set that it is not told; the lost one's queues are free."""
    first, second = connect(), connect()
    for by, client in ((first, "a"), (second, "b")):
        beat(coordinator, by, client)
        coordinator.tell(joined(coordinator.hear(words.Join)))
    coordinator.groups.part(first, coordinator.groups.members.on(first)[0])
    coordinator.rebalanced.clear()
    coordinator.tell(words.Changed(0, "g"))
    assert coordinator.rebalanced == [False, False]
    coordinator.groups.gone(second)
    coordinator.hear(words.Leave)
    for _ in range(2):
        coordinator.tell(words.Changed(0, "g"))
    assert coordinator.rebalanced == [False, False, True, False]


def test_a_group_has_locks_while_a_member_keeps_queues_that_it_has_locked(
    coordinator: Coordinator, connect: Connect
) -> None:
    beat(coordinator, connect())
    coordinator.tell(joined(coordinator.hear(words.Join)))
    (member,) = members = coordinator.groups.members
    claim(coordinator, member)
    while not member.claims:
        coordinator.groups.work(coordinator.now_ms)
    assert not members.has_locks("g", coordinator.now_ms)
    coordinator.groups.keep_order(member)
    now_ms = coordinator.now_ms
    assert [members.has_locks("g", now_ms + each) for each in (0, LOCKED_MS - 1, LOCKED_MS)] == [
        True, True, False,
    ]  # fmt: skip
    coordinator.groups.release(member, [("t", 0)])
    assert not members.has_locks("g", now_ms) and not members.has_locks("h", now_ms)
