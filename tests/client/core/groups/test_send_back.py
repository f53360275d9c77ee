"""What members give back: stored once, whatever happens to frames and their answers on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from penstock.client.core.groups.send_back import FRAME_BYTES, MAX_FRAMES, REPEAT_MS, SendBack
from penstock.client.core.sending.busy_broker import CONNECT_MS, PROBE_MS
from penstock.shared.errors import (
    BrokerBusy,
    ConnectError,
    InvalidArgument,
    OffsetOutOfRange,
    PenstockError,
    PropertiesTooLarge,
    QueueNotFound,
    StoreUnavailable,
    TopicNotFound,
)
from penstock.shared.formats.properties import REAL_TOPIC, encode_properties
from penstock.shared.formats.record import Record
from penstock.shared.formats.record_crc import PROP_CRC_ROOM
from penstock.shared.names import MAX_PROPERTIES_BYTES
from penstock.shared.wire import messages
from penstock.shared.wire.messages import encode, refusal


class Driven(SendBack):
    """As the wire drives a producer core. Notes what it sends."""

    def __init__(self) -> None:
        super().__init__("CG/a")
        self.said: list[Any] = []

    def tick(self, now_ms: int) -> None:
        pass

    def outgoing(self, now_ms: int) -> Iterator[tuple[bytes, ...]]:
        for parts in super().outgoing(now_ms):
            self.said.append(messages.decode_produce_request(parts[0]))
            yield parts

    def sent(self, kind: type) -> list[Any]:
        return [each for each in self.said if isinstance(each, kind)]


def put(core: SendBack, topics: Sequence[str]) -> None:
    for number, topic in enumerate(topics):
        core.put(Record(topic, b"x", encode_properties({"UNIQ_KEY": f"k{number}"})), number)


def stored_without_answer(wire: Any, core: Driven, begin: int = 5000) -> int:
    """What was put is stored in one frame, and its answer is lost; where the log ended before."""
    wire.core = core
    wire.writer.wrote = wire.writer.flushed = begin
    for _ in range(2):
        wire.now_ms += 1
        wire.pump(1000)
        wire.to_writer(wire.now, 1000)
        wire.to_producer(1000)
    wire.cut(0)
    wire.writer.begin()  # the writer was replaced, and its answers are lost
    assert len(wire.writer.log) == len(core)
    return begin


def keys(wire: Any) -> list[str]:
    return [each.key for each in wire.writer.log]


def test_a_frame_that_is_taken_apart_says_that_it_may_be_stored(
    make_wire: Callable[[], Any],
) -> None:
    wire, core = make_wire(), Driven()
    put(core, "aba")
    begin = stored_without_answer(wire, core)
    wire.writer.gone = {"b"}
    wire.heal()
    found = dict(core.outcomes())
    assert (found[0], found[2], type(found[1])) == (None, None, TopicNotFound)
    assert keys(wire) == ["k0", "k1", "k2"], "each once"
    assert core.sent(messages.Hello)[-1].stored_after == begin, "and is not looked for in all"


@pytest.mark.parametrize("begin", [5000, 0])
@pytest.mark.parametrize("next_run", ["the next one", ""])
def test_what_is_for_another_run_may_be_stored_where_its_first_copy_may_be(
    make_wire: Callable[[], Any], begin: int, next_run: str
) -> None:
    wire, core = make_wire(), Driven()
    put(core, "ab")
    stored_without_answer(wire, core, begin)
    wire.connect()
    for _ in range(20):  # the log's end is told again, and the frame has no answer yet
        wire.now_ms += 100
        wire.pump(1000)
        wire.to_writer(wire.now, len(wire.now.up) - len(core.sent(messages.Append)) + 1)
        wire.to_producer(1000)
        if core.sent(messages.Append)[-1].retry:
            break
    gone = refusal(ConnectError("producers are served at another port", "tcp://x:1"), 0)
    core.received([encode(gone)], wire.now_ms)
    core.aim.run = next_run  # or the one that it knows serves them again
    wire.cut(0)
    wire.heal()
    assert dict(core.outcomes()) == {0: None, 1: None}
    assert keys(wire) == ["k0", "k1"], "each once"
    assert core.sent(messages.Hello)[-1].stored_after == begin
    core.aim.run = "a third one"
    put(core, "c")
    wire.cut(0)
    wire.heal()
    assert dict(core.outcomes()) == {0: None}
    assert core.sent(messages.Hello)[-1].stored_after > begin, "it is not looked for so far back"


def test_of_what_nobody_can_say_whether_it_is_stored_it_is_put_once_more(
    make_wire: Callable[[], Any],
) -> None:
    """The message was not handled: twice is better than never."""
    wire, core = make_wire(), Driven()
    wire.core = core
    put(core, "ab")
    while not (sent := core.sent(messages.Append)):
        wire.now_ms += 10
        wire.pump(1000)
        wire.to_writer(wire.now, len(wire.now.up) - len(core.sent(messages.Append)))
        wire.to_producer(1000)
    far = OffsetOutOfRange("more than 1 GiB was stored since", 0)
    core.received([encode(refusal(far, sent[0].seq, sent[0].session))], wire.now_ms)
    wire.cut(0)
    wire.heal()
    assert dict(core.outcomes()) == {0: None, 1: None} and keys(wire) == ["k0", "k1"]


def test_so_is_a_retry_of_it_and_then_it_is_no_retry_any_more(
    make_wire: Callable[[], Any],
) -> None:
    """As one, it would be refused for the same reason for ever."""
    wire, core = make_wire(), Driven()
    put(core, "ab")
    stored_without_answer(wire, core)
    wire.connect()
    while not (sent := core.sent(messages.Append)[-1]).retry:
        wire.now_ms += 100
        wire.pump(1000)
        wire.to_writer(wire.now, len(wire.now.up) - len(core.sent(messages.Append)) + 1)
        wire.to_producer(1000)
    far = OffsetOutOfRange("more than 1 GiB was stored since", 0)
    core.received([encode(refusal(far, sent.seq, sent.session))], wire.now_ms)
    list(core.outgoing(wire.now_ms))
    last = core.sent(messages.Append)[-1]
    assert last.seq > sent.seq and not last.retry and not last.scattered


def test_what_was_never_sent_does_not_hide_where_the_copies_of_the_rest_may_be(
    make_wire: Callable[[], Any],
) -> None:
    wire, core = make_wire(), Driven()
    put(core, "ab")
    begin = stored_without_answer(wire, core)
    wire.connect()
    while core._sender is not None and core._sender.is_open:
        wire.now_ms += 100
        wire.pump(1000)
        wire.to_writer(wire.now, 1000)
        wire.to_producer(1000)
    core.put(Record("c", b"x", encode_properties({"UNIQ_KEY": "k2"})), 2)
    wire.pump(1000)
    assert len(core.sent(messages.Append)) == 1, "it waits for the next session"
    gone = refusal(ConnectError("producers are served at another port", "tcp://x:1"), 0)
    core.received([encode(gone)], wire.now_ms)
    core.aim.run = "the next one"
    wire.cut(0)
    wire.heal()
    assert dict(core.outcomes()) == {0: None, 1: None, 2: None}
    assert keys(wire) == ["k0", "k1", "k2"], "each once"
    assert core.sent(messages.Hello)[-1].stored_after == begin


def test_a_topic_that_was_deleted_meanwhile_is_made_again(make_wire: Callable[[], Any]) -> None:
    wire, core = make_wire(), Driven()
    wire.core = core
    found: list[PenstockError | None] = []
    for gone in (set(), {"b"}, set()):
        wire.writer.gone = gone
        core.need_topic("b", 1)
        put(core, "b")
        wire.heal(10)
        found += [error for _, error in core.outcomes()]
    assert [type(each) for each in found] == [type(None), TopicNotFound, type(None)]
    assert len(core.sent(messages.CreateTopic)) == 2


def test_a_topic_grows_when_its_group_has_more_queues_or_it_has_fewer_than_it_had(
    make_wire: Callable[[], Any],
) -> None:
    wire, core = make_wire(), Driven()
    wire.core = core
    for queues in (1, 3, 3, 2):
        core.need_topic("a", queues)
        wire.heal(10)
    assert [each.queues for each in core.sent(messages.CreateTopic)] == [1, 3]
    put(core, "a")
    while not (sent := core.sent(messages.Append)):
        wire.now_ms += 10
        wire.pump(1000)
        wire.to_writer(wire.now, len(wire.now.up) - len(core.sent(messages.Append)))
        wire.to_producer(1000)
    gone = refusal(QueueNotFound("the topic has no such queue", 2), sent[0].seq, sent[0].session)
    core.received([encode(gone)], wire.now_ms)
    ((_, error),) = core.outcomes()
    assert isinstance(error, QueueNotFound)
    core.need_topic("a", 3)
    wire.heal(10)
    assert [each.queues for each in core.sent(messages.CreateTopic)] == [1, 3, 3]


def test_a_message_leaves_when_its_topic_is_there_which_is_asked_for_again_while_nobody_answers(
    make_wire: Callable[[], Any],
) -> None:
    wire, core = make_wire(), Driven()
    wire.core = core
    put(core, "a")
    wire.heal(10)
    put(core, "b")
    asked = [(0, 1), (REPEAT_MS - 1, 1), (REPEAT_MS, 2)]
    for later_ms, count in asked:
        core.need_topic("b", 1)  # each message of it says so
        list(core.outgoing(wire.now_ms + later_ms))
        assert len(core.sent(messages.CreateTopic)) == count
    assert [each.runs[0].topic for each in core.sent(messages.Append)] == ["a"]
    wire.now_ms += REPEAT_MS
    wire.heal(20)
    assert [each.runs[0].topic for each in core.sent(messages.Append)] == ["a", "b"]
    assert core.outcomes() == [(0, None), (0, None)]


def test_a_topic_that_has_more_queues_than_are_asked_for_is_there(
    make_wire: Callable[[], Any],
) -> None:
    wire, core = make_wire(), Driven()
    wire.core = core
    core.need_topic("a", 1)
    put(core, "a")
    list(core.outgoing(wire.now_ms))
    (asked,) = core.sent(messages.CreateTopic)
    more = refusal(InvalidArgument("a topic keeps its queues", "4 queues"), asked.request)
    core.received([encode(more)], wire.now_ms)
    core.need_topic("a", 1)
    wire.heal(20)
    assert core.outcomes() == [(0, None)] and len(core.sent(messages.CreateTopic)) == 1


def test_what_waits_for_a_topic_that_cannot_be_made_now_goes_when_it_can(
    make_wire: Callable[[], Any],
) -> None:
    """Its handler is not called meanwhile: tries that never reach the broker would use up all."""
    wire, core = make_wire(), Driven()
    wire.core = core
    core.need_topic("a", 1)
    put(core, "a")
    full = StoreUnavailable("the disk is full", "97% of it are used")
    for request in range(1, 4):
        while len(core.sent(messages.CreateTopic)) < request:
            wire.now_ms += 100
            wire.pump(1000)
        wire.now.up.clear()
        core.received([encode(refusal(full, core.sent(messages.CreateTopic)[-1].request))], 0)
        assert core.outcomes() == [] and len(core) == 1
    wire.heal(30)
    assert core.outcomes() == [(0, None)] and keys(wire) == ["k0"]


def test_a_record_that_nobody_can_store_has_its_outcome_and_holds_no_other_up(
    make_wire: Callable[[], Any],
) -> None:
    wire, core = make_wire(), Driven()
    wire.core = core
    put(core, "a")
    core.put(Record("a", b"x", bytes(MAX_PROPERTIES_BYTES + 1)), "full")
    core.put(Record("a", b"x", encode_properties({"UNIQ_KEY": "k1"})), 1)
    wire.heal()
    found = dict(core.outcomes())
    assert isinstance(found.pop("full"), PropertiesTooLarge)
    assert found == {0: None, 1: None} and keys(wire) == ["k0", "k1"] and not len(core)
    sent = len(core.sent(messages.Append))
    core.put(Record("a", b"x", bytes(MAX_PROPERTIES_BYTES + 1)), "alone")
    wire.heal()
    ((tag, error),) = core.outcomes()
    assert tag == "alone" and isinstance(error, PropertiesTooLarge)
    core.put(Record("a", b"x", encode_properties({"UNIQ_KEY": "k2"})), 2)
    wire.heal()
    assert core.outcomes() == [(2, None)]
    assert len(core.sent(messages.Append)) == sent + 1, "there is no frame without a record"


def test_what_waits_for_a_topic_that_is_refused_hears_why_and_other_answers_are_not_taken_for_it(
    make_wire: Callable[[], Any],
) -> None:
    wire, core = make_wire(), Driven()
    wire.core = core
    core.need_topic("a", 1)
    core.need_topic("b", 1)
    put(core, "b")
    # one that waits for its time is on its way to the topic as well
    core.put(Record("SCHEDULE_TOPIC_XXXX", b"x", encode_properties({REAL_TOPIC: "b"})), "later")
    list(core.outgoing(5000))
    first, second = core.sent(messages.CreateTopic)
    assert (first.topic, second.topic) == ("a", "b")
    core.need_topic("b", 2)  # by now it needs more queues, and nobody waits for the first answer
    list(core.outgoing(5000))
    before, second = second, core.sent(messages.CreateTopic)[-1]
    for request in (before.request, second.request + 1, 5000):
        core.received([encode(refusal(TopicNotFound("it is another's"), request))], 5000)
    busy = refusal(BrokerBusy("not now"), second.request)
    core.received([encode(busy)], 5000)
    assert core.outcomes() == [], "it is asked for again"
    core.received([encode(refusal(TopicNotFound("none is made"), second.request))], 5000)
    found = dict(core.outcomes())
    assert found.keys() == {0, "later"} and not len(core)
    assert all(isinstance(error, TopicNotFound) for error in found.values())
    assert {error.what for error in found.values() if error} == {"none is made"}


def test_a_refused_frame_is_not_taken_for_a_topic_that_was_asked_for_under_its_number(
    make_wire: Callable[[], Any],
) -> None:
    wire, core = make_wire(), Driven()
    wire.core = core
    core.put(Record("a", b"x", encode_properties({"UNIQ_KEY": "k0"})), "a")
    while not (sent := core.sent(messages.Append)):
        wire.now_ms += 10
        wire.pump(1000)
        wire.to_writer(wire.now, len(wire.now.up) - len(core.sent(messages.Append)))
        wire.to_producer(1000)
    core.need_topic("b", 1)
    assert core.wait_ms(wire.now_ms) == 0
    core.put(Record("b", b"x", encode_properties({"UNIQ_KEY": "k1"})), "b")
    list(core.outgoing(wire.now_ms))
    (asked,) = core.sent(messages.CreateTopic)
    assert asked.request == sent[0].seq
    gone = refusal(TopicNotFound("none", "a"), sent[0].seq, sent[0].session)
    core.received([encode(gone)], wire.now_ms)
    ((tag, error),) = core.outcomes()
    assert tag == "a" and isinstance(error, TopicNotFound)
    assert len(core) == 1, "the other one waits for its topic"


@pytest.mark.parametrize(
    ("properties", "prop_crc", "ends"),
    [
        (b"k\x01v", False, b"k\x01v"),
        (b"", True, PROP_CRC_ROOM),
        (b"k\x01v", True, b"k\x01v\x02" + PROP_CRC_ROOM),
        (b"k\x01v\x02", True, b"k\x01v\x02" + PROP_CRC_ROOM),
    ],
)
def test_properties_get_room_for_a_checksum_where_the_broker_keeps_one(
    properties: bytes, prop_crc: bool, ends: bytes
) -> None:
    core = SendBack("CG/a")
    core._shape = messages.Welcome(1, 1, 1, 0, 4, 8, 1, 8, prop_crc)
    assert core._properties(Record("a", b"x", properties)) == ends


def test_what_waits_goes_into_frames_of_this_size_or_of_one_record_more(
    make_wire: Callable[[], Any],
) -> None:
    wire, core = make_wire(), Driven()
    wire.core = core
    body = bytes(FRAME_BYTES // 3 - 512)
    for number in range(7):
        core.put(Record("a", body, encode_properties({"UNIQ_KEY": f"k{number}"})), number)
    wire.heal()
    assert [len(each.runs) for each in core.sent(messages.Append) if not each.retry] == [4, 3]
    assert keys(wire) == [f"k{number}" for number in range(7)]


def test_what_comes_while_some_frames_are_unanswered_goes_out_together(
    make_wire: Callable[[], Any],
) -> None:
    wire, core = make_wire(), Driven()
    wire.core = core
    put(core, "a")
    wire.heal(10)
    for number in range(MAX_FRAMES + 3):
        core.put(Record("b", b"x", encode_properties({"UNIQ_KEY": f"b{number}"})), number)
        wire.pump(1000)
    wire.heal()
    sent = [each.runs for each in core.sent(messages.Append)[1:]]
    assert [sum(run.count for run in runs) for runs in sent] == [1] * MAX_FRAMES + [3]
    assert len(core.outcomes()) == 1 + MAX_FRAMES + 3


def test_it_sleeps_no_longer_than_until_the_broker_is_asked_again() -> None:
    core, now_ms = SendBack("CG/a"), 1000
    put(core, "a")
    assert core.wait_ms(now_ms) == 0 and len([*core.outgoing(now_ms)]) == 1
    for _ in range(6):  # nobody answers, and each question comes later than the one before
        wait_ms = core.wait_ms(now_ms)
        assert wait_ms > 0 and not [*core.outgoing(now_ms + wait_ms - 1)]
        now_ms += wait_ms
        assert len([*core.outgoing(now_ms)]) == 1


def test_trouble_with_a_topic_is_over_once_it_is_there_or_never_will_be() -> None:
    core = Driven()
    for number, topic in enumerate("ab"):
        core.need_topic(topic, 1)
        core.put(Record(topic, b"x", encode_properties({"UNIQ_KEY": f"k{number}"})), topic)
    list(core.outgoing(1000))
    first, second = core.sent(messages.CreateTopic)
    for asked in (first, second):
        core.received([encode(refusal(BrokerBusy("not now"), asked.request))], 1000)
        assert isinstance(core.trouble, BrokerBusy)
        if asked is first:
            core.received([encode(messages.Routed(first.request, "a", 1))], 1000)
        else:
            never = refusal(TopicNotFound("it cannot be made"), second.request)
            core.received([encode(never)], 1000)
        assert core.trouble is None
    ((tag, error),) = core.outcomes()
    assert tag == "b" and isinstance(error, TopicNotFound)
    assert len(core) == 1, "the other one still waits"


def test_it_sleeps_until_the_first_of_what_is_to_be_asked_again() -> None:
    core = Driven()
    core.need_topic("a", 1)
    put(core, "a")
    list(core.outgoing(1000))
    assert core.wait_ms(1000) == PROBE_MS
    core.not_connected(1001)
    assert core.aim.away and core.wait_ms(1001) == CONNECT_MS
    for now_ms, count in ((1020, 1), (1021, 2)):
        list(core.outgoing(now_ms))
        assert len(core.sent(messages.CreateTopic)) == count
