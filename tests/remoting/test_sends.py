"""What is put into the log for a message that a client of RocketMQ has sent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.remoting.batch import BatchItem, encode_batch
from penstock.remoting.fields import SendFields
from penstock.remoting.sends import Sent, sent_batch, sent_message
from penstock.shared.errors import InvalidArgument, InvalidMessage, PropertiesTooLarge
from penstock.shared.formats.properties import decode_properties, encode_properties
from penstock.shared.formats.record import Record, decode_record, pack_host
from penstock.shared.formats.record_layout import SYS_BORN_HOST_V6, Shape
from penstock.shared.loops.active import check_frame, check_properties
from penstock.shared.messaging.delayed import timer_due_ms

NOW_MS = 1700000000200
PLAIN = Shape()
FIELDS = SendFields("PG", "orders", "TBW102", 4, 3, 0, 1700000000123, 7)


def send(body: bytes = b"hello", shape: Shape = PLAIN, **changes: Any) -> Sent:
    return sent_message(
        msgspec.structs.replace(FIELDS, **changes),
        3,
        body,
        new_key="NEW",
        now_ms=NOW_MS,
        born_host=pack_host("10.1.2.3", 54321),
        cluster="C",
        max_message_bytes=100,
        shape=shape,
    )


def taken(sent: Sent, shape: Shape = PLAIN) -> Record:
    """The record, once a writer would take it."""
    runs = [(sent.topic.encode(), sent.queue_id, sent.messages)]
    starts = check_frame(sent.records, runs, 1 << 20, shape=shape)
    check_properties(sent.records, starts, shape.prop_crc)
    return decode_record(sent.records)


def properties_of(sent: Sent, shape: Shape = PLAIN) -> dict[str, str]:
    return decode_properties(taken(sent, shape).properties)


def test_a_message_is_stored_with_what_rocketmq_adds() -> None:
    record = taken(send(properties="TAGS\x01A\x02POP_CK\x01x\x02", sys_flag=0x301))
    assert (record.topic, record.queue_id, record.flag, record.body) == ("orders", 3, 7, b"hello")
    assert record.sys_flag == 0x301 and record.born_timestamp_ms == 1700000000123
    assert decode_properties(record.properties) == {
        "TAGS": "A",
        "UNIQ_KEY": "NEW",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "C",
    }


def test_a_key_of_its_senders_stays() -> None:
    sent = send(properties="UNIQ_KEY\x01OLD")
    assert sent.unique_key == "OLD" and properties_of(sent)["UNIQ_KEY"] == "OLD"


def test_there_is_room_for_what_the_broker_stamps_whatever_the_sender_says() -> None:
    shape = Shape(20, True)
    sent = send(shape=shape, sys_flag=SYS_BORN_HOST_V6, properties="__CRC32#\x010123456789\x02")
    record = taken(sent, shape)
    assert len(record.store_host) == 20 and record.born_host == pack_host("10.1.2.3", 54321)


def test_a_delayed_message_comes_in_the_form_in_which_it_waits() -> None:
    sent = send(properties="DELAY\x013\x02TIMER_DELAY_SEC\x019\x02")
    assert (sent.topic, sent.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
    found = properties_of(sent)
    assert (found["REAL_TOPIC"], found["REAL_QID"]) == ("orders", "3")
    assert "TIMER_DELAY_SEC" not in found


def test_a_level_below_0_is_no_delay() -> None:
    sent = send(properties="DELAY\x01-1\x02")
    assert (sent.topic, sent.queue_id) == ("orders", 3)
    assert properties_of(sent)["DELAY"] == "-1"


@pytest.mark.parametrize(
    ("asked", "due_ms"),
    [
        ("TIMER_DELAY_SEC\x015\x02", NOW_MS + 5000),
        ("TIMER_DELAY_MS\x0150\x02", NOW_MS + 50),
        ("TIMER_DELIVER_MS\x011700000009999\x02", 1700000009999),
        (f"TIMER_DELIVER_MS\x01{NOW_MS + 1}\x02", NOW_MS + 1),
        ("DELAY\x01-1\x02TIMER_DELAY_SEC\x015\x02", NOW_MS + 5000),
    ],
)
def test_a_message_for_a_time_comes_in_the_form_in_which_it_waits(asked: str, due_ms: int) -> None:
    sent = send(properties=asked)
    assert (sent.topic, sent.queue_id) == ("rmq_sys_wheel_timer", 0)
    assert timer_due_ms(taken(sent).properties, NOW_MS) == due_ms


@pytest.mark.parametrize(
    "time",
    [
        ("TIMER_DELAY_SEC", "-5"),
        ("TIMER_DELAY_SEC", "0"),
        ("TIMER_DELAY_MS", "-999999999999999"),
        ("TIMER_DELIVER_MS", "-1"),
        ("TIMER_DELIVER_MS", str(NOW_MS)),
    ],
)
def test_a_message_for_a_time_in_the_past_is_stored_at_once(time: tuple[str, str]) -> None:
    sent = send(properties="{}\x01{}\x02".format(*time))
    assert (sent.topic, sent.queue_id) == ("orders", 3)
    assert time in properties_of(sent).items(), "as in RocketMQ"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"topic": "../x"}, InvalidArgument),
        ({"body": bytes(101)}, InvalidMessage),
        ({"sys_flag": 4}, InvalidMessage),
        ({"sys_flag": 0x80}, InvalidMessage),
        ({"sys_flag": 0xC1}, InvalidMessage),
        ({"properties": "INNER_NUM\x013\x02"}, InvalidMessage),
        ({"properties": "TIMER_DELIVER_MS\x01" + "9" * 16 + "\x02"}, InvalidMessage),
        ({"properties": "TIMER_DELAY_SEC\x01soon\x02"}, InvalidMessage),
        ({"properties": "a\x01" + "x" * 32760 + "\x02"}, PropertiesTooLarge),
    ],
)
def test_what_cannot_be_stored_is_refused(changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        send(**changes)


def test_a_batch_is_stored_as_it_was_sent() -> None:
    items = [BatchItem(n, b"%d" % n, encode_properties({"WAIT": "true"})) for n in range(3)]
    host = pack_host("10.1.2.3", 1)
    sent = sent_batch(
        FIELDS, 3, encode_batch(items), born_host=host, max_message_bytes=1000, shape=Shape()
    )
    starts = check_frame(sent.records, [(b"orders", 3, 3)], 1 << 20)
    found = [decode_record(sent.records, start) for start in starts[:-1]]
    assert sent.is_batch and sent.messages == 3
    assert [(each.body, each.flag) for each in found] == [(b"0", 0), (b"1", 1), (b"2", 2)]
    assert {each.properties for each in found} == {b"WAIT\x01true\x02"}
