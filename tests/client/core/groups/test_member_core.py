"""Members of a group and a plain model of the broker, on wires that lose what is on its way.

The coordinator of the model is a dictionary of claims; it says good-bye to members that are killed
or frozen. However members come and go: nothing that was answered as committed is handed out again,
no two living members have a queue, and everything is handled in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run

from penstock.client.core.groups.assigned_core import SOON_MS, AssignedCore
from penstock.client.core.groups.member_core import (
    AGAIN_MS,
    SENT_BACK_MS,
    Back,
    MemberCore,
    Settings,
)
from penstock.client.core.groups.member_options import MemberOptions
from penstock.client.core.groups.process_queue import Handful
from penstock.client.core.groups.queue_rotation import TURN_MS
from penstock.client.core.groups.strategies import Averagely
from penstock.shared.errors import PenstockError, QueueNotFound
from penstock.shared.formats.properties import decode_properties
from penstock.shared.formats.record import Record, decode_record, encode_record
from penstock.shared.wire import group_messages as wire
from penstock.shared.wire import messages
from penstock.shared.wire.messages import encode

GROUP, TOPIC, QUEUES = "CG", "orders", 3
SESSION_MS = 15_000
OPERATORS = (
    wire.DescribeGroup | wire.ListGroups | wire.ResetOffsets | wire.SetGroup | wire.DeleteGroup
)


class Coordinator:
    """Which members are in the group, which has which queue, and how far each is done."""

    def __init__(self) -> None:
        self.members: dict[str, int] = {}
        self.version = self.epoch = 1
        self.owners: dict[int, tuple[str, int]] = {}
        self.offsets: dict[int, int] = {}
        self.changed: set[str] = set()
        self.parting: set[str] = set()
        self.retry_queues = 1

    def answer(self, header: bytes) -> bytes | None:
        request = wire.decode_group_request(header)
        assert not isinstance(request, OPERATORS)
        client = request.client_id
        if isinstance(request, wire.Join):
            return encode(self._join(request))
        if isinstance(request, wire.Leave):
            self.drop(client)
            return encode(wire.Left(request.request, GROUP))
        if client not in self.members:
            told = request.request, 0, "UNKNOWN_MEMBER", "no such member", "", ""
            return encode(messages.Refused(*told))
        if isinstance(request, wire.Claim):
            return encode(self._claim(request))
        if isinstance(request, wire.Beat):
            count = sum(owner == client for owner, _ in self.owners.values())
            is_same = (request.version, request.claims) == (self.version, count)
            return encode(wire.Beaten(request.request, is_same, 5000))
        lost = []
        for each in request.commits:
            if self.owners.get(each.queue_id) != (client, each.epoch):
                lost.append(wire.HeldClaim(TOPIC, each.queue_id, each.epoch))
                continue
            if each.offset >= 0:
                assert each.offset >= self.offsets[each.queue_id], "an offset went back"
                self.offsets[each.queue_id] = each.offset
            if isinstance(request, wire.Release):
                del self.owners[each.queue_id]
                self.changed |= self.members.keys()
        if isinstance(request, wire.Release):
            return encode(wire.Released(request.request, GROUP))
        return encode(wire.Committed(request.request, GROUP, tuple(lost)))

    def _join(self, request: wire.Join) -> wire.Joined:
        if request.client_id not in self.members:
            self.members[request.client_id] = 0
            self._change()
        if request.parting and request.client_id not in self.parting:
            self.parting.add(request.client_id)
            self._change()
        lost = []
        for each in request.held:
            owner = self.owners.setdefault(each.queue_id, (request.client_id, each.epoch))
            if owner != (request.client_id, each.epoch):
                lost.append(each)
        usual = 5000, "broker-a", 16, self.retry_queues, 900_000
        return wire.Joined(request.request, GROUP, *self.state, *usual, tuple(lost))

    @property
    def state(self) -> tuple[int, tuple[str, ...], tuple[wire.TopicQueues, ...]]:
        ids = tuple(sorted(self.members.keys() - self.parting))
        return self.version, ids, (wire.TopicQueues(TOPIC, QUEUES),)

    def _claim(self, request: wire.Claim) -> wire.Claimed:
        given, taken = [], []
        for queue_id in request.queue_ids:
            owner = self.owners.get(queue_id)
            if owner is None:
                self.epoch += 1
                owner = self.owners[queue_id] = request.client_id, self.epoch
            if owner[0] == request.client_id:
                offset = self.offsets.setdefault(queue_id, 0)
                given.append(wire.ClaimedQueue(queue_id, offset, owner[1]))
            else:
                taken.append(queue_id)
        return wire.Claimed(request.request, GROUP, TOPIC, tuple(given), tuple(taken))

    def drop(self, client: str) -> None:
        """It has left, or is dead."""
        if self.members.pop(client, None) is not None:
            self.owners = {q: owner for q, owner in self.owners.items() if owner[0] != client}
            self._change()

    def _change(self) -> None:
        self.version += 1
        self.changed |= self.members.keys()


class Writer:
    """Stores what is sent back, and finds copies of it by nothing: sessions never break here."""

    def __init__(self) -> None:
        self.stored: list[Record] = []
        self.made: list[tuple[str, int]] = []
        self.end = 0
        # what the next frame is refused with
        self.refusal: PenstockError | None = None

    def answer(self, parts: tuple[bytes, ...]) -> bytes | None:
        request = messages.decode_produce_request(parts[0])
        if isinstance(request, messages.Hello):
            told = request.producer, request.session, request.next_seq, self.end, 0, 0, 1
            return encode(messages.Welcome(*told))
        if isinstance(request, messages.CreateTopic):
            self.made.append((request.topic, request.queues))
            return encode(messages.Routed(request.request, request.topic, request.queues))
        assert isinstance(request, messages.Append)
        if self.refusal is not None:
            error, self.refusal = self.refusal, None
            return encode(messages.refusal(error, request.seq, request.session))
        at, runs = 0, []
        for number, _ in enumerate(request.runs):
            record = decode_record(parts[1], at)
            at += record.total_size
            self.stored.append(record)
            runs.append(messages.StoredRun(number, 0, self.end + at))
        self.end += at
        answer = request.producer, request.session, request.seq, tuple(runs), 1, bytes(8)
        return encode(messages.Appended(*answer))


class Member:
    """One member, its wires, and what it has in hand."""

    def __init__(self, name: str, orderly: bool, now_ms: int) -> None:
        subscription = wire.SubscriptionData(TOPIC, "TAG", "*", 1)
        options = MemberOptions(
            GROUP, name, (subscription,), Averagely(), SESSION_MS, start="first", orderly=orderly
        )
        usual: dict[str, Any] = {"timeout_ms": 10**6, "max_body_bytes": 1000, "direct": False}
        reader = AssignedCore("tcp://x:1", TOPIC, selection=None, **usual)
        limits = Settings(max_messages=5, max_span=5, commit_ms=10, suspend_ms=100)
        self.core = MemberCore(options, limits, {TOPIC: reader})
        self.reader, self.name = reader, name
        # as the reader holds it
        self.pull: tuple[bytes, ...] | None = None
        self.hands: list[Handful] = []

    def exchange(
        self, world: World, now_ms: int, lossy: Callable[[], bool] = lambda: False
    ) -> None:
        """One turn of the member's loop, with a broker that answers at once, or not at all."""
        core = self.core
        if self.name in world.coordinator.changed and not lossy():
            world.coordinator.changed.discard(self.name)
            core.membership.received(
                [encode(wire.Changed(0, GROUP, (), *world.coordinator.state))], now_ms
            )
        for (header,) in core.membership.outgoing(now_ms):
            if not lossy():
                answer = world.coordinator.answer(header)
                if answer is not None and not lossy():
                    core.membership.received([answer], now_ms)
        for parts in list(core.send_back.outgoing(now_ms)):
            answer = world.writer.answer(parts)
            if answer is not None:
                core.send_back.received([answer], now_ms)
        core.turn(now_ms)
        for parts in self.reader.outgoing(now_ms):
            if not lossy():
                self.pull = parts
        if self.pull is not None:
            pulled, self.pull = world.reader.answer(self.pull, 3, True)
            if pulled is not None and not lossy():
                self.reader.received(pulled, now_ms)
        core.turn(now_ms)

    def take(self, now_ms: int) -> Handful | None:
        handful = self.core.take(2, now_ms)
        if handful is not None:
            self.hands.append(handful)
        return handful


