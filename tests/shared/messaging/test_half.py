"""The records of a transaction: what each copy keeps, and what a reader makes of op records."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.errors import InvalidMessage
from penstock.shared.formats.properties import decode_properties, encode_properties
from penstock.shared.formats.record import Record, decode_record, encode_record
from penstock.shared.formats.record_crc import PROP_CRC_ROOM, with_prop_crc_room
from penstock.shared.formats.record_layout import SYS_COMPRESSED, Shape
from penstock.shared.messaging.half import (
    Half,
    as_sent,
    check_half,
    committed,
    discarded,
    half_properties,
    op_bodies,
    op_outcome,
    op_records,
    parse_op,
    put_back,
    read_half,
)
from penstock.shared.names import MAX_PROPERTIES_BYTES

Maker = Callable[..., Record]
OWN = {"UNIQ_KEY": "K1", "TAGS": "new", "colour": "red"}
HOST = b"\x7f\0\0\1\0\0\x2a\x9f"


def half(make_record: Maker, **more: str) -> Record:
    words = OWN | half_properties("orders", 3, "shop") | more
    return make_record(
        topic="RMQ_SYS_TRANS_HALF_TOPIC",
        queue_id=0,
        properties=encode_properties(words),
        queue_offset=12,
        physical_offset=4711,
        sys_flag=SYS_COMPRESSED,
        flag=7,
        reconsume_times=2,
    )


def test_a_half_record_says_where_it_belongs_and_who_can_be_asked(make_record: Maker) -> None:
    record = half(make_record)
    assert check_half(record.properties) == Half("orders", 3, "shop", "K1", 0, -1, -1)
    with_counts = half(
        make_record,
        TRANSACTION_CHECK_TIMES="4",
        CHECK_IMMUNITY_TIME_IN_SECONDS="60",
        TRAN_PREPARED_QUEUE_OFFSET="9",
    )
    assert read_half(with_counts.properties)[4:] == (4, 60, 9)


@pytest.mark.parametrize("missing", ["TRAN_MSG", "PGROUP", "REAL_TOPIC", "REAL_QID", "UNIQ_KEY"])
def test_what_lacks_a_property_of_a_half_record_is_none(missing: str) -> None:
    words = OWN | half_properties("orders", 3, "shop")
    del words[missing]
    with pytest.raises(InvalidMessage):
        check_half(encode_properties(words))


@pytest.mark.parametrize(
    ("name", "value"),
    [("TRAN_MSG", "false"), ("REAL_QID", "-1"), ("REAL_QID", "x"), ("DELAY", "3")],
)
def test_a_property_that_no_half_record_has_is_refused(name: str, value: str) -> None:
    words = OWN | half_properties("orders", 3, "shop") | {name: value}
    with pytest.raises(InvalidMessage):
        check_half(encode_properties(words))


def test_a_committed_message_is_the_half_record_in_its_real_queue(make_record: Maker) -> None:
    record = half(make_record)
    message = committed(record)
    assert (message.topic, message.queue_id) == ("orders", 3)
    assert message.sys_flag == SYS_COMPRESSED | 8
    assert message.prepared_transaction_offset == 4711
    assert message.properties == record.properties
    kept = ("body", "flag", "born_timestamp_ms", "born_host", "reconsume_times")
    assert [getattr(message, name) for name in kept] == [getattr(record, name) for name in kept]


def test_a_record_that_is_put_back_counts_its_checks_and_names_the_first_one(
    make_record: Maker,
) -> None:
    first = half(make_record)
    second = put_back(first, 1)
    assert (second.topic, second.queue_id) == (first.topic, 0)
    words = decode_properties(first.properties)
    words |= {"TRANSACTION_CHECK_TIMES": "1", "TRAN_PREPARED_QUEUE_OFFSET": "12"}
    assert decode_properties(second.properties) == words
    third = put_back(make_record(properties=second.properties, queue_offset=99), 2)
    assert read_half(third.properties)[4:] == (2, -1, 12)
    assert third.properties.count(b"TRANSACTION_CHECK_TIMES") == 1


def test_a_discarded_message_keeps_all_but_its_topic(make_record: Maker) -> None:
    record = half(make_record)
    kept = discarded(record)
    assert (kept.topic, kept.queue_id) == ("TRANS_CHECK_MAX_TIME_TOPIC", 0)
    assert kept.properties == record.properties


def test_no_copy_carries_the_checksum_of_the_record_before_it(make_record: Maker) -> None:
    record = half(make_record)
    stored = make_record(properties=with_prop_crc_room(record.properties, True))
    for copy in (committed(stored), put_back(stored, 1), discarded(stored)):
        assert b"__CRC32#" not in copy.properties
        sent = decode_record(encode_record(as_sent(copy, Shape(20, True))))
        assert sent.properties.count(b"__CRC32#") == 1 and len(sent.store_host) == 20


@given(st.lists(st.integers(0, 10**17)))
def test_an_op_record_says_what_was_put_into_it(offsets: list[int]) -> None:
    bodies = list(op_bodies(offsets))
    assert all(0 < len(body) <= 4096 for body in bodies)
    assert [each for body in bodies for each in parse_op(body)] == offsets


@given(st.binary())
def test_any_body_of_an_op_record_can_be_read(body: bytes) -> None:
    assert all(offset >= 0 for offset in parse_op(body))


@pytest.mark.parametrize(
    ("body", "offsets"),
    [(b"12", (12,)), (b"12,15,", (12, 15)), (b"12,x,15", (12, 15)), (b"-1,", ()), (b"", ())],
)
def test_both_forms_of_op_records_are_read(body: bytes, offsets: tuple[int, ...]) -> None:
    assert parse_op(body) == offsets


def test_an_op_record_of_ours_says_how_it_ended_and_rocketmqs_does_not() -> None:
    keys = (f"K{number}" for number in itertools.count())
    (record,) = op_records([12, 15], "commit", keys, 1000, HOST)
    assert (record.topic, record.queue_id, record.body) == (
        *("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, b"12,15,"),
    )
    assert decode_properties(record.properties)["TAGS"] == "d"
    assert op_outcome(record.properties) == "commit"
    assert op_outcome(encode_properties({"TAGS": "d"})) == ""


@pytest.mark.parametrize("free", range(22))
def test_what_ends_a_half_message_can_be_stored_where_checksums_are_new(
    make_record: Maker, free: int
) -> None:
    """It was stored without one, and its properties leave no room."""
    words = len(half(make_record, note="x").properties)
    record = half(make_record, note="x" * (1 + MAX_PROPERTIES_BYTES - free - words))
    for copy in (committed(record), discarded(record)):
        sent = as_sent(copy, Shape(prop_crc=True))
        assert encode_record(sent) and sent.properties.endswith(PROP_CRC_ROOM)
        own, before = decode_properties(sent.properties), decode_properties(record.properties)
        assert [own[name] for name in (*OWN, "note")] == [before[n] for n in (*OWN, "note")]
