"""The coordinator by itself: what it answers, what it keeps over a crash, whom it tells."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from msgspec.structs import replace

from penstock.actors.coordinator import (
    Coordinator,
    group_files,
    member_requests,
    notifications,
    operator_requests,
)
from penstock.actors.coordinator.actor import (
    CALM_MS,
    CATCH_UP_MS,
    LATEST_BURIAL_MS,
    SOON_MS,
)
from penstock.actors.coordinator.member_requests import (
    LEAST_SESSION_MS,
    MAX_SUBSCRIPTION_CHARACTERS,
)
from penstock.actors.coordinator.membership import (
    CARRIED_GRACE_MS,
    GRACE_MS,
    ORDERLY_KEEP_MS,
)
from penstock.actors.coordinator.notifications import GATHER_MS
from penstock.actors.reput import Reput
from penstock.actors.writer import Writer
from penstock.shared.memory.queue_table import QueueTable
from penstock.shared.process.doorbells import QUIET_TICK_MS
from penstock.shared.progress.group_journal import (
    Entry,
    Gone,
    Head,
    MemberRow,
    Row,
    TopicGone,
    decode_journal,
    encode_blocks,
)
from penstock.shared.queue.deleted_topics import NONE, save_deleted_topics
from penstock.shared.store.rocketmq_json import parse_fastjson
from penstock.shared.store.topics import Topics, load_topics, save_topics
from penstock.shared.wire import group_messages as words
from penstock.shared.wire.messages import Refused, encode

GROUP, TOPIC = "CG", "orders"
SESSION_MS = 15_000


class MemberByHand:
    """One member's socket, and its requests."""

    def __init__(self, broker: Any, coordinator: Any, name: str, group: str = GROUP) -> None:
        self.broker, self.coordinator = broker, coordinator
        self.name, self.group = name, group
        self.socket = broker.client(broker.run.endpoints.group)
        self.told: list[Any] = []
        self._number = 0

    def ask(self, kind: type, *fields: Any, **named: Any) -> Any:
        """The answer. What is pushed meanwhile goes to `told`."""
        self._number += 1
        request = kind(self._number, self.group, *fields, **named)
        found = self.broker.ask(self.coordinator, self.socket, encode(request))
        while True:
            answer = words.decode_group_answer(found[0][0])
            if answer.request:
                assert answer.request == self._number
                return answer
            self.told.append(answer)
            found = self.broker.ask(self.coordinator, self.socket)

    def list_groups(self) -> Any:
        self._number += 1
        header = encode(words.ListGroups(self._number))
        found = self.broker.ask(self.coordinator, self.socket, header)
        return words.decode_group_answer(found[0][0])

    def join(self, *topics: str, **named: Any) -> Any:
        subscriptions = [words.SubscriptionData(each, "TAG", "*", 1) for each in topics or (TOPIC,)]
        arguments = {"session_timeout_ms": SESSION_MS, **named}
        return self.ask(words.Join, self.name, tuple(subscriptions), **arguments)

    def claim(self, *queues: int, topic: str = TOPIC) -> Any:
        return self.ask(words.Claim, self.name, topic, queues)

    def own(self, *topics: str, **named: Any) -> Any:
        """Join, and have the first queue of "orders": its claim."""
        self.join(*topics, **named)
        return self.claim(0).queues[0]

    def commit(self, *commits: tuple[int, int, int], kind: type = words.Commit) -> Any:
        """Of (queue, offset, epoch)."""
        found = [words.QueueCommit(TOPIC, queue, at, epoch) for queue, at, epoch in commits]
        return self.ask(kind, self.name, tuple(found))

    def leave(self) -> Any:
        return self.ask(words.Leave, self.name)

    def hear(self) -> Any:
        """What is pushed, which has to come."""
        if not self.told:
            found = self.broker.ask(self.coordinator, self.socket)
            self.told.append(words.decode_group_answer(found[0][0]))
        return self.told.pop(0)


Started = tuple[Any, Any, Callable[..., MemberByHand]]


@pytest.fixture
def coordinator(pipeline: Callable[..., Any]) -> Callable[..., Started]:
    """The broker, its coordinator, and what makes a member; "orders" has four queues."""

    def make(queues: int = 4, **settings: object) -> Started:
        # what the test appends stands in the segments at once
        broker = pipeline(transient_store_pool_enable=False, **settings)
        topics = load_topics(broker.paths.topics)
        topics.put(TOPIC, queues, 1)
        save_topics(broker.paths.topics, topics)
        actor = broker.start(Coordinator)
        return broker, actor, lambda name, **more: MemberByHand(broker, actor, name, **more)

    return make


