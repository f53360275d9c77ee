"""Records for RocketMQ's own topics: those of a transaction get in, anything else is refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest

from penstock.actors.writer import Writer
from penstock.actors.writer.system_records import Recalls, first_recalled_ms
from penstock.shared.errors import InvalidMessage
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.messaging.delayed import RECALL_COMING
from penstock.shared.messaging.half import committed, discarded, half_properties, op_records
from penstock.shared.messaging.system_topics import HALF_TOPIC, OP_TOPIC, TIMER_TOPIC
from penstock.shared.wire.messages import Appended, CreateTopic, QueueRun, Refused, Route, Routed
from penstock.shared.wire.messages import encode as encode_header

HOST = bytes(8)


def half(**more: str) -> Record:
    words = {"UNIQ_KEY": "K1", **half_properties("orders", 1, "shop"), **more}
    return Record(HALF_TOPIC, b"body", encode_properties(words), born_host=HOST)


@pytest.fixture
def producer(pipeline: Callable[..., Any], client: Callable[..., Any]) -> Any:
    broker = pipeline()
    broker.allocate(1)
    writer = broker.start(Writer)
    made = client(broker, writer)
    (routed,) = made.ask(encode_header(CreateTopic(1, "orders", 4)))
    assert isinstance(routed, Routed)
    made.hello()
    return made


def send(producer: Any, *sent: Record) -> Any:
    runs = [QueueRun(each.topic, each.queue_id, 1) for each in sent]
    (answer,) = producer.append_runs(runs, b"".join(map(encode_record, sent)))
    if isinstance(answer, Refused) and len(sent) > 1:
        producer.hello()
    return answer


def test_a_half_message_its_commit_and_its_mark_are_stored(producer: Any) -> None:
    record = half()
    assert isinstance(send(producer, record), Appended)
    marks = op_records([0], "commit", iter(["K2"]), 1, HOST)
    assert isinstance(send(producer, committed(record), *marks), Appended)
    assert isinstance(send(producer, discarded(record)), Appended)


@pytest.mark.parametrize(
    ("record", "status"),
    [
        (half(REAL_TOPIC="nowhere"), "TOPIC_NOT_EXIST"),
        (half(REAL_TOPIC=HALF_TOPIC), "TOPIC_NOT_EXIST"),
        (half(REAL_TOPIC=OP_TOPIC), "TOPIC_NOT_EXIST"),
        (half(REAL_QID="4"), "QUEUE_NOT_EXIST"),
        (half(TRAN_MSG="false"), "MESSAGE_ILLEGAL"),
        (Record(HALF_TOPIC, b"x", b"UNIQ_KEY\x01K\x02", born_host=HOST), "MESSAGE_ILLEGAL"),
        (Record(OP_TOPIC, b"12", born_host=HOST), "MESSAGE_ILLEGAL"),
        (Record(OP_TOPIC, b"12,x,", born_host=HOST), "MESSAGE_ILLEGAL"),
        (Record(OP_TOPIC, b"1," * 2049, born_host=HOST), "MESSAGE_ILLEGAL"),
        (Record("TRANS_CHECK_MAX_TIME_TOPIC", b"x", born_host=HOST), "MESSAGE_ILLEGAL"),
    ],
)
def test_what_is_no_part_of_a_transaction_is_refused(
    producer: Any, record: Record, status: str
) -> None:
    answer = send(producer, record)
    assert isinstance(answer, Refused), answer
    assert answer.status == status, answer


@pytest.mark.parametrize("bits", [0x4, 0xC, 0x80])
def test_no_record_is_stored_that_no_consumer_would_ever_see(producer: Any, bits: int) -> None:
    answer = send(producer, Record("orders", b"x", b"", sys_flag=bits, born_host=HOST))
    assert isinstance(answer, Refused) and answer.status == "MESSAGE_ILLEGAL"


def test_a_producer_is_told_the_queue_of_the_half_topic_and_nobody_makes_it(producer: Any) -> None:
    (routed,) = producer.ask(encode_header(Route(7, HALF_TOPIC, True)))
    assert routed == Routed(7, HALF_TOPIC, 1)
    (refused,) = producer.ask(encode_header(CreateTopic(8, HALF_TOPIC, 3)))
    assert isinstance(refused, Refused)


def test_records_of_other_topics_may_follow_in_the_frame(producer: Any) -> None:
    plain = Record("orders", b"no half message", born_host=HOST)
    answer = send(producer, half(), plain, half(UNIQ_KEY="K2"))
    assert isinstance(answer, Appended) and [run.first for run in answer.runs] == [0, 1, 2]


def test_what_is_due_is_held_up_from_before_a_recall_is_checked_until_it_is_stored(
    pipeline: Callable[..., Any],
) -> None:
    """Else the scheduler could take the message between the check and the recall."""
    broker = pipeline()
    positions = broker.stage("writer").positions
    recalls = Recalls(positions, broker.clock, 100)
    assert positions["recalled"] == 100
    recalls.prepare(broker.clock.now_ms() + 1, 100)
    assert positions["recalled"] == RECALL_COMING
    recalls.stored(250)
    assert positions["recalled"] == 250
    with pytest.raises(InvalidMessage):
        recalls.prepare(broker.clock.now_ms(), 250)
    assert positions["recalled"] == 250


def test_of_all_messages_that_a_frame_takes_back_the_first_to_be_due_counts() -> None:
    """Wherever its records are, and whatever comes around them."""

    def timed(due_ms: int, **more: str) -> Record:
        return Record(TIMER_TOPIC, b"0", encode_properties({"TIMER_OUT_MS": str(due_ms), **more}))

    sent = [
        [Record("orders", b"x"), Record("orders", b"yy")],
        [timed(10), timed(700, TIMER_DEL_UNIQKEY="K1"), timed(500, TIMER_DEL_UNIQKEY="K2")],
        [Record("orders", b"zzz")],
        [timed(600, TIMER_DEL_UNIQKEY="K3")],
    ]

    def first(*taken: int) -> int:
        """Of a frame with these runs of them."""
        runs = [QueueRun(sent[each][0].topic, 0, len(sent[each])) for each in taken]
        raw = [encode_record(record) for each in taken for record in sent[each]]
        starts = [0, *accumulate(map(len, raw))]
        return first_recalled_ms(runs, memoryview(b"".join(raw)), starts, 0)

    assert first(0, 1, 2, 3) == 500
    assert first(3, 1) == 500
    assert first(0, 3, 2) == 600
    assert first(0, 2) == -1
