"""Copies of what has waited: each can be stored, whatever room its properties leave."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.shared.formats.properties import decode_properties, encode_properties
from penstock.shared.formats.record import Record, decode_record, encode_record
from penstock.shared.formats.record_crc import PROP_CRC_ROOM
from penstock.shared.formats.record_layout import Shape
from penstock.shared.messaging.delayed import Delay, delayed
from penstock.shared.messaging.delivered import delivered, rolled, taken_apart
from penstock.shared.names import MAX_PROPERTIES_BYTES

Maker = Callable[..., Record]
BY_LEVEL, TIMED = Delay(1), Delay(out_ms=1_700_000_000_000)
RELATIVE = Delay(out_ms=1_700_000_000_000, delay_ms=5000)


def full(size: int, others: dict[str, str]) -> bytes:
    """Properties of exactly this size."""
    raw = encode_properties({"note": "x"} | others)
    return encode_properties({"note": "x" * (1 + size - len(raw))} | others)


def waiting(make_record: Maker, delay: Delay, free: int, **own: str) -> Record:
    """One whose properties leave this many bytes free."""
    kept = delayed(make_record(properties=encode_properties(own)), delay)
    raw = full(MAX_PROPERTIES_BYTES - free, decode_properties(kept.properties))
    return make_record(topic=kept.topic, queue_id=kept.queue_id, properties=raw)


def sent(record: bytes) -> Record:
    """The record, as the writer has to take it."""
    found = decode_record(memoryview(record))
    assert len(found.properties) <= MAX_PROPERTIES_BYTES and encode_record(found) == record
    return found


@pytest.mark.parametrize("crc", [False, True], ids=["plain", "checksum"])
@pytest.mark.parametrize("delay", [BY_LEVEL, TIMED, RELATIVE], ids=["level", "time", "relative"])
@pytest.mark.parametrize("free", [*range(0, 24), *range(40, 90, 3)])
def test_a_copy_can_be_stored_whatever_room_its_properties_leave(
    make_record: Maker, free: int, delay: Delay, crc: bool
) -> None:
    """A store may have got checksums since the message was stored, and RocketMQ's may lack the
    separator at their end. What names the message and its sender's own properties stay."""
    record = waiting(make_record, delay, free, UNIQ_KEY="K")
    for raw in (record.properties, record.properties[:-1]):
        stored = make_record(topic=record.topic, properties=raw, queue_id=record.queue_id)
        apart = taken_apart(memoryview(encode_record(stored)))
        copy = delivered(apart, Shape(prop_crc=crc), timed=delay.level == 0)
        assert copy is not None and copy[:2] == (b"orders", 0)
        found = sent(copy.record)
        own, before = decode_properties(found.properties), decode_properties(raw)
        assert (own["note"], own["UNIQ_KEY"]) == (before["note"], "K")
        assert found.properties.endswith(PROP_CRC_ROOM) == crc
        assert free < 24 or own.keys() >= before.keys(), "nothing is left out for nothing"


@pytest.mark.parametrize("free", [*range(0, 24), 60])
@pytest.mark.parametrize("delay", [TIMED, RELATIVE], ids=["time", "relative"])
def test_what_is_rolled_can_be_stored_whatever_room_its_properties_leave(
    make_record: Maker, free: int, delay: Delay
) -> None:
    record = waiting(make_record, delay, free, UNIQ_KEY="K")
    apart = taken_apart(memoryview(encode_record(record)))
    found = sent(rolled(apart, Shape(), 3).record)
    again = taken_apart(memoryview(encode_record(found)))
    assert again.due_ms == apart.due_ms, "whenever it is stored"
    assert decode_properties(found.properties)["REAL_QID"] == "3"


def test_of_a_store_with_checksums_what_is_rolled_keeps_room_for_one(make_record: Maker) -> None:
    for free in range(40):
        record = waiting(make_record, TIMED, 20 + free, UNIQ_KEY="K")
        with_crc = make_record(topic=record.topic, properties=record.properties + PROP_CRC_ROOM)
        apart = taken_apart(memoryview(encode_record(with_crc)))
        found = sent(rolled(apart, Shape(prop_crc=True), 0).record)
        assert found.properties.endswith(PROP_CRC_ROOM)


def test_what_is_rolled_keeps_bytes_that_are_no_text(make_record: Maker) -> None:
    """As characters they would become longer, and others."""
    raw = b"raw\x01" + b"\xff" * 20_000 + b"\x02" + full(200, {"REAL_TOPIC": "a", "REAL_QID": "1"})
    record = make_record(topic="rmq_sys_wheel_timer", properties=raw + b"TIMER_OUT_MS\x0199\x02")
    found = sent(rolled(taken_apart(memoryview(encode_record(record))), Shape(), 1).record)
    assert b"\xff" * 20_000 + b"\x02" in found.properties