def test_a_member_that_joins_learns_who_else_is_there_and_what_to_divide(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator(broker_name="b")
    first, second = member("b@1"), member("a@2")
    joined = first.join(TOPIC, "nothing")
    assert joined.members == ("b@1",)
    assert joined.topics == (words.TopicQueues(TOPIC, 4), words.TopicQueues("nothing", 0))
    assert (joined.broker_name, joined.retry_max_times, joined.lost) == ("b", 16, ())
    assert 0 < joined.heartbeat_ms <= SESSION_MS // 3
    other = second.join()
    assert other.members == ("a@2", "b@1") and other.version > joined.version
    topics = joined.topics
    assert first.hear() == words.Changed(0, GROUP, (), other.version, other.members, topics)
    assert first.join(TOPIC, "nothing").version == other.version
    third = member("c").join()
    assert first.join(TOPIC, "nothing").version == third.version
    broker.clock.advance(GATHER_MS)
    actor.work()
    assert not first.socket.poll(20), "it knows that already"


def test_members_show_up_twice_in_a_session_and_the_more_there_are_the_less_often(
    coordinator: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "CHANGES_PER_MS", 100)
    monkeypatch.setattr(member_requests, "MOST_HEARTBEATS_PER_S", 1)
    _, _, member = coordinator()
    for name, session_ms, heartbeat_ms in (
        ("a", 600_000, member_requests.LEAST_HEARTBEAT_MS),
        ("b", 600_000, 2000),
        ("c", 500, 250),
        ("d", 600_000, 4000),
    ):
        assert member(name).join(session_timeout_ms=session_ms).heartbeat_ms == heartbeat_ms


def test_a_queue_is_one_members_until_it_gives_it_up_and_goes_on_where_it_was(
    coordinator: Callable[..., Started],
) -> None:
    broker, _, member = coordinator()
    broker.append(3)
    first, second = member("a"), member("b")
    first.join(), second.join()
    got = first.claim(0, 1)
    assert [(each.queue_id, each.offset) for each in got.queues] == [(0, 0), (1, 0)]
    assert second.claim(0, 2).taken == (0,)
    epoch = got.queues[0].epoch
    assert second.commit((0, 9, epoch)).lost == (words.HeldClaim(TOPIC, 0, epoch),)
    assert first.commit((0, 2, epoch)).lost == ()
    assert first.commit((0, 3, epoch), kind=words.Release) == words.Released(4, GROUP)
    told = second.hear()
    assert (told.group, told.members) == (GROUP, ("a", "b"))
    (after,) = second.claim(0).queues
    assert after.offset == 3 and after.epoch > epoch
    assert first.commit((0, 1, epoch)).lost == (words.HeldClaim(TOPIC, 0, epoch),)
    assert second.claim(0).queues == (after,), "asked again it is the same claim"


def test_what_was_answered_outlives_a_kill_and_a_claim_too(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator()
    first, second = member("a"), member("b")
    got, _ = first.own(), second.join()
    first.commit((0, 7, got.epoch))
    broker.crash(actor)
    again = broker.start(Coordinator)
    first.coordinator = second.coordinator = again
    # nobody has said a word to the new one, and the queue is still the first one's
    second.join()
    assert second.claim(0).taken == (0,)
    assert first.commit((0, 8, got.epoch)).lost == ()
    joined = first.join(held=(words.HeldClaim(TOPIC, 0, got.epoch),))
    assert joined.members == ("a", "b") and joined.lost == ()
    first.commit((0, 9, got.epoch), kind=words.Release)
    assert second.claim(0).queues[0].offset == 9


def test_what_is_gone_in_the_journal_stays_gone(coordinator: Callable[..., Started]) -> None:
    broker, actor, member = coordinator()
    member("a").join()
    broker.crash(actor)
    journal = broker.paths.group_journal
    (row,) = (each for each in decode_journal(journal.read_bytes())[0] if type(each) is MemberRow)
    entries: list[Entry] = [
        Row(GROUP, TOPIC, 0, 7, 0, ""),
        Row(GROUP, "deleted", 0, 8, 0, ""),
        Row("OLD", TOPIC, 0, 9, 0, ""),
        replace(row, client_id="b"),
        Gone(GROUP, "a"),
        Gone("OLD"),
        TopicGone("deleted"),
    ]
    journal.write_bytes(journal.read_bytes() + encode_blocks(entries))
    for _ in range(2):  # RocketMQ's file does not have it yet, and a claim it never had
        again = broker.start(Coordinator)
        assert again._claims.offsets() == {GROUP: {TOPIC: {0: 7}}}
        assert [*again._members.groups[GROUP].members] == ["b"]
        broker.crash(again)


def test_a_member_of_the_coordinator_before_whose_last_frame_is_read_after_its_end_is_soon_gone(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator()
    member("a").join()
    broker.crash(actor)
    again = broker.start(Coordinator)
    subscriptions = (words.SubscriptionData(TOPIC, "TAG", "*", 1),)
    join = words.Join(9, GROUP, "a", subscriptions, SESSION_MS)
    again._join(b"ended", zmq.Frame(), join, broker.clock.monotonic_ms())
    broker.clock.advance(GRACE_MS)
    again.work()
    assert not again._members.count


def test_a_silence_is_counted_from_the_start_in_another_boot_whose_clock_is_another_one(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator()
    member("a").join()
    broker.crash(actor)
    journal = broker.paths.group_journal
    found = decode_journal(journal.read_bytes())[0]
    (head,) = (each for each in found if type(each) is Head)
    (row,) = (each for each in found if type(each) is MemberRow)
    entries: list[Entry] = [replace(head, boot="another"), replace(row, unheard_ms=1)]
    journal.write_bytes(journal.read_bytes() + encode_blocks(entries))
    broker.clock.advance(SESSION_MS)
    again = broker.start(Coordinator)
    # from then on an orderly one keeps its queues
    restored = again._members.groups[GROUP].members["a"]
    assert restored.row.unheard_ms == broker.clock.monotonic_ms()


def test_a_journal_that_a_crash_has_cut_short_is_read_as_far_as_it_goes(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator()
    first = member("a")
    got = first.own()
    first.commit((0, 5, got.epoch))
    broker.crash(actor)
    journal = broker.paths.group_journal
    journal.write_bytes(journal.read_bytes() + b"\0\0\1\0half a block")
    first.coordinator = broker.start(Coordinator)
    assert first.commit((0, 6, got.epoch)).lost == ()


def test_offsets_are_saved_in_rocketmqs_file_and_another_brokers_file_counts(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator(flush_consumer_offset_interval_ms=5000)
    first = member("a")
    got = first.own()
    first.commit((0, 5, got.epoch))
    file = broker.paths.consumer_offsets
    assert not file.exists()
    broker.clock.advance(5000)
    actor.work()
    saved = json.loads(file.read_text())
    assert saved["offsetTable"] == {"orders@CG": {"0": 5}}
    assert saved["groupTopicMap"] == {"CG": ["orders"]}
    assert "\t" in file.read_text() and saved["dataVersion"]["counter"] == 1
    first.commit((0, 6, got.epoch))
    broker.crash(actor)
    # as a RocketMQ broker writes it: bare keys, and rows that only it knows
    file.write_text(
        '{"dataVersion":{"counter":9,"stateVersion":0,"timestamp":1},"offsetTable":'
        '{"orders@CG":{0:50,1:7},"t@g@broadcast":{0:1}},"x":1}'
    )
    actor = broker.start(Coordinator)
    second = member("b")
    second.coordinator = actor
    second.join()
    (zero, one) = second.claim(0, 1).queues
    assert (zero.offset, one.offset) == (50, 7) and zero.epoch > got.epoch
    broker.stop(actor)
    saved = json.loads(file.read_text())
    assert saved["offsetTable"] == {"orders@CG": {"0": 50, "1": 7}, "t@g@broadcast": {"0": 1}}
    assert saved["x"] == 1 and saved["dataVersion"]["counter"] == 10


def test_a_crash_around_a_save_keeps_what_came_after_it(
    coordinator: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        pass

    def die(name: str) -> None:
        if name == point:
            raise Killed

    for point in ("group.noted", "group.saved"):
        broker, actor, member = coordinator()
        first = member("a")
        got = first.own()
        first.commit((0, 5, got.epoch))
        broker.clock.advance(6000)
        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(group_files, "crash_point", die)
            actor.work()
        broker.crash(actor)
        first.coordinator = broker.start(Coordinator)
        assert first.commit((0, 6, got.epoch)).lost == (), point


def test_a_member_whose_connection_is_gone_gives_its_queues_to_others_after_a_moment(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator()
    first, second = member("a"), member("b")
    first.join(), second.join()
    first.hear()
    first.claim(0)
    assert second.claim(0).taken == (0,)
    first.socket.close()
    while not actor._members._gone:
        actor.work()
    broker.clock.advance(GRACE_MS - 1)
    assert second.join().members == ("a", "b")
    broker.clock.advance(1)
    assert second.hear().members == ("b",)
    assert second.join().members == ("b",)
    assert second.claim(0).queues


def test_a_member_that_comes_back_at_once_has_never_been_away(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator()
    first = member("a")
    joined = first.join()
    got = first.claim(0, 1).queues
    first.socket.close()
    while not actor._members._gone:
        actor.work()
    back = member("a")
    held = tuple(words.HeldClaim(TOPIC, each.queue_id, each.epoch) for each in got[:1])
    again = back.join(held=held)
    assert again.version == joined.version and again.lost == ()
    broker.clock.advance(GRACE_MS)
    assert back.join(held=held).members == ("a",)
    assert back.claim(0).queues == got[:1]
    # what it did not name is another's by right, and its own only by a new claim
    assert back.claim(1).queues[0].epoch > got[1].epoch


@pytest.mark.parametrize("dies", ["its gateway", "the broker"])
def test_whom_a_gateway_spoke_for_is_a_member_until_a_gateway_and_its_client_may_be_back(
    coordinator: Callable[..., Started], dies: str
) -> None:
    """RocketMQ's clients wait for 1 to 3 s between two tries, and divide the queues again at each
    change of the group: one that comes back first would have all of them."""
    broker, actor, member = coordinator()
    first, second = member("a"), member("b")
    first.join(carried=True), second.join(carried=True)
    assert first.claim(0).queues
    for each in (first, second):
        each.socket.close()
    while len(actor._members._gone) < 2:
        actor.work()
    if dies == "the broker":
        broker.crash(actor)
        actor = broker.start(Coordinator)
    broker.clock.advance(CARRIED_GRACE_MS - 1)
    actor.work()
    back = MemberByHand(broker, actor, "a")
    joined = back.join(carried=True)
    assert joined.members == ("a", "b") and not back.told
    assert back.claim(0).queues
    broker.clock.advance(1000)
    actor.work()
    assert back.join(carried=True).members == ("a",), "the other's client has died as well"


def test_what_a_full_join_does_not_name_stays_its_members(
    coordinator: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member may have more claims than one request has room for."""
    monkeypatch.setattr(member_requests, "MAX_CLAIMS", 2)
    _, _, member = coordinator()
    first, back, second = member("a"), member("a"), member("b")
    first.join()
    got = first.claim(0, 1, 2).queues
    held = tuple(words.HeldClaim(TOPIC, each.queue_id, each.epoch) for each in got)
    assert back.join(held=held[:2]).lost == ()
    second.join()
    assert second.claim(2).taken == (2,)
    assert back.claim(2).queues == got[2:], "of the same epoch"


def test_what_an_ended_connection_has_left_sets_no_offset_back_and_takes_no_queue_away(
    coordinator: Callable[..., Started],
) -> None:
    """It may be read after words of the next connection: sockets are read in turns."""
    broker, actor, member = coordinator()
    first, back = member("a"), member("a")
    got = first.own()
    late = first._number + 1
    back._number = late
    held = (words.HeldClaim(TOPIC, 0, got.epoch),)
    back.join(held=held)
    assert back.commit((0, 8, got.epoch)).lost == ()
    assert first.commit((0, 5, got.epoch)).lost == () and first._number == late
    seat = actor._claims.seat(GROUP, (TOPIC, 0))
    assert seat.offset == 8
    assert back.commit((0, 2, got.epoch)).lost == () and seat.offset == 2, "its own word counts"
    subscriptions = (words.SubscriptionData(TOPIC, "TAG", "*", 1),)
    join = words.Join(late, GROUP, "a", subscriptions, SESSION_MS)
    # a frame of a connection that is no more says nothing of it
    actor._join(b"ended", zmq.Frame(), join, broker.clock.monotonic_ms())
    assert seat.owner == "a"
    broker.clock.advance(GRACE_MS)
    assert back.join(held=held).members == ("a",) and seat.owner == "a"


def test_a_silent_member_is_none_after_its_session_and_an_orderly_one_keeps_its_queues(
    coordinator: Callable[..., Started],
) -> None:
    for orderly in (False, True):
        broker, actor, member = coordinator()
        first, second = member("a"), member("b")
        stays = {"orderly": orderly, "session_timeout_ms": 600_000}
        first.join(orderly=orderly), second.join(**stays)
        got = first.claim(0).queues[0]
        assert second.claim(0).taken == (0,)
        broker.clock.advance(SESSION_MS + 1000)
        actor.work()
        assert second.join(**stays).members == ("b",)
        assert second.claim(0).taken == ((0,) if orderly else ())
        refused = first.commit((0, 1, got.epoch))
        assert isinstance(refused, Refused) and refused.status == "UNKNOWN_MEMBER"
        if orderly:
            broker.clock.advance(ORDERLY_KEEP_MS - SESSION_MS - 1000)
            actor.work()
            assert second.claim(0).queues
        lost = first.join(held=(words.HeldClaim(TOPIC, 0, got.epoch),)).lost
        assert lost == (words.HeldClaim(TOPIC, 0, got.epoch),)


def test_an_orderly_member_that_leaves_after_its_silence_keeps_no_queue(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator()
    first, second = member("a"), member("b")
    first.own(orderly=True), second.join(session_timeout_ms=600_000)
    broker.clock.advance(SESSION_MS + 1000)
    actor.work()
    assert second.claim(0).taken == (0,), "it is no member, and may be back"
    first.leave()
    assert [each.queue_id for each in second.claim(0).queues] == [0]


@pytest.mark.parametrize("at", ["at once", "a member still", "a member no more"])
def test_the_time_that_a_silent_member_keeps_its_queues_is_one_for_all_coordinators(
    coordinator: Callable[..., Started], at: str
) -> None:
    """Each that came once began it again: queues had nobody for minutes while others died."""
    broker, actor, member = coordinator()
    first, second = member("a"), member("b")
    stays = {"orderly": True, "session_timeout_ms": 600_000}
    first.own(orderly=True), second.join(**stays)
    seen_ms = broker.clock.monotonic_ms()
    broker.clock.advance({"at once": 1, "a member still": 5000}.get(at, SESSION_MS + 1000))
    actor.work()
    before_ms = broker.clock.monotonic_ms()
    for _ in range(3):
        broker.crash(actor)
        second.coordinator = actor = broker.start(Coordinator)
        second.join(**stays)
        assert second.claim(0).taken == (0,)
        broker.clock.advance(14_000)
        actor.work()
    # one that was a member when its coordinator died may have been heard until then
    kept_from_ms = seen_ms if at == "a member no more" else before_ms
    broker.clock.advance(kept_from_ms + ORDERLY_KEEP_MS - 1 - broker.clock.monotonic_ms())
    actor.work()
    assert second.claim(0).taken == (0,)
    broker.clock.advance(1)
    actor.work()
    assert second.claim(0).queues


def test_one_that_is_heard_again_has_the_whole_time_before_it_again(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator()
    first = member("a")
    got = first.own(orderly=True)
    broker.crash(actor)
    actor = broker.start(Coordinator)
    broker.clock.advance(SESSION_MS - 1000)
    first.coordinator = actor
    first.commit((0, 1, got.epoch))
    said_ms = broker.clock.monotonic_ms()
    for _ in range(2):
        broker.crash(actor)
        actor = broker.start(Coordinator)
        broker.clock.advance(SESSION_MS + 1000)
        actor.work()
    assert actor._members.kept == {(GROUP, "a"): said_ms + ORDERLY_KEEP_MS}


def test_after_a_start_of_the_machine_the_time_begins_again(
    coordinator: Callable[..., Started],
) -> None:
    """Its clock began again, too."""
    broker, actor, member = coordinator()
    member("a").own(orderly=True)
    broker.clock.advance(SESSION_MS + 1000)
    actor.work()
    assert actor._members.kept
    broker.crash(actor)
    broker.run = msgspec.structs.replace(broker.run, boot_id="another")
    actor = broker.start(Coordinator)
    now_ms = broker.clock.monotonic_ms()
    assert actor._members.kept == {(GROUP, "a"): now_ms + ORDERLY_KEEP_MS}


def test_a_member_that_was_silent_has_its_queues_back_where_nobody_took_them(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator()
    first = member("a")
    got = first.own()
    broker.clock.advance(SESSION_MS + 1000)
    actor.work()
    held = (words.HeldClaim(TOPIC, 0, got.epoch),)
    assert first.join(held=held).lost == ()
    assert first.commit((0, 1, got.epoch)).lost == ()


def test_one_that_came_back_keeps_its_queues_when_the_time_it_kept_them_silently_is_over(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator()
    first = member("a")
    got = first.own(orderly=True)
    broker.clock.advance(SESSION_MS + 1000)
    actor.work()
    assert actor._members.kept
    held = (words.HeldClaim(TOPIC, 0, got.epoch),)
    assert first.join(held=held, orderly=True, session_timeout_ms=600_000).lost == ()
    broker.clock.advance(ORDERLY_KEEP_MS)
    actor.work()
    assert first.commit((0, 1, got.epoch)).lost == ()


def test_leaving_hands_over_at_once(coordinator: Callable[..., Started]) -> None:
    _, _, member = coordinator()
    first, second = member("a"), member("b")
    first.join(), second.join()
    first.claim(0)
    second.claim(0)
    assert isinstance(first.leave(), words.Left) and isinstance(first.leave(), words.Left)
    assert second.hear().members == ("b",)
    assert second.join().members == ("b",) and second.claim(0).queues


def test_a_late_word_of_leaving_does_not_end_who_has_the_name_now(
    coordinator: Callable[..., Started],
) -> None:
    broker, _, member = coordinator()
    broker.append(1)
    before, after, other = member("a"), member("a"), member("b")
    before.own()
    after.join()
    (claim,) = after.claim(0).queues
    assert before.leave() == words.Left(3, GROUP), "it goes, and is told so"
    assert other.join().members == ("a", "b")
    assert other.claim(0).taken == (0,)
    assert after.commit((0, 1, claim.epoch)).lost == ()
    after.leave()
    assert other.claim(0).queues[0].offset == 1


def test_a_second_process_of_one_id_is_refused_while_the_first_is_there(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator()
    first, again, second = member("a"), member("a"), member("a")
    got = first.own(instance="x")
    refused = second.join(instance="y")
    assert (refused.status, refused.what) == (
        "INVALID_ARGUMENT",
        "another process is this member of the group",
    )
    assert second.claim(0).status == "UNKNOWN_MEMBER"
    assert first.commit((0, 1, got.epoch)).lost == ()
    held = (words.HeldClaim(TOPIC, 0, got.epoch),)
    assert again.join(instance="x", held=held).lost == (), "it has come by another connection"
    assert second.join(instance="y").status == "INVALID_ARGUMENT"
    broker.clock.advance(SESSION_MS + 1000)
    actor.work()
    assert second.join(instance="y").members == ("a",), "a silent one is there no more"
    assert again.join(instance="x", held=held).status == "INVALID_ARGUMENT"
    assert second.claim(0).queues[0].offset == 1


def test_members_that_want_different_things_are_named_in_the_log_once(
    coordinator: Callable[..., Started], caplog: pytest.LogCaptureFixture
) -> None:
    broker, _, member = coordinator()
    for name, topics in (("a", ("orders", "bills")), ("b", ("bills", "orders"))):
        member(name).join(*topics)
        broker.clock.advance(GATHER_MS)
    assert not caplog.records
    third = member("c")
    for topic in ("orders", "bills"):
        third.join(topic)
    (said,) = caplog.messages
    assert "a to bills (*), orders (*) and c to orders (*)" in said


def test_a_timeout_in_hand_that_nobody_can_keep_is_rocketmqs(
    coordinator: Callable[..., Started],
) -> None:
    """Its broker asks nobody for this setting, so a file may say anything."""
    _, _, member = coordinator()
    first = member("a")
    for minutes, timeout_ms in ((0, 900_000), (-1, 900_000), (2, 120_000)):
        first.ask(words.SetGroup, {"consumeTimeoutMinute": minutes})
        assert first.join().consume_timeout_ms == timeout_ms


def test_one_that_is_parting_keeps_its_queues_and_the_others_divide_them(
    coordinator: Callable[..., Started],
) -> None:
    broker, _, member = coordinator()
    first, second = member("a"), member("b")
    got = first.own()
    second.join()
    first.hear()
    held = (words.HeldClaim(TOPIC, 0, got.epoch),)
    broker.clock.advance(GATHER_MS)
    assert first.join(held=held, parting=True).members == ("b",)
    assert second.hear().members == ("b",)
    assert second.claim(0, 1).taken == (0,)
    assert first.commit((0, 2, got.epoch), kind=words.Release).lost == ()
    assert second.hear().members == ("b",)
    assert second.claim(0).queues[0].offset == 2
    broker.clock.advance(GATHER_MS)
    assert first.join().members == ("a", "b"), "another process of the same id"


def test_many_changes_are_told_once(
    coordinator: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, actor, member = coordinator()
    monkeypatch.setattr(notifications, "CHANGES_PER_MS", 100)  # so few hold up no answer
    first = member("a")
    first.join()
    others = [member(f"b{number}") for number in range(5)]
    for other in others:
        other.join()
    assert len(first.hear().members) == 2, "of the first, at once"
    actor.work()
    assert not first.socket.poll(20)
    broker.clock.advance(GATHER_MS)
    assert len(first.hear().members) == 6, "of all others, together"
    assert len(first.join().members) == 6
    broker.clock.advance(GATHER_MS)
    actor.work()
    assert not first.socket.poll(20)


def test_a_member_that_says_nothing_is_not_told_without_end(
    coordinator: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be frozen, and what it does not read is kept for it. Its heartbeat brings the rest."""
    broker, actor, member = coordinator()
    monkeypatch.setattr(notifications, "CHANGES_PER_MS", 100)
    monkeypatch.setattr(notifications, "MOST_UNHEARD", 3)
    first, other = member("a"), member("b")
    version = first.join().version
    for _ in range(3):
        other.join()
        broker.clock.advance(GATHER_MS)
        other.leave()
        broker.clock.advance(GATHER_MS)
        actor.work()
    told = [first.hear() for _ in range(3)]
    actor.work()
    assert not first.socket.poll(20)
    assert not first.ask(words.Beat, "a", told[-1].version, 0).is_same
    assert first.join().version == version + 6
    other.join()
    assert len(first.hear().members) == 2, "it has been heard"


def test_those_that_join_at_once_are_answered_together(
    coordinator: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So each divides once, among all of them."""
    broker, actor, member = coordinator()
    monkeypatch.setattr(notifications, "CHANGES_PER_MS", 1 / 100)
    members = [member(name) for name in "abc"]
    subscriptions = (words.SubscriptionData(TOPIC, "TAG", "*", 1),)
    for each in members:
        request = words.Join(1, GROUP, each.name, subscriptions, SESSION_MS)
        broker.ask(actor, each.socket, encode(request), answers=0)
    while actor._members.count < 3:
        actor.work()
    assert not any(each.socket.poll(20) for each in members)
    broker.clock.advance(1000)
    for each in members:
        (raw,) = broker.ask(actor, each.socket)[0]
        assert words.decode_group_answer(raw).members == ("a", "b", "c")
    actor.work()
    assert not any(each.socket.poll(20) for each in members), "there is no more news"


def test_a_heartbeat_says_whether_the_member_is_what_it_takes_itself_for(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator()
    first = member("a")
    first.own()
    version = first.join(held=(words.HeldClaim(TOPIC, 0, 1),)).version
    assert first.ask(words.Beat, "a", version, 1).is_same
    assert not first.ask(words.Beat, "a", version, 0).is_same, "it has a claim"
    assert not first.ask(words.Beat, "a", version - 1, 1).is_same
    for _ in range(3):  # that is enough to be alive
        broker.clock.advance(SESSION_MS - 1000)
        assert first.ask(words.Beat, "a", version, 1).is_same
    elsewhere = member("a")
    assert not elsewhere.ask(words.Beat, "a", version, 1).is_same, "another connection"
    assert member("b").ask(words.Beat, "b", version, 0).status == "UNKNOWN_MEMBER"
    broker.clock.advance(SESSION_MS + 1000)
    actor.work()
    assert first.ask(words.Beat, "a", version, 1).status == "UNKNOWN_MEMBER"


def test_it_sleeps_while_nobody_waits_and_after_heartbeats_alone_hears_nothing_for_a_moment(
    coordinator: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it reads them together: others that come meanwhile wait some ms."""
    monkeypatch.setattr(notifications, "CHANGES_PER_MS", 100)
    broker, actor, member = coordinator()
    listened = broker.stage_of(actor)._listened
    first, other = member("a"), member("b")
    version = first.join().version
    actor.work()
    quiet_ms = min(QUIET_TICK_MS, actor._inlet.idle_ms)
    assert GATHER_MS < actor.idle_ms() == quiet_ms
    assert {actor._socket, actor._connections.events, actor._retry_topics.socket} <= {*listened}

    def turn(request: Any) -> bool:
        first.socket.send(encode(request))
        assert actor._socket.poll(60_000)
        return bool(actor.work())

    assert not turn(words.Beat(9, GROUP, "a", version, 0))
    assert actor.idle_ms() == CALM_MS and actor._socket not in listened
    monkeypatch.setattr("penstock.actors.coordinator.actor.CALM_MEMBERS", 1)
    assert actor.idle_ms() == CALM_MS + 1, "the more members the longer"
    assert not actor.work()
    assert actor.idle_ms() == quiet_ms and actor._socket in listened
    assert turn(words.Commit(10, GROUP, "a", ()))
    actor.work()
    other.join(), other.leave()  # the first change is told at once, and the next one later
    actor.work()
    assert actor.idle_ms() == GATHER_MS
    broker.clock.advance(GATHER_MS)
    actor.work(), actor.work()
    assert actor.idle_ms() == quiet_ms
    # of this the queues know nothing, because there is no reput
    broker.positions.initialise("flushed", broker.append())
    turn(words.ResetOffsets(11, GROUP, TOPIC, {0: 0}))
    actor.work()
    assert actor.idle_ms() == SOON_MS, "nobody reports that the queues have it"
    broker.clock.advance(CATCH_UP_MS)
    actor.work()
    assert actor.idle_ms() == SOON_MS
    broker.clock.advance(1)
    while first.hear().request != 11:
        continue
    actor.work()
    assert actor.idle_ms() == quiet_ms


@pytest.mark.parametrize("kind", [words.Claim, words.Commit, words.Release])
def test_a_member_that_asks_for_something_is_alive_without_a_heartbeat(
    coordinator: Callable[..., Started], kind: type
) -> None:
    broker, actor, member = coordinator()
    first = member("a")
    first.join()
    for _ in range(3):
        broker.clock.advance(SESSION_MS - 1000)
        first.claim() if kind is words.Claim else first.commit(kind=kind)
        actor.work()
    assert actor._members.count == 1


def test_a_heartbeat_that_is_read_after_the_end_of_its_connection_brings_nobody_back(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator()
    first = member("a")
    version = first.join().version
    peer = actor._members.member(GROUP, "a").peer
    first.socket.close()
    while not actor._members._gone:
        actor.work()
    beat = words.Beat(9, GROUP, "a", version, 0)
    actor._serve(peer, zmq.Frame(), beat, broker.clock.monotonic_ms())
    assert not actor._answers[-1][2].is_same


def test_a_member_that_comes_back_without_a_queue_leaves_it_to_those_that_wait_for_it(
    coordinator: Callable[..., Started],
) -> None:
    broker, _, member = coordinator()
    first, back, second = member("a"), member("a"), member("b")
    first.join(), second.join()
    (zero, _) = first.claim(0, 1).queues
    assert second.claim(1).taken == (1,)
    broker.clock.advance(GATHER_MS)
    assert back.join(held=(words.HeldClaim(TOPIC, 0, zero.epoch),)).lost == ()
    assert second.hear().members == ("a", "b")
    assert [each.queue_id for each in second.claim(0, 1).queues] == [1]


def test_a_member_may_go_back_to_the_first_message_of_a_queue(
    coordinator: Callable[..., Started],
) -> None:
    _, _, member = coordinator()
    first = member("a")
    got = first.own()
    for kind in (words.Commit, words.Release):
        assert first.commit((0, 5, got.epoch)).lost == ()
        assert first.commit((0, 0, got.epoch), kind=kind).lost == ()
        assert first.claim(0).queues[0].offset == 0


def test_a_queue_that_is_given_up_before_anything_is_read_stays_where_it_was(
    coordinator: Callable[..., Started],
) -> None:
    _, _, member = coordinator()
    first = member("a")
    assert first.commit((0, 5, first.own().epoch)).lost == ()
    (again,) = first.claim(0).queues
    assert first.commit((0, -1, again.epoch), kind=words.Release).lost == ()
    assert first.claim(0).queues[0].offset == 5


def test_a_member_waits_for_queues_of_all_topics_that_it_asked_for_in_vain_and_of_no_others(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator()
    topics = load_topics(broker.paths.topics)
    topics.put("paid", 1, 1)
    save_topics(broker.paths.topics, topics)
    broker.clock.advance(1000)
    first, second = member("a"), member("b")
    first.join(TOPIC, "paid"), second.join(TOPIC, "paid")
    got = {topic: first.claim(0, topic=topic).queues[0].epoch for topic in (TOPIC, "paid")}
    for topic in (TOPIC, "paid"):
        assert second.claim(0, topic=topic).taken == (0,)
    waits_for = actor._members.member(GROUP, "b").waits_for
    assert waits_for == {TOPIC, "paid"}
    assert second.claim(1, topic=TOPIC).taken == () and waits_for == {"paid"}
    second.claim(0)
    broker.clock.advance(GATHER_MS)
    first.commit((0, 0, got[TOPIC]), kind=words.Release)
    assert second.hear().members == ("a", "b")
    assert waits_for == {"paid"}, "it has asked for that first, and waits for it still"


def test_members_and_queues_too_many_are_told_to_come_again(
    coordinator: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "CHANGES_PER_MS", 100)
    monkeypatch.setattr(member_requests, "MAX_MEMBERS", 3)
    monkeypatch.setattr(member_requests, "MAX_MEMBERS_PER_GROUP", 2)
    for module in (member_requests, operator_requests):
        monkeypatch.setattr(module, "MAX_SEATS", 2)
    _, _, member = coordinator()
    first = member("a")
    first.join(), member("b").join()
    for refused in (member("c").join(), first.claim(0, 1, 2)):
        assert refused.status == "SYSTEM_BUSY"
        assert refused.retry_after_ms == member_requests.BUSY_MS
    assert not isinstance(member("a", group="OTHER").join(), Refused)
    assert member("b", group="OTHER").join().status == "SYSTEM_BUSY"
    assert [each.queue_id for each in first.claim(0, 1, 1).queues] == [0, 1], "they are there"
    held = words.HeldClaim(TOPIC, 3, 99)
    assert member("a").join(held=(held,)).lost == (held,)
    assert first.ask(words.ResetOffsets, TOPIC, {3: 0}).status == "SYSTEM_BUSY"


def test_a_topic_that_gets_more_queues_is_told_to_its_groups(
    coordinator: Callable[..., Started],
) -> None:
    broker, _, member = coordinator()
    first, other = member("a"), member("x", group="OTHER")
    version = first.join().version
    other.join("elsewhere")
    topics = load_topics(broker.paths.topics)
    topics.put(TOPIC, 6, 2)
    save_topics(broker.paths.topics, topics)
    broker.clock.advance(1000)
    told = first.hear()
    assert told.topics == (words.TopicQueues(TOPIC, 6),) and told.version > version
    assert not other.socket.poll(20)


def test_nobody_is_buried_while_requests_wait_that_may_be_its_own(
    coordinator: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.actors.coordinator.actor.REQUESTS_AT_ONCE", 1)
    monkeypatch.setattr("penstock.actors.coordinator.actor.LATEST_BURIAL_MS", 10 * SESSION_MS)
    broker, actor, member = coordinator()
    first, silent = member("a"), member("b")
    version = first.join().version
    silent.join()
    broker.clock.advance(SESSION_MS + 1000)
    first.socket.send(encode(words.Beat(9, GROUP, "a", version, 0)))
    assert actor._socket.poll(60_000)
    actor.work()
    assert actor._members.count == 2, "another one's word may come next"
    actor.work()
    assert actor._members.count == 1


def test_the_silent_are_looked_for_now_and_then_even_where_requests_never_end(
    coordinator: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.actors.coordinator.actor.REQUESTS_AT_ONCE", 1)
    broker, actor, member = coordinator()
    first, silent, other = member("a"), member("b"), member("c")
    version = first.join().version
    silent.join(), other.join(session_timeout_ms=SESSION_MS + 2000)

    def count_after(ms: int) -> int:
        """How many are members after a turn that had no room for all requests."""
        broker.clock.advance(ms)
        first.socket.send(encode(words.Beat(9, GROUP, "a", version, 0)))
        assert actor._socket.poll(60_000)
        actor.work()
        return int(actor._members.count)

    assert count_after(SESSION_MS + 1000) == 2
    assert count_after(LATEST_BURIAL_MS) == 2
    assert count_after(1) == 1


def test_a_claim_in_a_topic_that_was_made_just_now_is_given(
    coordinator: Callable[..., Started],
) -> None:
    broker, _, member = coordinator()
    first = member("a")
    first.join()
    topics = load_topics(broker.paths.topics)
    topics.put("new", 1, 2)
    save_topics(broker.paths.topics, topics)
    answer = first.claim(0, 1, topic="new")  # the clock stands still: no look is due
    assert [each.queue_id for each in answer.queues] == [0] and answer.taken == (1,)
    topics.put("new", 2, 3)
    save_topics(broker.paths.topics, topics)
    found = first.claim(0, 1, topic="new").queues
    assert [each.queue_id for each in found] == [0, 1], "one of them is new"


def test_a_claim_in_a_new_topic_waits_for_the_look_after_the_pause(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator()
    member("a").join()
    now_ms = broker.clock.monotonic_ms()
    # as after a look that took long
    actor._topics._look_ms = actor._topics._rested_ms = now_ms + 200
    topics = load_topics(broker.paths.topics)
    topics.put("new", 1, 2)
    save_topics(broker.paths.topics, topics)
    actor._serve(b"nobody", zmq.Frame(), words.Claim(9, GROUP, "a", "new", (0,)), now_ms)
    for _ in range(3):
        actor.work()
        assert len(actor._long._waiting) == 1
    broker.clock.advance(200)
    for _ in range(3):
        actor.work()
    assert not actor._long._waiting
    seat = actor._claims.seat(GROUP, ("new", 0))
    assert seat is not None and seat.owner == "a"


def test_an_operator_sets_offsets_in_a_topic_that_was_made_just_now(
    coordinator: Callable[..., Started],
) -> None:
    broker, _, member = coordinator()
    first = member("a")
    first.join()
    topics = load_topics(broker.paths.topics)
    topics.put("new", 1, 2)
    save_topics(broker.paths.topics, topics)
    assert first.ask(words.ResetOffsets, "new", {0: 0}).offsets == {0: (-1, 0)}


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_offsets_are_set_once_all_that_was_acknowledged_is_in_the_queues(
    coordinator: Callable[..., Started], flush: str
) -> None:
    """What is not on disk is not acknowledged, where the producers wait for that. And no claim
    waits, where nobody works exactly once."""
    broker, actor, member = coordinator(flush_disk_type=flush)
    member("a").join()
    broker.append(1)
    now_ms = broker.clock.monotonic_ms()
    for request in (
        words.ResetOffsets(7, GROUP, TOPIC, {0: 0}),
        words.DeleteGroup(8, "OTHER"),
        words.Claim(9, GROUP, "a", TOPIC, (0,)),
    ):
        actor._serve(b"nobody", zmq.Frame(), request, now_ms)
    actor.work()
    waiting = [each.request for each in actor._long._waiting.values()]
    assert waiting == ([7, 8] if flush == "async" else [])


def test_a_queue_that_its_topic_has_no_more_is_given_to_nobody_though_its_offset_is_known(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator()
    first, second = member("a"), member("b")
    first.join()
    claims = first.claim(1, 2, 3).queues
    assert first.commit(*((each.queue_id, 0, each.epoch) for each in claims)).lost == ()
    first.leave()
    document = parse_fastjson(broker.paths.topics.read_text())
    document["topicConfigTable"][TOPIC] |= {"readQueueNums": 2, "writeQueueNums": 2}
    broker.paths.topics.write_text(json.dumps(document))
    broker.clock.advance(1000)
    actor.work()
    second.join()
    answer = second.claim(1, 2, 3)
    assert [each.queue_id for each in answer.queues] == [1] and answer.taken == (2, 3)


def test_a_topic_that_is_created_again_between_two_looks_is_another_one(
    coordinator: Callable[..., Started],
) -> None:
    """The file shows the name both times; the writer's count of deletions does not stand still."""
    broker, actor, member = coordinator()
    first = member("a")
    got = first.own()
    first.commit((0, 50, got.epoch))
    _delete(broker, TOPIC)
    actor.work()
    held = (words.HeldClaim(TOPIC, 0, got.epoch),)
    assert first.join(TOPIC, held=held).lost == held
    assert first.claim(0).queues[0].offset == 0


@pytest.mark.parametrize("is_created", [True, False], ids=["created again", "gone"])
def test_a_deletion_that_no_coordinator_has_seen_counts_at_the_next_start_and_once(
    coordinator: Callable[..., Started], is_created: bool
) -> None:
    broker, actor, member = coordinator()
    first = member("a")
    got = first.own()
    first.commit((0, 50, got.epoch))
    broker.stop(actor)
    _delete(broker, TOPIC)
    topics = load_topics(broker.paths.topics)
    if not is_created:
        save_topics(broker.paths.topics, _without(TOPIC, topics))
    first.coordinator = actor = broker.start(Coordinator)
    held = (words.HeldClaim(TOPIC, 0, got.epoch),)
    lost = first.join(TOPIC, held=held).lost
    save_topics(broker.paths.topics, topics)
    broker.clock.advance(1000)
    actor.work()
    got = first.claim(0).queues[0]
    assert got.offset == 0 and lost == held
    # what the group does in the new topic stays, whoever of the two saves it
    first.commit((0, 3, got.epoch))
    broker.crash(actor)
    first.coordinator = actor = broker.start(Coordinator)
    assert first.claim(0).queues[0].offset == 3
    first.commit((0, 4, got.epoch))
    broker.stop(actor)
    broker.paths.group_journal.unlink()
    first.coordinator = broker.start(Coordinator)
    first.join(TOPIC)
    assert first.claim(0).queues[0].offset == 4
    assert first.list_groups().groups.keys() == {GROUP}


def _delete(broker: Any, topic: str) -> None:
    """As the writer does, of a topic that may be created again by then."""
    gone = NONE.with_rows([topic], 1000, 1).settled(frozenset())
    save_deleted_topics(broker.paths.deleted_topics, gone)
    broker.positions.initialise("deleted_topics", gone.last)


def test_a_topic_that_is_deleted_takes_its_offsets_along(
    coordinator: Callable[..., Started],
) -> None:
    """One that is made again begins from scratch; one that stays keeps what it has."""
    broker, actor, member = coordinator()
    topics = load_topics(broker.paths.topics)
    topics.put("stays", 1, 2)
    save_topics(broker.paths.topics, topics)
    broker.clock.advance(1000)
    actor.work()
    first = member("a")
    got = first.own(TOPIC, "stays")
    first.commit((0, 50, got.epoch))
    first.claim(0, topic="stays")
    save_topics(broker.paths.topics, _without(TOPIC, topics))
    broker.clock.advance(1000)
    assert first.hear().version
    held = (words.HeldClaim(TOPIC, 0, got.epoch),)
    assert first.join(TOPIC, "stays", held=held).lost == held
    broker.crash(actor)
    topics.put(TOPIC, 4, 3)
    save_topics(broker.paths.topics, topics)
    first.coordinator = broker.start(Coordinator)
    first.join(TOPIC, "stays")
    assert first.claim(0).queues[0].offset == 0
    queues = first.ask(words.DescribeGroup).queues
    assert {each.topic for each in queues if each.offset >= 0} == {TOPIC, "stays"}


def _without(topic: str, topics: Topics) -> Topics:
    document = json.loads(topics.encode())
    del document["topicConfigTable"][topic]
    return Topics(document)


# --- where a group begins ---


@pytest.mark.parametrize(
    ("rule", "at"), [("last", 5), ("first", 2), ("timestamp", 4)], ids=lambda value: str(value)
)
def test_a_new_group_begins_by_its_rule_where_the_queue_is_not_young(
    coordinator: Callable[..., Started], work: Callable[..., None], rule: str, at: int
) -> None:
    broker, _, member = coordinator(file_reserved_time_h=0)
    times = []
    for _ in range(5):
        broker.clock.advance(1000)
        times.append(broker.clock.now_ms())
        broker.append()
    _dispatch(broker, work)
    _expire(broker, 2)
    assert member("a").own(start=rule, start_timestamp_ms=times[4]).offset == at


@pytest.mark.parametrize(
    ("rule", "at"), [("last", 2), ("first", 2), ("timestamp", 5)], ids=lambda value: str(value)
)
def test_a_group_begins_with_all_of_its_retries_unless_it_begins_at_a_time(
    coordinator: Callable[..., Started], work: Callable[..., None], rule: str, at: int
) -> None:
    broker, _, member = coordinator(file_reserved_time_h=0)
    topic = "%RETRY%CG"
    topics = load_topics(broker.paths.topics)
    topics.put(topic, 1, 2)
    save_topics(broker.paths.topics, topics)
    now_ms = broker.clock.now_ms()
    broker.append(5, topic=topic)
    _dispatch(broker, work)
    _expire(broker, 2)
    first = member("a")
    first.join(topic, start=rule, start_timestamp_ms=now_ms)
    assert first.claim(0, topic=topic).queues[0].offset == at


def test_a_young_queue_is_read_from_its_beginning_whatever_the_rule(
    coordinator: Callable[..., Started], work: Callable[..., None]
) -> None:
    broker, _, member = coordinator()
    broker.append(3)
    _dispatch(broker, work)
    first = member("a")
    first.join(start="last")
    assert [each.offset for each in first.claim(0, 1).queues] == [0, 0]


def test_where_a_group_begins_is_decided_once(
    coordinator: Callable[..., Started], work: Callable[..., None]
) -> None:
    """RocketMQ asks again at the next start, and passes over what came in between."""
    broker, actor, member = coordinator()
    broker.append(3)
    _dispatch(broker, work)
    _expire(broker, 1)
    first = member("a")
    assert first.own(start="last").offset == 3
    first.leave()
    broker.append(4)
    _dispatch(broker, work)
    broker.crash(actor)
    second = member("b")
    second.coordinator = broker.start(Coordinator)
    second.join(start="last")
    assert second.claim(0).queues[0].offset == 3


def test_a_member_that_decides_itself_is_asked_where_until_it_has_committed(
    coordinator: Callable[..., Started], work: Callable[..., None]
) -> None:
    broker, actor, member = coordinator()
    broker.append(3)
    _dispatch(broker, work)
    first = member("a")
    assert first.own(start="member").offset == 0, "a young queue has no other beginning"
    first.leave()
    _expire(broker, 1)
    first.group = "other"
    got = first.own(start="member")
    assert got.offset == -1 and first.claim(0).queues == (got,)
    assert first.list_groups().groups["other"] == (1, -1), "how far it lags nobody knows"
    (chosen,) = first.ask(words.Claim, "a", TOPIC, (1,), chosen=True).queues
    assert chosen.offset == -1, "it is young, but its member has decided already"
    broker.crash(actor)
    second = member("b", group="other")
    first.coordinator = second.coordinator = broker.start(Coordinator)
    second.join(start="member")
    assert second.claim(0).taken == (0,), "its first owner has it still"
    assert first.commit((0, 2, got.epoch)).lost == ()
    first.leave()
    assert second.claim(0).queues[0].offset == 2


def _dispatch(broker: Any, work: Callable[..., None]) -> None:
    """Have what was appended in queues."""
    for name in ("committed", "flushed"):
        broker.positions.initialise(name, broker.positions["wrote"])
    reput = broker.start(Reput)
    work(reput)
    broker.crash(reput)


def _expire(broker: Any, min_offset: int) -> None:
    """As the cleaner does, for the first queue."""
    table = QueueTable(broker.run.queues, writable=True)
    table.publish_min_offset(0, min_offset)
    table.close()


# --- what is refused ---


def test_bad_requests_are_refused_with_the_reason_and_hurt_nobody(
    coordinator: Callable[..., Started],
) -> None:
    _, _, member = coordinator(auto_create_subscription_group=False)
    first = member("a")
    assert first.join().status == "SUBSCRIPTION_GROUP_NOT_EXIST"
    assert first.ask(words.SetGroup, {}).settings["retryMaxTimes"] == 16
    assert first.claim(0).status == "UNKNOWN_MEMBER"
    for kind in (words.Commit, words.Release):
        assert first.commit((0, 1, 1), kind=kind).status == "UNKNOWN_MEMBER"
    assert first.join("no topic's name").status == "INVALID_ARGUMENT"
    assert first.join(session_timeout_ms=1).status == "INVALID_ARGUMENT"
    assert isinstance(first.join(), words.Joined)
    assert first.join("no topic's name").status == "INVALID_ARGUMENT", "a member's word, too"
    for session_ms in (LEAST_SESSION_MS - 1, words.MOST_SESSION_MS + 1):
        assert first.join(session_timeout_ms=session_ms).status == "INVALID_ARGUMENT"
    for session_ms in (LEAST_SESSION_MS, words.MOST_SESSION_MS):
        assert isinstance(first.join(session_timeout_ms=session_ms), words.Joined)
    for characters, kind in (
        (MAX_SUBSCRIPTION_CHARACTERS, words.Joined),
        (MAX_SUBSCRIPTION_CHARACTERS + 1, Refused),
    ):
        filter_ = "x" * (characters - len(TOPIC) - len("SQL92"))
        wanted = (words.SubscriptionData(TOPIC, "SQL92", filter_, 1),)
        assert isinstance(first.ask(words.Join, "a", wanted, SESSION_MS), kind)
    assert first.claim(0, topic="../x").status == "INVALID_ARGUMENT"
    assert first.claim(99).taken == (99,)
    assert member("b").join(model="broadcasting").status == "INVALID_ARGUMENT"
    assert member("c", group="a group").join().status == "INVALID_ARGUMENT"
    own = member("c", group="CID_RMQ_SYS_TRANS").join("RMQ_SYS_TRANS_HALF_TOPIC")
    assert (own.status, own.what) == ("INVALID_ARGUMENT", "this group is the broker's own")
    assert first.ask(words.SetGroup, {"consumeEnable": False}).settings["consumeEnable"] is False
    assert member("d").join().status == "NO_PERMISSION"


@pytest.mark.parametrize("model", ["clustering", "broadcasting"])
def test_a_member_of_a_group_that_is_switched_off_has_its_queues_until_it_gives_them_up(
    coordinator: Callable[..., Started], model: str
) -> None:
    broker, actor, member = coordinator()
    first, broadcasts = member("a"), model == "broadcasting"
    setting = "consumeBroadcastEnable" if broadcasts else "consumeEnable"
    version = first.join(model=model).version
    epoch = 0 if broadcasts else first.claim(0).queues[0].epoch
    count = 0 if broadcasts else 1
    assert first.ask(words.Beat, "a", version, count).is_same
    first.ask(words.SetGroup, {setting: False})
    assert not first.ask(words.Beat, "a", version, count).is_same, "so it joins, and is told why"
    held = (words.HeldClaim(TOPIC, 0, epoch),) * count
    assert member("b").join(model=model).status == "NO_PERMISSION"
    for _ in range(4):  # together longer than its session
        broker.clock.advance(10_000)
        assert first.join(model=model, held=held).status == "NO_PERMISSION"
        actor.work()
    if not broadcasts:
        assert first.commit((0, 7, epoch)).lost == ()
        assert first.commit((0, 8, epoch), kind=words.Release).lost == ()
    first.ask(words.SetGroup, {setting: True})
    assert first.join(model=model).members == ("a",)
    if not broadcasts:
        assert first.claim(0).queues[0].offset == 8


def test_whom_a_gateway_speaks_for_is_a_member_of_a_group_that_is_switched_off(
    coordinator: Callable[..., Started],
) -> None:
    """So does RocketMQ's broker: it refuses pulls, and takes commits of what was pulled before."""
    _, _, member = coordinator()
    first = member("a")
    first.ask(words.SetGroup, {"consumeEnable": False})
    assert first.join(carried=True).members == ("a",)
    (got,) = first.claim(0).queues
    assert first.commit((0, 7, got.epoch)).lost == ()


@pytest.mark.parametrize("epoch", [(1 << 62) - 1, 1 << 61, 1 << 48])
def test_no_members_word_uses_up_the_epochs(
    coordinator: Callable[..., Started], epoch: int
) -> None:
    """A claim that nobody knows is believed: its epoch says what all later ones have."""
    broker, actor, member = coordinator()
    first = member("a")
    held = [
        words.HeldClaim(TOPIC, 3, epoch), words.HeldClaim(TOPIC, 4, 5), words.HeldClaim(TOPIC, 2, 5)
    ]  # fmt: skip
    assert first.join(held=tuple(held)).lost == (*held[:2],), "it has no queue 4"
    (got,) = first.claim(0).queues
    assert got.epoch < 1 << 32 and first.commit((0, 7, got.epoch)).lost == ()


def test_a_broadcasting_member_claims_nothing(coordinator: Callable[..., Started]) -> None:
    _, _, member = coordinator()
    first = member("a")
    assert first.join(model="broadcasting").topics[0].read_queues == 4
    assert first.claim(0).status == "INVALID_ARGUMENT"


def test_a_disk_that_refuses_the_journal_refuses_claims_until_it_takes_it_again(
    coordinator: Callable[..., Started],
) -> None:
    broker, _, member = coordinator()
    first = member("a")
    got = first.own()
    with _no_file_longer_than(broker.paths.group_journal.stat().st_size + 10):
        refused = first.commit((0, 1, got.epoch))
        assert refused.status == "SERVICE_NOT_AVAILABLE" and broker.positions["group_error"]
        assert first.commit((0, 2, got.epoch)).status == "SERVICE_NOT_AVAILABLE"
        assert first.ask(words.DescribeGroup).exists, "to look needs no journal"
        assert first.list_groups().groups.keys() == {GROUP}
    broker.clock.advance(1000)
    first.coordinator.work()
    assert not broker.positions["group_error"]
    assert first.commit((0, 3, got.epoch)).lost == ()
    with _no_file_longer_than(broker.paths.group_journal.stat().st_size + 10):
        assert first.claim(1).status == "SERVICE_NOT_AVAILABLE"


def test_who_joins_while_the_disk_refuses_the_journal_is_refused_at_once(
    coordinator: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be answered with the others of its time, when the journal may take it."""
    monkeypatch.setattr(notifications, "CHANGES_PER_MS", 1 / 100)
    broker, _, member = coordinator()
    with _no_file_longer_than(broker.paths.group_journal.stat().st_size + 10):
        assert member("a").join().status == "SERVICE_NOT_AVAILABLE"


def test_settings_that_the_disk_refuses_are_told_and_are_there_once_it_takes_them(
    coordinator: Callable[..., Started],
) -> None:
    broker, _, member = coordinator()
    first = member("a")
    first.join()
    with _no_file_longer_than(broker.paths.group_journal.stat().st_size):
        refused = first.ask(words.SetGroup, {"retryMaxTimes": 3})
        assert refused.status == "SERVICE_NOT_AVAILABLE" and broker.positions["group_error"]
    broker.clock.advance(group_files.SAVE_GROUPS_MS + 1000)
    first.coordinator.work()
    assert not broker.positions["group_error"]
    assert "3" in broker.paths.subscription_groups.read_text()


def test_a_journal_that_begins_with_much_is_not_written_again_at_each_turn(
    coordinator: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What groups are takes what it takes: only what has come since makes a journal full."""
    monkeypatch.setattr(group_files, "FULL_JOURNAL_BYTES", 400)
    broker, actor, member = coordinator(flush_consumer_offset_interval_ms=5000)
    first, journal = member("a"), broker.paths.group_journal
    got = first.own(TOPIC, *(f"topic-{number}" for number in range(100)))
    broker.clock.advance(5000)
    actor.work()
    saved = journal.stat()
    assert saved.st_size > 3 * 400, "it begins with the member"
    for number in range(3):
        assert first.commit((0, number, got.epoch)).lost == ()
        broker.clock.advance(100)
        actor.work()
    assert journal.stat().st_ino == saved.st_ino
    while journal.stat().st_ino == saved.st_ino:
        number += 1
        assert first.commit((0, number, got.epoch)).lost == ()
        actor.work()
    broker.crash(actor)
    first.coordinator = broker.start(Coordinator)
    first.coordinator.work()
    assert first.claim(0).queues == (words.ClaimedQueue(0, number, got.epoch),)


@contextmanager
def _no_file_longer_than(size: int) -> Iterator[None]:
    """The kernel refuses to write more, as on a full disk: of a long write it takes a part."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# --- operators ---


def test_of_requests_that_take_several_turns_none_takes_the_place_of_another(
    coordinator: Callable[..., Started],
) -> None:
    """Only the same one is taken for one that is sent again: the gateway asks for many clients."""
    broker, actor, member = coordinator()
    first, second = member("a"), member("b")
    first.join(), second.join()
    asked: list[tuple[MemberByHand, Any]] = [
        (first, words.Claim(101, GROUP, "a", TOPIC, (0,))),
        (first, words.Claim(102, GROUP, "a", TOPIC, (1,))),
        (first, words.Claim(103, GROUP, "a", "bills", (0,))),
        (first, words.Claim(104, GROUP, "b", TOPIC, (0,))),
        (second, words.Claim(105, "OTHER", "a", TOPIC, (0,))),
    ]
    for each in (first, second):
        asked += [
            (each, words.DescribeGroup(201, GROUP)),
            (each, words.DescribeGroup(202, "OTHER")),
            (each, words.ListGroups(203)),
            (each, words.ResetOffsets(204, GROUP, TOPIC, {2: 0})),
            (each, words.ResetOffsets(205, GROUP, TOPIC, {3: 0})),
            (each, words.ResetOffsets(206, GROUP, "bills", {2: 0})),
            (each, words.ResetOffsets(207, "OTHER", TOPIC, {2: 0})),
            (each, words.DeleteGroup(208, GROUP)),
            (each, words.DeleteGroup(209, "OTHER")),
        ]
    wanted: dict[str, set[int]] = {"a": set(), "b": set()}
    now_ms = broker.clock.monotonic_ms()
    for each, request in asked:
        peer = actor._members.member(GROUP, each.name).peer
        actor._serve(peer, zmq.Frame(), request, now_ms)
        wanted[each.name].add(request.request)
    for each in (first, second):
        found = set()
        while found != wanted[each.name]:
            answer = words.decode_group_answer(broker.ask(actor, each.socket)[0][0])
            found |= {answer.request} - {0}


def test_an_operator_sees_members_queues_and_lag(
    coordinator: Callable[..., Started], work: Callable[..., None]
) -> None:
    broker, _, member = coordinator(queues=2)
    broker.append(3)
    _dispatch(broker, work)
    first = member("a")
    first.join()
    got = first.claim(0, 1).queues
    first.commit((0, 1, got[0].epoch))
    broker.clock.advance(4000)
    info = first.ask(words.DescribeGroup)
    assert info.exists
    assert [(each.client_id, each.seen_ms_ago) for each in info.members] == [("a", 4000)]
    zero, one = info.queues
    assert (zero.spans, one.spans) == ((), ()), "nobody has asked for them"
    assert (zero.offset, zero.owner, zero.min_offset, zero.max_offset) == (1, "a", 0, 3)
    assert zero.lag_ms == 4000 and zero.lag_bytes > 0
    assert (one.offset, one.max_offset, one.lag_ms, one.lag_bytes) == (0, 0, 0, 0)
    assert first.list_groups().groups == {GROUP: (1, 2)}
    other = member("b", group="OTHER")
    other.join()
    # its topic's, in which it has done nothing yet
    queues = other.ask(words.DescribeGroup).queues
    assert [(each.offset, each.owner, each.max_offset) for each in queues] == [
        (-1, "", 3), (-1, "", 0)
    ]  # fmt: skip
    began_ms = broker.clock.now_ms() - 4000
    zero, one = first.ask(words.DescribeGroup, spans=True).queues
    assert zero.spans == (words.ClaimSpan("a", 0, 1, began_ms, -1, True),) and one.spans == ()
    first.ask(words.ResetOffsets, TOPIC, {0: 0})
    broker.clock.advance(1000)
    first.commit((1, 5, got[1].epoch), kind=words.Release)
    zero, one = first.ask(words.DescribeGroup, spans=True).queues
    assert zero.spans == (words.ClaimSpan("a", 0, 1, began_ms, began_ms + 4000, False),)
    assert one.spans == (words.ClaimSpan("a", 0, 5, began_ms, began_ms + 5000, False),)
    unknown = member("x", group="UNKNOWN").ask(words.DescribeGroup)
    assert not unknown.exists and unknown.queues == ()


def test_an_operator_sees_where_a_member_speaks_from_whoever_was_coordinator_when_it_came(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator()
    first, back = member("a"), member("a")
    first.join()
    back.socket.close()  # it comes back by another way
    back.socket = broker.client(broker.run.endpoints.group_ipc)

    def address(asking: MemberByHand) -> str:
        (found,) = asking.ask(words.DescribeGroup).members
        return str(found.address)

    assert address(first) == "127.0.0.1"
    broker.crash(actor)
    first.coordinator = back.coordinator = broker.start(Coordinator)
    assert address(first) == "", "it has not come back"
    first.join()
    assert address(first) == "127.0.0.1"
    back.join()
    assert address(back) == f"localhost:{os.getuid()}:{os.getgid()}:{os.getpid()}"


def test_a_reset_moves_offsets_and_takes_the_queues_from_their_owners(
    coordinator: Callable[..., Started], work: Callable[..., None]
) -> None:
    broker, actor, member = coordinator()
    broker.append(5)
    _dispatch(broker, work)
    first = member("a")
    first.join()
    got = first.claim(0, 1).queues
    first.commit((0, 4, got[0].epoch))
    assert first.ask(words.ResetOffsets, TOPIC, {0: 9}).status == "INVALID_ARGUMENT"
    assert first.ask(words.ResetOffsets, TOPIC, {9: 0}).status == "QUEUE_NOT_EXIST"
    tried = first.ask(words.ResetOffsets, TOPIC, {0: 2}, dry_run=True)
    assert tried.offsets == {0: (4, 2)} and not first.told
    assert first.ask(words.ResetOffsets, TOPIC, {0: 2, 2: 0}).offsets == {0: (4, 2), 2: (-1, 0)}
    assert first.hear() == words.Changed(0, GROUP, (words.HeldClaim(TOPIC, 0, got[0].epoch),))
    assert first.commit((0, 5, got[0].epoch)).lost, "what it did before the reset says nothing"
    assert first.commit((1, 0, got[1].epoch)).lost == ()
    assert first.claim(0).queues[0].offset == 2


def test_who_has_a_queue_next_is_told_that_an_operator_has_set_its_offset_until_one_commits(
    coordinator: Callable[..., Started], work: Callable[..., None]
) -> None:
    broker, actor, member = coordinator()
    broker.append(5)
    _dispatch(broker, work)
    first = member("a")
    first.commit((0, 4, first.own().epoch))
    first.leave()
    assert first.ask(words.ResetOffsets, TOPIC, {0: 2}).offsets == {0: (4, 2)}
    # what its client sends late, of a claim that it has lost
    late = first.ask(words.ResetOffsets, TOPIC, {0: 4}, unclaimed=True, unmoved=True)
    assert late.offsets == {}
    second = member("b")
    got = second.own()
    assert (got.offset, got.is_moved) == (2, True)
    assert second.claim(0).queues == (got,), "nobody knows that it has heard it"
    second.commit((0, 3, got.epoch))
    assert second.claim(0).queues == (words.ClaimedQueue(0, 3, got.epoch),)
    assert first.ask(words.ResetOffsets, TOPIC, {1: 0}, unclaimed=True).offsets == {1: (-1, 0)}
    assert not second.claim(1).queues[0].is_moved, "a client's own word is not an operator's"


def test_a_group_too_many_is_refused_and_one_that_is_there_is_set(
    coordinator: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (operator_requests, member_requests):
        monkeypatch.setattr(module, "MAX_GROUPS", 2)
    _, _, member = coordinator()
    for group, is_made in (("g", True), ("h", True), ("i", False), ("g", True)):
        answer = member("a", group=group).ask(words.SetGroup, {})
        assert isinstance(answer, words.GroupSet) == is_made
    refused = member("a", group="i").join()
    assert refused.status == "SYSTEM_BUSY" and refused.retry_after_ms == member_requests.BUSY_MS
    assert member("a", group="h").join().members == ("a",)


def test_groups_that_are_set_in_one_turn_are_saved_once(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator()
    now_ms = broker.clock.monotonic_ms()
    for number in range(3):
        actor._serve(b"nobody", zmq.Frame(), words.SetGroup(number, f"g{number}", {}), now_ms)
    actor.work()
    assert _groups(broker.paths.subscription_groups) == {"g0", "g1", "g2"}
    before = broker.paths.subscription_groups.with_suffix(".json.bak")
    assert not before.exists(), "no file had some of them"


def test_a_group_whose_settings_cannot_be_saved_is_refused_and_saved_later(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator()
    first, file = member("a"), broker.paths.subscription_groups
    assert isinstance(first.ask(words.SetGroup, {}), words.GroupSet)
    second = member("a", group="later")
    with _no_file_longer_than(file.stat().st_size + 10):
        assert second.ask(words.SetGroup, {}).status == "SERVICE_NOT_AVAILABLE"
        assert _groups(file) == {GROUP}
    broker.clock.advance(2000)
    actor.work()
    assert _groups(file) == {GROUP, "later"}


def test_settings_that_cannot_be_saved_are_the_only_thing_refused_in_their_turn(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator()
    first = member("a")
    got = first.own()
    broker.clock.advance(group_files.SAVE_GROUPS_MS)
    actor.work()
    broker.paths.subscription_groups.rename(broker.paths.root / "elsewhere")
    broker.paths.subscription_groups.mkdir()
    peer, now_ms = actor._members.member(GROUP, "a").peer, broker.clock.monotonic_ms()
    commits = (words.QueueCommit(TOPIC, 0, 1, got.epoch),)
    actor._serve(peer, zmq.Frame(), words.SetGroup(101, GROUP, {}), now_ms)
    actor._serve(peer, zmq.Frame(), words.Commit(102, GROUP, "a", commits), now_ms)
    answers = broker.ask(actor, first.socket, answers=2)
    found = [words.decode_group_answer(raw) for (raw,) in answers]
    assert [(each.request, type(each)) for each in found] == [
        (101, Refused), (102, words.Committed)
    ]  # fmt: skip


def _groups(file: Path) -> set[str]:
    return set(json.loads(file.read_text())["subscriptionGroupTable"])


def test_a_group_is_deleted_when_nobody_is_in_it(coordinator: Callable[..., Started]) -> None:
    broker, actor, member = coordinator()
    first = member("a")
    first.join()
    first.claim(0)
    assert first.ask(words.DeleteGroup).status == "INVALID_ARGUMENT"
    first.leave()
    assert isinstance(first.ask(words.DeleteGroup), words.GroupSet)
    assert first.ask(words.DeleteGroup).status == "SUBSCRIPTION_GROUP_NOT_EXIST"
    broker.stop(actor)
    assert json.loads(broker.paths.consumer_offsets.read_text())["offsetTable"] == {}
    table = json.loads(broker.paths.subscription_groups.read_text())["subscriptionGroupTable"]
    assert table == {}


def test_of_a_group_that_is_deleted_while_it_is_used_the_settings_go_and_its_members_go_on(
    coordinator: Callable[..., Started],
) -> None:
    broker, actor, member = coordinator()
    first = member("a")
    first.join()
    assert isinstance(first.ask(words.DeleteGroup, while_used=True), words.GroupSet)
    assert first.list_groups().groups == {GROUP: (1, -1)}, "it has a member"
    (got,) = first.claim(0).queues
    first.ask(words.SetGroup, {"retryMaxTimes": 3})
    assert isinstance(first.ask(words.DeleteGroup, while_used=True), words.GroupSet)
    assert _groups(broker.paths.subscription_groups) == set()
    first.commit((0, 2, got.epoch))
    assert first.claim(0).queues == (words.ClaimedQueue(0, 2, got.epoch),)
    assert first.join().retry_max_times == 16, "it is made again, as it is used"
    broker.clock.advance(group_files.SAVE_GROUPS_MS)
    actor.work()
    assert _groups(broker.paths.subscription_groups) == {GROUP}
    first.leave()
    kept = first.ask(words.DeleteGroup, while_used=True, keep_offsets=True)
    assert isinstance(kept, words.GroupSet)
    (queue, *_) = first.ask(words.DescribeGroup).queues
    assert queue.offset == 2
    assert isinstance(first.ask(words.DeleteGroup, while_used=True), words.GroupSet)
    assert first.ask(words.DescribeGroup).queues == ()


def test_a_topic_of_retries_is_made_for_members_that_look_for_it_as_they_start(
    coordinator: Callable[..., Started],
) -> None:
    """Others have it made when a message is to come again, and most groups need none."""
    broker, actor, member = coordinator()
    writer = broker.start(Writer)
    member("a").join()
    assert not actor._retry_topics.work(broker.clock.monotonic_ms())
    member("a").ask(words.SetGroup, {"retryQueueNums": 0})
    member("b").join(retry_topic=True)
    while not load_topics(broker.paths.topics).queues("%RETRY%CG"):
        actor.work(), writer.work()
    assert load_topics(broker.paths.topics).queues("%RETRY%CG") == 1, "fewer there cannot be"
    broker.clock.advance(2000)
    actor.work()
    saved = json.loads(broker.paths.subscription_groups.read_text())
    entry = saved["subscriptionGroupTable"]["CG"]
    assert entry["groupName"] == "CG" and entry["retryMaxTimes"] == 16
    assert entry["groupRetryPolicy"] == {"type": "CUSTOMIZED"}
