"""A producer core on a wire that breaks: every message once, in order, with a true receipt."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

from penstock.client.core.sending.encoding import BatchMessage, check_ack
from penstock.client.core.sending.frames import Receipt, SendFuture
from penstock.client.core.sending.outbox import MAX_FULL_IN_FLIGHT, MAX_IN_FLIGHT
from penstock.client.core.sending.routes import ASK_AGAIN_MS
from penstock.shared.errors import (
    BrokerBusy,
    ConnectError,
    InvalidArgument,
    InvalidMessage,
    PropertiesTooLarge,
    QueueNotFound,
    SegmentUnavailable,
    StoreUnavailable,
    TopicNotFound,
)
from penstock.shared.formats.java_hash import shard_queue
from penstock.shared.formats.message_id import offset_message_id
from penstock.shared.formats.record_layout import Shape
from penstock.shared.loops.forms import FRAME_BYTES, NO_ROOM
from penstock.shared.wire import messages
from penstock.shared.wire.messages import Hello, decode_produce_request

from .breaking_wire import BreakingWire

pytestmark = pytest.mark.takes(20)


class AnyHistory(BreakingWire):
    """Sends and accidents in any order. At the end, and all the time, the receipts must be true."""

    def __init__(self, make_wire: Callable[[], Any]) -> None:
        super().__init__(make_wire)
        self.sent: list[tuple[SendFuture, str, str | None, str]] = []
        self.batches: list[tuple[SendFuture, str]] = []
        self.numbers: dict[str, int] = {}

    @initialize(first_contact=st.booleans())
    def begin(self, first_contact: bool) -> None:
        if not first_contact:
            self.send("a", None, "", [1])
            self.send("b", None, "", [1])
            self.wire.heal(8)

    @rule(
        topic=st.sampled_from("aab"),
        shard=st.sampled_from([None, None, "k1", "k2"]),
        ack=st.sampled_from(["", "", "durable", "written"]),
        sizes=st.lists(st.integers(0, 300), min_size=1, max_size=4),
    )
    def send(self, topic: str, shard: str | None, ack: str, sizes: list[int]) -> None:
        for size in sizes:
            future = self.wire.send(topic, shard, None, ack, size)
            self.sent.append((future, topic, shard, ack))
            self.numbers[future.unique_key] = len(self.numbers)

    @rule(
        topic=st.sampled_from("ab"),
        ack=st.sampled_from(["", "written"]),
        sizes=st.lists(st.integers(0, 200), min_size=1, max_size=4),
    )
    def send_batch(self, topic: str, ack: str, sizes: list[int]) -> None:
        future = self.wire.send_batch(topic, None, ack, sizes)
        self.batches.append((future, ack))
        for key in future.unique_key.split(","):
            self.numbers[key] = len(self.numbers)

    @rule(
        sizes=st.lists(st.integers(0, 300), min_size=1, max_size=4),
        requests=st.sampled_from([0, 1, 2, 100]),
    )
    def a_burst_of_frames(self, sizes: list[int], requests: int) -> None:
        """Several frames in flight at once, some of them stored."""
        for size in sizes:
            self.send("a", None, "written" if size % 3 == 0 else "", [size])
            self.time_goes_by(1, 1000, 0, False, 0)
        self.time_goes_by(1, 1000, requests, False, 0)

    @invariant()
    def what_is_acknowledged_is_stored_where_the_receipt_says(self) -> None:
        writer, core = self.wire.writer, self.wire.core
        stored = {each.key: each for each in writer.log}
        assert len(stored) == len(writer.log), "nothing is stored twice"
        unsettled = 0
        for future, topic, shard, ack in self.sent:
            if not future.done():
                unsettled += 1
                continue
            error = future.exception(0)
            if error is not None:
                assert isinstance(error, SegmentUnavailable)
                refused = future.unique_key not in writer.refused_in_part
                assert not (refused and future.unique_key in stored)
                continue
            receipt = future.result(0)
            if ack == "written" and future.unique_key not in stored:
                continue  # the power has failed since
            found = stored[future.unique_key]
            assert ack == "written" or found.position < writer.flushed
            self._is_true(receipt, found)
            assert topic == found.topic
            assert shard is None or found.queue_id == shard_queue(shard, self.wire.queues[topic])
        for future, ack in self.batches:
            unsettled += not future.done()
            if future.done():
                self._is_whole(future, ack, stored)
        assert core.intake.unsettled == unsettled
        assert (core.intake.waiting_bytes > 0) == (unsettled > 0)

    def _is_whole(self, future: SendFuture, ack: str, stored: dict[str, Any]) -> None:
        """All of a batch or nothing; with its messages together, unless the power has failed."""
        keys = future.unique_key.split(",")
        found = [stored[key] for key in keys if key in stored]
        if future.exception(0) is not None:
            assert not found or future.unique_key.split(",")[0] in self.wire.writer.refused_in_part
            return
        receipt = future.result(0)
        if self.wire.writer.outages and ack == "written":
            return
        assert len(found) == len(keys)
        ids = [offset_message_id(self.wire.host, each.position) for each in found]
        assert receipt.message_id == ",".join(ids)
        assert (receipt.queue_offset, receipt.physical_offset) == found[0][3:]
        if not self.wire.writer.outages:
            offsets = [each.queue_offset for each in found]
            assert offsets == list(range(offsets[0], offsets[0] + len(keys)))

    def _is_true(self, receipt: Receipt, found: Any) -> None:
        assert receipt == Receipt(
            found.topic,
            found.queue_id,
            found.queue_offset,
            found.position,
            offset_message_id(self.wire.host, found.position),
            found.key,
            99,
        )

    def teardown(self) -> None:
        self.wire.heal()
        assert self.wire.core.intake.unsettled == 0, "once all is well everything has an outcome"
        self.what_is_acknowledged_is_stored_where_the_receipt_says()
        self._order_is_kept()

    def _order_is_kept(self) -> None:
        """Of the messages for one queue that are stored, none stands before an earlier one."""
        queues: dict[tuple[str, int], list[int]] = {}
        for each in self.wire.writer.log:
            queues.setdefault((each.topic, each.queue_id), []).append(self.numbers[each.key])
        for queue in queues.values():
            assert queue == sorted(queue)
        self.wire.close()


def test_any_history_is_true_in_the_end(make_wire: Callable[[], Any]) -> None:
    few = settings(max_examples=100, stateful_step_count=30)
    run_state_machine_as_test(partial(AnyHistory, make_wire), settings=few)


def test_any_history_through_a_ring_is_true_in_the_end(
    make_wire_with_ring: Callable[[], Any],
) -> None:
    few = settings(max_examples=100, stateful_step_count=30)
    run_state_machine_as_test(partial(AnyHistory, make_wire_with_ring), settings=few)


def one_history(random: Random, history: AnyHistory) -> None:
    """The same rules without shrinking: cheaper, so there are more, with fewer accidents."""
    history.begin(random.random() < 0.2)
    accidents: list[Callable[[], None]] = [
        lambda: history.the_connection_breaks(random.choice((0, 1, 2, 100))),
        history.there_is_a_connection_again,
        history.there_is_a_connection_again,
        history.the_writer_is_killed,
        lambda: history.the_power_fails(random.randrange(6)),
        history.the_disk_is_full_for_a_moment,
        history.the_broker_is_busy_for_a_moment,
        history.the_broker_is_busy_for_a_moment,
    ]
    for _ in range(random.randrange(5, 40)):
        luck = random.random()
        if luck < 0.2:
            random.choice(accidents)()
        elif luck < 0.25 and history.wire.old:
            history.a_broken_connection_still_delivers(random.choice((1, 100)), 0)
        elif luck < 0.4:
            sizes = [random.randrange(300) for _ in range(3)]
            history.a_burst_of_frames(sizes, random.choice((0, 1, 2, 100)))
        elif luck < 0.45:
            sizes = [random.randrange(200) for _ in range(random.randrange(1, 5))]
            history.send_batch(random.choice("ab"), random.choice(("", "written")), sizes)
        elif luck < 0.6:
            history.send(
                random.choice("aab"),
                random.choice((None, "k1", "k2")),
                random.choice(("", "durable", "written")),
                [random.randrange(300) for _ in range(random.randrange(1, 4))],
            )
        else:
            history.time_goes_by(
                random.choice((1, 10, 60, 150)),
                random.choice((1000, 1000, 1000, 0, 1, 2)),
                random.choice((0, 1, 2, 100)),
                random.random() < 0.4,
                random.choice((0, 1, 2, 100)),
            )
        history.what_is_acknowledged_is_stored_where_the_receipt_says()
    history.teardown()


def many_histories(make_wire: Callable[[], Any]) -> int:
    """How many frames went through a ring."""
    from_ring = 0
    for seed in range(1500):
        history = AnyHistory(make_wire)
        try:
            one_history(Random(seed), history)
        except AssertionError as error:
            raise AssertionError(f"history {seed}") from error
        from_ring += history.wire.writer.from_ring
    return from_ring


def test_many_histories_chosen_at_random(make_wire: Callable[[], Any]) -> None:
    assert many_histories(make_wire) == 0


def test_many_histories_through_a_ring_chosen_at_random(
    make_wire_with_ring: Callable[[], Any],
) -> None:
    assert many_histories(make_wire_with_ring) > 1500


# --- single cases ---


@pytest.fixture
def wire(make_wire: Callable[..., Any]) -> Any:
    """A wire with an open session and known routes, whose messages may wait for a second."""
    wire = make_wire(timeout_ms=1000)
    wire.send("a", None, 0, "", 1)
    wire.send("b", None, 0, "", 1)
    wire.heal(8)
    assert wire.core.intake.unsettled == 0
    return wire


def test_messages_that_wait_together_leave_in_one_frame_of_bounded_size(wire: Any) -> None:
    for _ in range(3):
        wire.send("b", None, 0, "", 100_000)
    for _ in range(500):
        wire.send("a", None, 1, "", 10)
    wire.send("b", None, 0, "", FRAME_BYTES + 1)
    wire.pump(1000)
    frames = [parts for parts in wire.now.up if len(parts) == 2]
    counts = [
        [(run.topic, run.queue_id, run.count) for run in messages.decode_produce_request(p[0]).runs]
        for p in frames
    ]
    assert counts == [[("b", 0, 2)], [("b", 0, 1), ("a", 1, 500)], [("b", 0, 1)]]
    assert [len(parts[1]) > FRAME_BYTES for parts in frames] == [False, False, True]


def test_messages_of_all_queues_leave_together_and_a_batch_among_them(wire: Any) -> None:
    futures = [wire.send("a", None, number % 2, "", number) for number in range(6)]
    futures.append(wire.send_batch("a", 1, "", [1, 2, 3]))
    futures += [wire.send("b", None, 0, "", 5), wire.send("a", None, 1, "", 7)]
    early = [future.unique_key for future in futures]
    wire.pump(1000)
    (parts,) = [parts for parts in wire.now.up if len(parts) == 2]
    runs = messages.decode_produce_request(parts[0]).runs
    assert [(run.topic, run.queue_id, run.count, run.batch) for run in runs] == [
        ("a", 0, 3, False),
        ("a", 1, 3, False),
        ("a", 1, 3, True),
        ("b", 0, 1, False),
        ("a", 1, 1, False),
    ]
    wire.heal(3)
    stored = {each.key: each for each in wire.writer.log}
    for future, key in zip(futures, early, strict=True):
        receipt, first = future.result(0), stored[key.split(",")[0]]
        assert receipt.unique_key == key
        assert (receipt.topic, receipt.queue_id, receipt.queue_offset) == first[1:4]


@pytest.mark.parametrize("first_try_lost", [False, True])
def test_a_wrong_run_fails_alone_and_the_others_keep_their_order(
    wire: Any, first_try_lost: bool
) -> None:
    """A topic is gone that was there when it was asked for; what is after waits for the rest."""
    wire.send("c", None, 0, "", 1)
    wire.heal(3)
    wire.writer.gone = {"c"}
    sent: list[tuple[str, SendFuture]] = []
    for number in range(40):
        sent.append((topic := "abcaab"[number % 6], wire.send(topic, None, 0, "", number)))
        if number % 10 == 9:
            wire.pump(1000)  # several frames are on their way
    if first_try_lost:
        wire.to_writer(wire.now, 1)
        wire.cut(0)
    wire.heal(60)
    offsets: dict[str, list[int]] = {}
    for topic, future in sent:
        if topic == "c":
            assert isinstance(future.exception(0), TopicNotFound)
        else:
            offsets.setdefault(topic, []).append(future.result(0).queue_offset)
    for found in offsets.values():
        assert found == list(range(1, 1 + len(found)))
    assert wire.core.intake.unsettled == wire.core.intake.waiting_bytes == 0


def test_what_is_sent_again_is_looked_for_from_the_last_answer_on(wire: Any) -> None:
    """Of all that was stored before it there is nothing to look through."""
    for _ in range(3):
        wire.send("a", None, 0, "", 1)
        wire.heal(5)
    unanswered = wire.send("a", None, 0, "", 1)
    wire.pump(1000)
    wire.cut(0)
    hellos: list[Hello] = []
    while not hellos:
        wire.now_ms += 100
        wire.pump(1000)
        wire.connect()
        sent = [decode_produce_request(parts[0]) for parts in wire.now.up]
        hellos = [each for each in sent if isinstance(each, Hello)]
    last = wire.writer.log[-1]
    assert hellos[0].stored_after == last.position > 0
    wire.heal(8)
    assert unanswered.result(0).queue_offset == last.queue_offset + 1


def test_a_refusal_of_everything_is_not_tried_again_in_parts(wire: Any) -> None:
    wire.writer.refuse_next = True
    futures = [wire.send("a", None, queue, "", 1) for queue in (0, 1)]
    wire.heal(5)
    for future in futures:
        assert isinstance(future.exception(0), SegmentUnavailable)
    assert len(wire.writer.log) == 2


def test_failures_that_nobody_has_asked_for_are_counted(wire: Any) -> None:
    wire.writer.refuse_next = True
    asked, *_ = [wire.send("a", None, queue, "", 1) for queue in (0, 1)]
    wire.heal(5)
    assert isinstance(asked.exception(0), SegmentUnavailable)
    lost = wire.core.failures.take()
    assert lost.topics == {"a": 1} and isinstance(lost.error, SegmentUnavailable)
    assert wire.core.failures.take() is None


def test_a_message_that_a_later_broker_has_no_room_for_fails_alone(wire: Any) -> None:
    """That broker wants a checksum's room in each record, and the properties are as long as may
    be."""
    room = 32767 - len(f"UNIQ_KEY\x01{'0' * 32}\x02a\x01\x02")
    message = BatchMessage(b"", properties={"a": "x" * room})
    large = wire.core.send("b", message, None, 0, "", True, wire.now_ms)
    wire.core.terms.shape = Shape(8, True)
    wire.pump(1000)
    assert isinstance(large.exception(0), PropertiesTooLarge)
    wire.core.terms.shape = Shape()
    after = wire.send("b", None, 0, "", 1)
    wire.heal(8)
    assert after.result(0).queue_offset == 1
    assert wire.core.intake.unsettled == wire.core.intake.waiting_bytes == 0


def test_a_route_that_was_asked_for_on_a_lost_connection_is_asked_for_again_soon(
    wire: Any,
) -> None:
    future = wire.send("c", None, 0, "", 1)
    wire.pump(1000)
    wire.cut(0)
    wire.writer.begin()
    lost_at_ms = wire.now_ms
    wire.core.not_connected(wire.now_ms)
    while not future.done():
        wire.heal(1)
    assert future.exception(0) is None
    assert wire.now_ms - lost_at_ms < ASK_AGAIN_MS


@pytest.mark.parametrize(
    ("body_bytes", "limit"), [(1, MAX_IN_FLIGHT), (FRAME_BYTES, MAX_FULL_IN_FLIGHT)]
)
def test_no_more_frames_are_under_way_than_the_limit(
    wire: Any, body_bytes: int, limit: int
) -> None:
    for _ in range(3 * MAX_IN_FLIGHT):
        wire.send("a", None, 1, "", body_bytes)
        wire.pump(1000)
    assert len([parts for parts in wire.now.up if len(parts) == 2]) == limit
    assert not wire.core.may_send
    wire.heal(8)
    assert wire.core.intake.unsettled == 0 and wire.core.intake.waiting_bytes == 0


def test_a_topic_that_is_not_there_fails_its_messages_with_its_own_error(wire: Any) -> None:
    futures = [wire.send("none", None, None, "", 1) for _ in range(3)]
    wire.heal(3)
    for future in futures:
        with pytest.raises(TopicNotFound):
            future.result(0)
    assert wire.core.intake.unsettled == wire.core.intake.waiting_bytes == 0


def test_a_queue_that_is_not_there_is_an_error_before_and_after_the_route_is_known(
    make_wire: Callable[..., Any],
) -> None:
    wire = make_wire()
    early = [wire.send("a", None, queue, "", 1) for queue in (-1, 2, 1)]
    wire.heal(5)
    for future in early[:2]:
        with pytest.raises(QueueNotFound, match="queues 0 to 1"):
            future.result(0)
    assert early[2].result(0).queue_id == 1
    with pytest.raises(QueueNotFound):
        wire.send("a", None, 2, "", 1)
    assert wire.core.intake.unsettled == 0


def test_what_is_refused_leaves_no_trace(wire: Any) -> None:
    wire.send("a", None, None, "", 1)
    wire.heal(8)
    core, now_ms = wire.core, 1_700_000_000_000
    count = int(wire.send("a", None, None, "", 1).unique_key[-4:], 16)
    before = core.intake.unsettled, core.intake.waiting_bytes
    large = b"x" * (core.terms.max_message_bytes + 1)
    messages = [BatchMessage("text"), BatchMessage(large), BatchMessage(b"x", "a\x01b")]
    for message, queue in [*[(each, None) for each in messages], (BatchMessage(b"x"), 99)]:
        with pytest.raises((InvalidMessage, QueueNotFound)):
            core.send("a", message, None, queue, "", True, now_ms)
        with suppress(InvalidMessage):  # the fast path refuses, or leaves it to the other
            body, tags = message.body, message.tags
            taken = core.intake.take("a", body, tags, None, None, queue, "", now_ms)
            assert taken in (None, NO_ROOM)
    for bodies in ([], [b"x", "text"], [b"x" * core.terms.max_message_bytes, b"x"]):
        with pytest.raises(InvalidMessage):
            core.send_batch("a", bodies, None, None, "", True, now_ms)
    assert (core.intake.unsettled, core.intake.waiting_bytes) == before
    assert int(wire.send("a", None, None, "", 1).unique_key[-4:], 16) == count + 1
    wire.heal(8)
    assert core.intake.unsettled == core.intake.waiting_bytes == 0


def test_messages_without_a_key_take_turns_among_the_queues(wire: Any) -> None:
    futures = [wire.send("a", None, None, "", 1) for _ in range(6)]
    wire.heal(5)
    assert [future.result(0).queue_id for future in futures] in ([0, 1] * 3, [1, 0] * 3)


def test_requests_about_topics_have_answers_of_their_own(wire: Any) -> None:
    """Also when a route for the same topic is being asked for, whichever is answered first."""
    future = wire.send("new", None, None, "", 1)
    created = wire.core.routes.request(messages.CreateTopic(0, "new", 3))
    listed = wire.core.routes.request(messages.ListTopics(0))
    assert wire.core.routes.answer(created) is None
    wire.pump(1000)
    lost = wire.now.up.popleft()
    assert isinstance(messages.decode_produce_request(lost[0]), messages.Route)
    wire.heal(5)
    assert wire.core.routes.answer(created) == messages.Routed(created, "new", 3)
    assert wire.core.routes.answer(listed) == messages.TopicList(listed, wire.queues)
    assert wire.core.routes.answer(created) is None, "an answer is given once"
    assert not isinstance(future.error, TopicNotFound)


@pytest.mark.parametrize("sent", [True, False], ids=["on its way", "not sent"])
def test_every_message_has_an_outcome_in_time_when_nobody_answers(wire: Any, sent: bool) -> None:
    wire.cut(0)
    futures = [wire.send("a", None, 1, "", FRAME_BYTES) for _ in range(3 * MAX_IN_FLIGHT)]
    futures.append(wire.send("unknown", None, None, "", 1))
    if sent:
        wire.connect()
    began = wire.now_ms
    while wire.core.intake.unsettled:
        wire.now_ms += max(1, min(wire.core.wait_ms(wire.now_ms), 100))
        wire.pump(1000)
        assert wire.now_ms - began < 1500
    assert wire.now_ms - began >= 1000
    for future in futures:
        with pytest.raises(ConnectError, match="1000 ms"):
            future.result(0)
    assert wire.core.intake.waiting_bytes == 0


def test_a_message_for_a_topic_that_others_wait_for_waits_for_its_own_time(wire: Any) -> None:
    wire.cut(0)
    first = wire.send("unknown", None, None, "", 1)

    def wait(future: SendFuture) -> int:
        """Until it has failed. Returns how long that took, in ms."""
        began_ms = wire.now_ms
        while not future.done():
            wire.now_ms += 100
            wire.pump(1000)
            assert wire.now_ms - began_ms < 2000
        assert isinstance(future.exception(0), ConnectError)
        return int(wire.now_ms - began_ms)

    for _ in range(7):
        wire.now_ms += 100
        wire.pump(1000)
    second = wire.send("unknown", None, None, "", 1)
    assert 300 <= wait(first) <= 500 and not second.done()
    assert 500 <= wait(second) <= 900
    third = wire.send("unknown", None, None, "", 1)
    wire.writer.queues["unknown"] = 1
    wire.heal(8)
    assert third.result(0).topic == "unknown"


def test_a_message_that_is_late_does_not_stop_those_behind_it(wire: Any) -> None:
    """Its number is missing in the session; the writer says so, and a new one begins."""
    late = wire.send("a", None, 1, "", 1)
    wire.pump(0)
    wire.now_ms += 900
    wire.pump(0)
    after = wire.send("a", None, 1, "", 1)
    wire.pump(0)
    wire.now_ms += 150
    wire.heal(8)
    with pytest.raises(ConnectError):
        late.result(0)
    assert after.result(0).queue_id == 1


def test_a_message_that_is_too_late_is_busy_only_while_it_is_surely_not_stored(wire: Any) -> None:
    """Sent again after a pause it is on its way, and may be stored like any other."""
    wire.writer.busy_next = True
    first = wire.send("a", None, 1, "", 1)
    wire.pump(1000)
    wire.to_writer(wire.now, 1000)
    wire.to_producer(1000)
    assert 0 < wire.core.wait_ms(wire.now_ms) <= 70 * 5 // 4 and not first.done()
    never = wire.send("b", None, 0, "", 1)
    wire.now_ms += wire.core.wait_ms(wire.now_ms)
    wire.pump(1000)  # Hello
    wire.to_writer(wire.now, 1000)
    wire.to_producer(1000)
    wire.pump(1000)  # the frames
    wire.cut(0)
    wire.now_ms += 1100
    wire.pump(1000)
    for future in (first, never):
        with pytest.raises(ConnectError, match="may be stored"):
            future.result(0)


def test_a_broker_that_stays_busy_is_asked_less_and_less_and_then_said_to_be(wire: Any) -> None:
    future = wire.send("a", None, 1, "", 1)
    began, pauses = wire.now_ms, []
    while not future.done():
        wire.writer.busy_next = True
        wire.pump(1000)
        wire.to_writer(wire.now, 1000)
        wire.to_producer(1000)
        if wire.core._untaken:
            pauses.append(wire.core.wait_ms(wire.now_ms))
            wire.now_ms += pauses[-1]
        assert wire.now_ms - began < 3000
    for pause, least in zip(pauses[:4], [70, 140, 280, 560], strict=True):
        assert least <= pause <= least * 5 // 4
    error = future.exception(0)
    assert isinstance(error, BrokerBusy) and error.retry_after_ms == 70
    assert error.status == "SYSTEM_BUSY"


def test_what_is_left_when_the_producer_closes_fails(wire: Any) -> None:
    futures = [wire.send("a", None, 1, "", FRAME_BYTES) for _ in range(2 * MAX_IN_FLIGHT)]
    futures.append(wire.send("unknown", None, None, "", 1))
    wire.pump(1000)
    wire.core.fail_all(StoreUnavailable("the producer is open", "it was closed"))
    for future in futures:
        with pytest.raises(StoreUnavailable):
            future.result(0)
    assert wire.core.intake.unsettled == wire.core.intake.waiting_bytes == 0


def test_callbacks_are_called_once_and_one_that_fails_harms_nobody(
    wire: Any, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[str, int]] = []

    def fails(future: SendFuture) -> None:
        told.append(("fails", future.result(0).queue_offset))
        raise RuntimeError("the caller's own mistake")

    future = wire.send("b", None, 0, "", 1)
    other = wire.send("b", None, 0, "", 1)
    future.add_done_callback(fails)
    future.add_done_callback(lambda done: told.append(("second", done.result(0).queue_offset)))
    other.add_done_callback(lambda done: told.append(("other", done.result(0).queue_offset)))
    wire.heal(5)
    assert told == [("fails", 1), ("second", 1), ("other", 2)]
    assert "the caller's own mistake" in caplog.text
    future.add_done_callback(lambda done: told.append(("late", 0)))
    assert told[-1] == ("late", 0), "told at once when the outcome is known"
    assert wire.core.intake.unsettled == 0


def test_who_asked_while_the_route_was_unknown_is_told_like_any_other(wire: Any) -> None:
    told: list[SendFuture] = []
    future = wire.send("new", None, None, "", 1)
    assert future.run is None, "it waits for the route"
    future.add_done_callback(told.append)
    wire.writer.queues["new"] = 1
    wire.heal(8)
    assert future.result(0).topic == "new" and told == [future]


@pytest.mark.parametrize("parked", [True, False])
def test_a_callback_may_send_again(wire: Any, parked: bool) -> None:
    """The usual answer to a failure; the messages it sends have outcomes like all others."""
    topic = "unknown" if parked else "a"
    again: list[SendFuture] = []
    wire.cut(0)
    for _ in range(2 * MAX_IN_FLIGHT):
        future = wire.send(topic, None, 1, "", FRAME_BYTES)
        future.add_done_callback(lambda _: again.append(wire.send("a", None, 1, "", 9)))
    for _ in range(13):
        wire.now_ms += 100
        wire.pump(1000)
    assert len(again) == 2 * MAX_IN_FLIGHT
    wire.heal(10)
    assert [future.result(0).queue_offset for future in again] == list(range(len(again)))


def test_an_acknowledgement_is_one_of_the_protocols() -> None:
    assert [check_ack(ack) for ack in ("", "durable", "written")] == ["", "durable", "written"]
    for ack in ("none", "Durable", " "):
        with pytest.raises(InvalidArgument, match="ack"):
            check_ack(ack)