class World:
    def __init__(self, reader: Any) -> None:
        self.coordinator, self.writer, self.reader = Coordinator(), Writer(), reader


class AnyGroup(RuleBasedStateMachine):
    """Members come, work, leave in order, die and freeze."""

    def __init__(self, make_reader: Callable[..., Any]) -> None:
        super().__init__()
        self.world = World(make_reader(declared=QUEUES))
        self.members: list[Member] = []
        self.frozen: list[Member] = []
        self.now_ms = 1000
        self.names = 0
        self.handled: set[tuple[int, int]] = set()

    @initialize(orderly=st.booleans())
    def begin(self, orderly: bool) -> None:
        self.orderly = orderly

    @rule()
    def one_joins(self) -> None:
        if len(self.members) < 4:
            self.names += 1
            self.members.append(Member(f"10.0.0.1@c{self.names}", self.orderly, self.now_ms))

    @rule(queue_id=st.integers(0, QUEUES - 1), count=st.integers(1, 6))
    def messages_come(self, queue_id: int, count: int) -> None:
        self.world.reader.append(queue_id, count)

    @rule(data=st.data())
    def one_takes_its_turn(self, data: st.DataObject) -> None:
        for member in self._some(data):
            member.exchange(self.world, self.now_ms, lambda: data.draw(st.integers(0, 5)) == 0)

    @rule(data=st.data())
    def one_takes_messages(self, data: st.DataObject) -> None:
        for member in self._some(data):
            handful = member.take(self.now_ms)
            if handful is not None:
                self._check_handed_out(handful)

    def _check_handed_out(self, handful: Handful) -> None:
        queue = handful.queue
        committed = self.world.coordinator.offsets[queue.queue_id]
        assert all(each.queue_offset >= committed for each in handful.messages)

    @rule(data=st.data(), ends=st.sampled_from(["done", "back", "untouched"]))
    def one_ends_what_it_has(self, data: st.DataObject, ends: str) -> None:
        for member in self._some(data):
            for handful in member.hands[:1]:
                member.hands.remove(handful)
                self._end(member, handful, ends)

    def _end(self, member: Member, handful: Handful, ends: str) -> None:
        core = member.core
        if ends == "untouched":
            core.untouched(handful, self.now_ms)
            return
        places = list(handful.unfinished)
        if ends == "back" and places:
            fail = core.failed if self.orderly else core.back
            fail(handful, Back(places[-1], 0, "why"), self.now_ms)
            if self.orderly:
                return
        if core._has(handful.queue):
            found = (handful.lot.messages[each] for each in places)
            self.handled |= {(each.queue_id, each.queue_offset) for each in found}
        core.done(handful, handful.start, handful.stop)

    @rule(data=st.data())
    def one_leaves_in_order(self, data: st.DataObject) -> None:
        for member in self._some(data):
            for handful in member.hands:
                member.core.untouched(handful, self.now_ms)
            member.core.close()
            member.core.leave()
            for _ in range(20):
                self.now_ms += 600
                member.exchange(self.world, self.now_ms)
            assert member.core.membership.left
            self.members.remove(member)

    @rule(data=st.data())
    def one_is_killed(self, data: st.DataObject) -> None:
        for member in self._some(data):
            self.members.remove(member)
            self.world.coordinator.drop(member.name)

    @rule(data=st.data())
    def one_is_frozen_for_long(self, data: st.DataObject) -> None:
        for member in self._some(data):
            self.members.remove(member)
            self.frozen.append(member)
            self.world.coordinator.drop(member.name)

    @rule()
    def the_frozen_come_back(self) -> None:
        if self.frozen:
            self.now_ms += 2 * SESSION_MS
            for member in self.members:
                member.exchange(self.world, self.now_ms)
        for member in self.frozen:
            # it has not been heard for its session: nothing is handed out before it has joined
            assert self.orderly or member.core.take(1, self.now_ms) is None
        self.members += self.frozen
        self.frozen = []

    @rule(ms=st.sampled_from([10, 200, 600, 1200]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    def _some(self, data: st.DataObject) -> Iterator[Member]:
        if self.members:
            yield data.draw(st.sampled_from(self.members))

    @invariant()
    def a_queue_has_one_owner(self) -> None:
        for queue_id, (owner, epoch) in self.world.coordinator.owners.items():
            for member in self.members:
                claim = member.core.membership.claims.get((TOPIC, queue_id))
                if claim == epoch:
                    assert member.name == owner

    def teardown(self) -> None:
        if not hasattr(self, "orderly"):
            return
        self.the_frozen_come_back()
        self.one_joins()
        ends = {q: len(queue.bodies) for q, queue in self.world.reader.queues.items()}
        offsets = self.world.coordinator.offsets
        for _ in range(400):
            self.now_ms += 100
            for member in self.members:
                member.exchange(self.world, self.now_ms)
                member.take(self.now_ms)
                while member.hands:
                    self._end(member, member.hands.pop(), "done")
            if all(offsets.get(queue, 0) == end for queue, end in ends.items()):
                break
        else:
            raise AssertionError(f"committed are {offsets} of {ends}")
        again = {
            (each.queue_id, each.queue_offset) for each in map(_origin, self.world.writer.stored)
        }
        everything = {(queue, at) for queue, end in ends.items() for at in range(end)}
        assert everything <= self.handled | again


def _origin(record: Record) -> Any:
    """Which message a record in the delay topic is of: the model's bodies say it."""
    queue_id, _, offset = record.body.decode().partition("/")
    assert decode_properties(record.properties)["RETRY_TOPIC"] == TOPIC
    return Record(TOPIC, b"", queue_id=int(queue_id), queue_offset=int(offset))


def test_whoever_comes_goes_or_dies_everything_is_handled(make_reader: Callable[..., Any]) -> None:
    machine: Any = partial(AnyGroup, make_reader)
    run(machine, settings=settings(max_examples=100, stateful_step_count=40))


@pytest.fixture
def world(make_reader: Callable[..., Any]) -> World:
    return World(make_reader(declared=QUEUES))


def joined(world: World, *names: str, orderly: bool = False) -> list[Member]:
    members = [Member(name, orderly, 0) for name in names]
    for now_ms in range(1000, 6000, 100):
        for member in members:
            member.exchange(world, now_ms)
    return members


def in_hand(world: World, count: int, *, orderly: bool = False) -> tuple[Member, Handful]:
    """A member that has joined, and the `count` new messages of queue 0 that it was given."""
    (member,) = joined(world, "a", orderly=orderly)
    world.reader.append(0, count)
    member.exchange(world, 6000)
    handful = member.take(6000)
    assert handful is not None
    return member, handful


def test_two_members_share_the_queues_as_the_strategy_says(world: World) -> None:
    first, second = joined(world, "a", "b")
    assert sorted(first.core.queues) == [(TOPIC, 0), (TOPIC, 1)]
    assert sorted(second.core.queues) == [(TOPIC, 2)]


def test_a_reader_asks_nobody_before_it_has_a_queue_and_then_for_that_alone() -> None:
    member = Member("a", False, 0)
    assert member.reader.outgoing(1000) == []
    member.reader.add(2, 7)
    ((header,),) = member.reader.outgoing(1001)
    pull = messages.decode_consume_request(header)
    assert isinstance(pull, messages.Pull) and pull.cursors == {2: 7}


def test_a_queue_that_is_another_members_is_handed_out_no_more(world: World) -> None:
    member, handful = in_hand(world, 4)
    assert handful.queue.queue_id == 0
    world.coordinator.owners[0] = "b", 99
    member.core.done(handful, handful.start, handful.stop)
    for now_ms in range(6100, 6500, 100):
        member.exchange(world, now_ms)
    assert (TOPIC, 0) not in member.core.queues and member.take(6500) is None
    assert member.core.lost == 1


def test_it_sleeps_no_longer_than_until_it_may_say_what_is_done(world: World) -> None:
    member, handful = in_hand(world, 1)
    member.exchange(world, 6100, lambda: True)  # it waits for an answer to its pull
    assert member.core.wait_ms(6100) > 50, "nothing is to be said while it is in hand"
    member.core.done(handful, handful.start, handful.stop)
    assert member.core.wait_ms(6100) == member.core.settings.commit_ms == 10
    member.core.turn(6109)
    assert member.core.commits == 0
    member.core.turn(6110)
    assert member.core.commits == 1


def test_what_is_done_is_said_once_and_counts_as_one_commit(world: World) -> None:
    member, handful = in_hand(world, 1)
    assert member.core.commits == 0
    member.core.done(handful, handful.start, handful.stop)
    for now_ms in range(6100, 6500, 100):
        member.exchange(world, now_ms)
    assert world.coordinator.offsets[0] == 1 and member.core.commits == 1


def test_no_commit_is_said_or_counted_while_the_last_one_has_no_answer(world: World) -> None:
    member, handful = in_hand(world, 2)
    for place in (handful.start, handful.start + 1):
        member.core.done(handful, place, place + 1)
        for now_ms in range(6100, 6500, 100):
            member.exchange(world, now_ms, lambda: True)
    assert member.core.commits == 1
    for now_ms in range(20_000, 20_500, 100):
        member.exchange(world, now_ms)
    assert world.coordinator.offsets[0] == 2 and member.core.commits == 2


def test_a_queue_waits_for_the_handler_that_has_it_before_it_goes(world: World) -> None:
    (first,) = joined(world, "a", orderly=True)
    world.reader.append(2, 2)
    first.exchange(world, 6000)
    handful = first.take(6000)
    assert handful is not None and handful.queue.queue_id == 2
    second = Member("b", True, 6000)
    for now_ms in range(6100, 20_000, 100):
        for member in (second, first):
            member.exchange(world, now_ms)
    assert (TOPIC, 2) not in second.core.queues
    first.core.done(handful, handful.start, handful.stop)
    for now_ms in range(20_000, 22_000, 100):
        for member in (second, first):
            member.exchange(world, now_ms)
    assert second.core.offsets[TOPIC, 2] == 2


class SlowWriter(Writer):
    """Takes nothing until it is told to."""

    takes = False

    def answer(self, parts: tuple[bytes, ...]) -> bytes | None:
        is_append = isinstance(messages.decode_produce_request(parts[0]), messages.Append)
        return super().answer(parts) if self.takes or not is_append else None


@pytest.mark.parametrize("ms", [5000, 60_000])
def test_a_queue_waits_for_what_is_on_its_way_back_before_it_goes(world: World, ms: int) -> None:
    """Else the next owner would be given it too. But a disk may be full for hours."""
    world.writer = writer = SlowWriter()
    (first,) = joined(world, "a")
    world.reader.append(2, 1)
    first.exchange(world, 6000)
    handful = first.take(6000)
    assert handful is not None and handful.queue.queue_id == 2
    first.core.back(handful, Back(handful.start, 0, "no"), 6000)
    second = Member("b", False, 6000)
    for now_ms in range(6100, 6000 + ms, 100):
        for member in (second, first):
            member.exchange(world, now_ms)
    assert ((TOPIC, 2) in second.core.queues) == (ms > SENT_BACK_MS)
    writer.takes = True
    for now_ms in range(6000 + ms, 12_000 + ms, 100):
        for member in (second, first):
            member.exchange(world, now_ms)
    again = second.take(12_000 + ms)
    assert (again is None) == (ms < SENT_BACK_MS) and len(writer.stored) == 1


def test_a_member_that_closes_is_drained_once_what_it_sends_back_is_stored(world: World) -> None:
    world.writer = writer = SlowWriter()
    (first,) = joined(world, "a")
    world.reader.append(2, 1)
    first.exchange(world, 6000)
    handful = first.take(6000)
    assert handful is not None
    first.core.close()
    assert not first.core.is_drained, "somebody works on it"
    first.core.back(handful, Back(handful.start, 0, "no"), 6000)
    for now_ms in range(6100, 8000, 100):
        first.exchange(world, now_ms)
    assert not first.core.is_drained, "it is on its way back"
    writer.takes = True
    for now_ms in range(8000, 12_000, 100):
        first.exchange(world, now_ms)
    assert first.core.is_drained and len(writer.stored) == 1


def test_a_member_that_closes_takes_back_no_queue_that_it_has_released(world: World) -> None:
    """Its last handlers may take long: meanwhile the others have all but what those work on."""
    first, second = joined(world, "a", "b")
    world.reader.append(0, 1)
    first.exchange(world, 6000)
    handful = first.take(6000)
    assert handful is not None and handful.queue.queue_id == 0
    first.core.close()
    owners: list[set[int]] = []
    for now_ms in range(6100, 30_000, 100):
        for member in (first, second):
            member.exchange(world, now_ms)
        owners.append({q for q, (owner, _) in world.coordinator.owners.items() if owner == "a"})
    assert owners[-1] == {0} and owners == sorted(owners, key=len, reverse=True)
    assert {q for q, (owner, _) in world.coordinator.owners.items() if owner == "b"} == {1, 2}
    first.core.done(handful, handful.start, handful.stop)
    for now_ms in range(30_000, 34_000, 100):
        for member in (first, second):
            member.exchange(world, now_ms)
    assert {owner for owner, _ in world.coordinator.owners.values()} == {"b"}
    assert world.coordinator.offsets[0] == 1


def test_a_message_in_hand_for_too_long_comes_again(world: World) -> None:
    member, handful = in_hand(world, 1)
    for now_ms in [*range(10_000, 900_000, 4000), *range(900_000, 910_000, 100)]:
        member.exchange(world, now_ms)
    assert [each.topic for each in world.writer.stored] == ["SCHEDULE_TOPIC_XXXX"]
    assert world.coordinator.offsets[0] == 1
    # the handler's word comes too late, and changes nothing
    member.core.done(handful, handful.start, handful.stop)
    member.core.back(handful, Back(handful.start), 960_000)
    member.exchange(world, 961_000)
    assert len(world.writer.stored) == 1


def test_an_orderly_message_stays_in_hand_however_long_it_takes(world: World) -> None:
    """The one after it must not be handled before it."""
    member, handful = in_hand(world, 1, orderly=True)
    for now_ms in [*range(10_000, 900_000, 4000), *range(900_000, 910_000, 100)]:
        member.exchange(world, now_ms)
    assert world.writer.stored == [] and member.take(911_000) is None
    member.core.done(handful, handful.start, handful.stop)
    for now_ms in range(912_000, 913_000, 100):
        member.exchange(world, now_ms)
    assert world.coordinator.offsets[0] == 1


@pytest.mark.parametrize(("said", "made"), [(0, 1), (1, 1), (3, 3)])
def test_a_groups_topic_of_retries_has_as_many_queues_as_it_has_set_and_one_at_least(
    world: World, said: int, made: int
) -> None:
    world.coordinator.retry_queues = said
    member, handful = in_hand(world, 1)
    member.core.back(handful, Back(handful.start), 6000)
    for now_ms in range(6000, 7000, 100):
        member.exchange(world, now_ms)
    assert world.writer.made == [(f"%RETRY%{GROUP}", made)]
    assert len(world.writer.stored) == 1


@pytest.mark.parametrize("failed", [True, False], ids=["failed", "in hand for too long"])
def test_a_message_on_its_way_back_is_not_sent_back_once_more(world: World, failed: bool) -> None:
    """The writer may take longer for it than the group's handlers may."""
    member, handful = in_hand(world, 2)
    if failed:
        member.core.back(handful, Back(handful.start, reason="no"), 6000)
    for now_ms in range(900_000, 920_000, 500):
        member.core.turn(now_ms)
    assert len(member.core.send_back) == 2  # of which one was in hand for too long, or both
    for now_ms in range(920_000, 922_000, 100):
        member.exchange(world, now_ms)
    assert [_origin(each).queue_offset for each in world.writer.stored] == [0, 1]
    assert world.coordinator.offsets[0] == 2


def test_a_message_that_could_not_be_sent_back_is_handed_out_again(world: World) -> None:
    """As the broker refuses it, and takes the next one: it has failed once more by then."""
    member, handful = in_hand(world, 2)
    assert len(handful.messages) == 2
    world.writer.refusal = QueueNotFound("the topic has no such queue", 0)
    member.core.done(handful, handful.start, handful.start + 1)
    member.core.back(handful, Back(handful.start + 1), 6000)
    for now_ms in range(6000, 6300, 100):
        member.exchange(world, now_ms)
    assert not world.writer.stored and handful.queue.failures == {1: 1}
    assert not any(map(member.take, range(6300, 6000 + AGAIN_MS, 100)))
    again = next(filter(None, map(member.take, range(6000 + AGAIN_MS, 6400 + AGAIN_MS, 100))))
    assert [message.queue_offset for message in again.messages] == [1]
    world.writer.refusal = QueueNotFound("the topic has no such queue", 0)
    member.core.back(again, Back(again.start), 20_000)
    for now_ms in range(20_000, 20_500, 100):
        member.exchange(world, now_ms)
    assert not world.writer.stored and handful.queue.failures == {1: 2}
    again = next(filter(None, map(member.take, range(20_500, 20_900 + AGAIN_MS, 100))))
    member.core.back(again, Back(again.start), 40_000)
    for now_ms in range(40_000, 40_500, 100):
        member.exchange(world, now_ms)
    (stored,) = world.writer.stored
    assert (_origin(stored).queue_offset, stored.reconsume_times) == (1, 3)
    assert handful.queue.failures == {}


@pytest.mark.parametrize("delay_ms", [0, 2500])
def test_one_given_back_comes_when_its_handler_says_and_a_dead_letter_at_once(
    world: World, delay_ms: int
) -> None:
    world.coordinator.retry_queues = 3
    member, handful = in_hand(world, 2)
    wall_ms = 1_700_000_000_000
    member.core.back(handful, Back(handful.start, delay_ms=delay_ms), 6000, wall_ms)
    member.core.back(handful, Back(handful.start + 1, level=-1, delay_ms=2500), 6000, wall_ms)
    for now_ms in range(6000, 6500, 100):
        member.exchange(world, now_ms)
    again, dead = world.writer.stored
    times = decode_properties(again.properties)
    assert times["TIMER_OUT_MS"] == str(wall_ms + delay_ms) and times["REAL_TOPIC"] == "%RETRY%CG"
    assert dead.topic == "%DLQ%CG" and dead.body == b"0/1"
    # nobody consumes dead letters for their order, however many queues the group's retries have
    assert world.writer.made == [("%RETRY%CG", 3), ("%DLQ%CG", 1)]


def test_an_orderly_message_that_has_failed_waits_before_it_is_tried_again(world: World) -> None:
    member, handful = in_hand(world, 2, orderly=True)
    member.core.failed(handful, Back(handful.start, 0, "no"), 6000)
    due_ms = 6000 + member.core.settings.suspend_ms
    assert member.take(due_ms - 1) is None
    again = member.take(due_ms)
    assert again is not None and again.messages[0].queue_offset == 0


def test_an_orderly_message_fails_once_however_often_its_handler_says_so(world: World) -> None:
    member, handful = in_hand(world, 2, orderly=True)
    core, failed = member.core, Back(handful.start, 0, "no")
    for now_ms in (6000, 6001, 6002):
        core.failed(handful, failed, now_ms)
    queue = handful.queue
    assert queue.failures == {0: 1}
    again = member.take(6000 + core.settings.suspend_ms)
    assert again is not None, "and it waits from the first time on"
    core.failed(handful, failed, 7000)  # a late word of the hands that it was in before
    assert queue.failures == {0: 1} and queue.holds(again)
    core.done(again, again.start, again.start + 1)
    core.failed(again, failed, 7000)  # what is done stays so
    assert queue.failures == {} and queue.holds(again)


@pytest.mark.parametrize("delay_ms", [0, 2500])
def test_an_orderly_message_waits_as_long_as_its_handler_says(world: World, delay_ms: int) -> None:
    member, handful = in_hand(world, 2, orderly=True)
    member.core.failed(handful, Back(handful.start, delay_ms=delay_ms), 6000)
    assert member.take(5999 + delay_ms) is None
    again = member.take(6000 + delay_ms)
    assert again is not None and again.messages[0].queue_offset == 0


def test_an_orderly_message_that_its_handler_gives_up_holds_nobody_up(world: World) -> None:
    member, handful = in_hand(world, 2, orderly=True)
    member.core.failed(handful, Back(handful.start, level=-1, reason="no"), 6000)
    for now_ms in range(6000, 6500, 100):
        member.exchange(world, now_ms)
    (dead,) = world.writer.stored
    assert (dead.topic, dead.reconsume_times) == ("%DLQ%CG", 1)
    left = member.take(6500)
    assert left is not None and left.messages[0].queue_offset == 1


def test_an_orderly_message_that_always_fails_is_a_dead_letter_in_the_end(world: World) -> None:
    (member,) = joined(world, "a", orderly=True)
    world.reader.append(0, 2)
    now_ms, tries = 6000, 0
    while not world.writer.stored:
        now_ms += 100
        member.exchange(world, now_ms)
        handful = member.take(now_ms)
        if handful is not None and not world.writer.stored:
            tries += 1
            assert handful.messages[0].queue_offset == 0, "nothing overtakes it"
            member.core.failed(handful, Back(handful.start, 0, "no"), now_ms)
    assert tries == 17
    assert handful is not None
    (dead,) = world.writer.stored
    assert (dead.topic, dead.reconsume_times) == ("%DLQ%CG", 17)
    assert handful.messages[0].queue_offset == 1


def test_an_orderly_message_that_has_failed_elsewhere_has_fewer_tries_left(world: World) -> None:
    retry = Record(TOPIC, b"x", b"", queue_id=0, queue_offset=0, reconsume_times=15)
    world.reader._record = lambda queue_id, offset: encode_record(retry)
    member, handful = in_hand(world, 1, orderly=True)
    member.core.failed(handful, Back(handful.start, 0, "no"), 6000)
    member.exchange(world, 6100)
    assert world.writer.stored == []
    again = member.take(6200)
    assert again is not None
    member.core.failed(again, Back(again.start, 0, "no"), 6200)
    for now_ms in range(6300, 6800, 100):
        member.exchange(world, now_ms)
    (dead,) = world.writer.stored
    assert (dead.topic, dead.reconsume_times) == ("%DLQ%CG", 17)


@pytest.mark.parametrize(
    ("takes_ms", "order"), [(0, [0, 0, 1, 1, 2, 2]), (TURN_MS, [0, 1, 2, 0, 1, 2])]
)
def test_a_queue_keeps_its_turn_for_what_came_together_unless_its_handler_is_slow(
    world: World, takes_ms: int, order: list[int]
) -> None:
    (member,) = joined(world, "a")
    for queue_id in range(QUEUES):
        world.reader.append(queue_id, 3)
        member.exchange(world, 6000)
    taken = [member.take(6000 + at * takes_ms) for at in range(6)]
    queues = [handful.queue.queue_id for handful in taken if handful is not None]
    first = queues[0]
    assert [(queue_id - first) % QUEUES for queue_id in queues] == order
    assert member.take(6000 + 6 * takes_ms) is None


def test_the_sooner_all_is_taken_the_more_is_asked_for_at_once() -> None:
    """And a group that is slow, or has caught up, asks for little again."""
    usual: dict[str, Any] = {"timeout_ms": 10**6, "max_body_bytes": 1 << 24, "direct": True}
    reader = AssignedCore("tcp://x:1", TOPIC, selection=None, **usual)
    for queue_id in (0, 1):
        reader.add(queue_id, 0)
    now_ms, asked = 1000, []
    ways = [(1.0, SOON_MS)] * 4 + [(1.0, SOON_MS + 1), (1.0, 20), (0.1, 20), (0.1, 20)]
    for offset, (came, waits_ms) in enumerate(ways):
        ((header,),) = reader.outgoing(now_ms)
        pull = messages.decode_consume_request(header)
        assert isinstance(pull, messages.Pull)
        asked.append(pull.max_bytes >> 20)
        body = bytes(int(came * pull.max_bytes) // 2 - 200)
        raws = [
            encode_record(Record(TOPIC, body, b"", queue_id=queue_id, queue_offset=offset))
            for queue_id in (0, 1)
        ]
        parts = [
            messages.QueueSlice(queue_id, offset, offset + 1, 0, offset + 1, len(raw))
            for queue_id, raw in enumerate(raws)
        ]
        told = messages.Pulled(pull.request, tuple(parts), (0, 1), "")
        reader.received([encode(told), b"".join(raws)], now_ms)
        taken = [reader.take_queue() for _ in raws]
        assert [each.size for each in taken if each is not None] == [len(raw) for raw in raws]
        now_ms += waits_ms
    assert asked == [2, 4, 8, 8, 8, 2, 4, 2]
