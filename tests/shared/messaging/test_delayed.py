"""Delayed records and what is delivered of them, compared with whole records decoded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.shared.errors import InvalidMessage
from penstock.shared.formats.delay_levels import SCHEDULE_TOPIC
from penstock.shared.formats.message_id import offset_message_id
from penstock.shared.formats.properties import decode_properties, encode_properties
from penstock.shared.formats.record import Record, decode_record, encode_record
from penstock.shared.formats.record_crc import PROP_CRC, with_prop_crc_room
from penstock.shared.formats.record_layout import SYS_STORE_HOST_V6, Shape
from penstock.shared.messaging.delayed import (
    MAX_DELAY_MS,
    Delay,
    check_level,
    check_timer,
    delayed,
    recalled_key,
    timer_due_ms,
)
from penstock.shared.messaging.delivered import delivered, rolled, taken_apart
from penstock.shared.messaging.system_topics import TIMER_TOPIC

NOW = 1_700_000_000_000
hosts = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
texts = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=9)
topics = st.sampled_from(["orders", "%RETRY%" + "g" * 120 + "x" * 100])
records = st.builds(
    Record,
    topic=topics,
    body=st.binary(max_size=40),
    properties=st.dictionaries(texts, texts, max_size=3).map(
        lambda own: encode_properties({f"u{k}": v for k, v in own.items()} | {"UNIQ_KEY": "K1"})
    ),
    queue_id=st.integers(0, 7),
    flag=st.integers(-5, 5),
    sys_flag=st.sampled_from([0, 1, 0x100]),
    born_timestamp_ms=st.integers(0, NOW),
    born_host=hosts,
    reconsume_times=st.integers(0, 20),
)
shapes = st.builds(Shape, st.sampled_from([8, 20]), st.booleans())


def stored(record: Record, host: bytes, prop_crc: bool = False) -> memoryview:
    """As a broker stores it."""
    raw = with_prop_crc_room(record.properties, prop_crc)
    kept = replace(
        record,
        properties=raw,
        store_timestamp_ms=NOW,
        store_host=host,
        queue_offset=7,
        physical_offset=4711,
    )
    return memoryview(encode_record(kept))


@given(records, st.integers(1, 18), hosts, shapes, st.booleans())
def test_what_waited_by_level_comes_as_it_was_sent_and_says_so(
    record: Record, level: int, host: bytes, shape: Shape, crc: bool
) -> None:
    waits = delayed(record, Delay(level))
    assert (waits.topic, waits.queue_id) == (SCHEDULE_TOPIC, level - 1)
    real = check_level(waits.properties, level - 1)
    assert real == (record.topic.encode(), record.queue_id)
    found = delivered(taken_apart(stored(waits, host, crc)), shape, timed=False)
    assert found is not None and found[:2] == real
    came = decode_record(found.record)
    assert came.total_size == len(found.record)
    own = decode_properties(came.properties)
    assert own.pop(PROP_CRC, None) == ("0000000000" if shape.prop_crc else None)
    assert own == decode_properties(record.properties) | {
        "DELAY": str(level),
        "REAL_TOPIC": record.topic,
        "REAL_QID": str(record.queue_id),
    }
    blank = replace(
        came,
        properties=record.properties,
        body_crc=0,
        total_size=0,
        magic=record.magic,
        sys_flag=came.sys_flag & ~0x30,
        store_host=record.store_host,
    )
    assert blank == record
    assert bool(came.sys_flag & SYS_STORE_HOST_V6) == (shape.store_host_bytes == 20)


@given(records, st.integers(NOW + 1, NOW + MAX_DELAY_MS), hosts, shapes)
def test_what_waited_for_a_time_comes_and_says_when_it_was_due(
    record: Record, out_ms: int, host: bytes, shape: Shape
) -> None:
    waits = delayed(record, Delay(out_ms=out_ms))
    assert (waits.topic, waits.queue_id) == (TIMER_TOPIC, 0)
    parts = taken_apart(stored(waits, host))
    assert parts.due_ms == out_ms and parts.unique_key == b"K1" and not recalled_key(parts[3])
    found = delivered(parts, shape, timed=True)
    assert found == delivered(taken_apart(stored(waits, host)), shape, timed=True)
    assert found is not None
    own = decode_properties(decode_record(found.record).properties)
    assert own["TIMER_OUT_MS"] == own["TIMER_DEQUEUE_MS"] == str(out_ms)
    assert own["TIMER_ENQUEUE_MS"] == str(NOW) and own["REAL_TOPIC"] == record.topic

    again = rolled(parts, shape, 3)
    assert again[:2] == (TIMER_TOPIC.encode(), 0)
    twice = taken_apart(stored(decode_record(again.record), host))
    assert twice.due_ms == out_ms
    own = decode_properties(twice.properties)
    assert (own["TIMER_ROLL_TIMES"], own["REAL_QID"]) == ("1", "3")
    third = decode_record(rolled(twice, shape, 3).record)
    assert decode_properties(third.properties)["TIMER_ROLL_TIMES"] == "2"


def test_a_relative_time_counts_from_the_store_time_and_a_roll_does_not_move_it() -> None:
    slow = delayed(Record("t", b"x", b"UNIQ_KEY\x01K\x02"), Delay(out_ms=NOW - 500, delay_ms=2000))
    parts = taken_apart(stored(slow, bytes(8)))
    assert parts.due_ms == NOW + 2000
    again = stored(decode_record(rolled(parts, Shape(), 3).record), bytes(8))
    assert taken_apart(again).due_ms == NOW + 2000
    assert timer_due_ms(b"TIMER_OUT_MS\x015000\x02TIMER_DELAY_SEC\x013\x02", 1000) == 5000
    assert timer_due_ms(b"TIMER_OUT_MS\x015000\x02TIMER_DELAY_SEC\x019\x02", 1000) == 10_000


def test_a_record_without_a_unique_key_gets_its_place_as_one() -> None:
    waits = delayed(Record("t", b"x"), Delay(3))
    found = delivered(taken_apart(stored(waits, bytes(8))), Shape(), timed=False)
    assert found is not None
    own = decode_properties(decode_record(found.record).properties)
    assert own["UNIQ_KEY"] == offset_message_id(bytes(8), 4711)


def test_a_record_that_names_no_place_is_not_delivered() -> None:
    for properties in (b"", b"REAL_TOPIC\x01t\x02", b"REAL_TOPIC\x01t\x02REAL_QID\x01-1\x02"):
        waits = Record(SCHEDULE_TOPIC, b"x", properties)
        assert delivered(taken_apart(stored(waits, bytes(8))), Shape(), timed=False) is None


def test_by_the_level_of_its_own_property_a_record_waits_or_does_not() -> None:
    for level in ("0", "-1", "²", "٣", "9" * 5000, "soon"):
        ready = Record("t", b"x", encode_properties({"DELAY": level}))
        assert delayed(ready) is ready, "no plain number is no level"
    waits = delayed(Record("t", b"x", b"DELAY\x0199\x02TIMER_OUT_MS\x015\x02", queue_id=2))
    assert waits.queue_id == 17
    assert decode_properties(waits.properties) == {
        "DELAY": "18",
        "REAL_TOPIC": "t",
        "REAL_QID": "2",
    }


@pytest.mark.parametrize(
    "raw",
    [
        b"REAL_TOPIC\x01t\x02REAL_QID\x010\x02",
        b"TIMER_OUT_MS\x01soon\x02REAL_TOPIC\x01t\x02REAL_QID\x010\x02",
        b"TIMER_OUT_MS\x01%d\x02" % (NOW + 5),
        b"TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01t\x02REAL_QID\x010\x02" % (NOW + 41 * 86_400_000),
    ],
)
def test_what_could_not_be_delivered_may_not_wait(raw: bytes) -> None:
    with pytest.raises(InvalidMessage):
        check_timer(raw, NOW)
    with pytest.raises(InvalidMessage):
        check_level(raw, 0)


def test_a_clock_of_a_producer_may_be_a_minute_ahead_where_a_message_waits_for_40_days() -> None:
    def waits(due_ms: int) -> bytes:
        return b"TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01t\x02REAL_QID\x010\x02" % due_ms

    last_ms = NOW + MAX_DELAY_MS + 60_000
    assert check_timer(waits(last_ms), NOW) == (b"t", 0)
    with pytest.raises(InvalidMessage):
        check_timer(waits(last_ms + 1), NOW)
