"""Batches of RocketMQ's clients: the golden bytes, any items, and any bytes that are no batch."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.remoting.batch import BatchItem, batch_frame, decode_batch, encode_batch
from penstock.shared.errors import InvalidArgument, InvalidMessage, PropertiesTooLarge
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import decode_record, pack_host
from penstock.shared.formats.record_layout import Shape
from penstock.shared.loops.active import check_frame, put_stamped
from penstock.shared.loops.forms import Stamp

PROPERTIES = encode_properties({"TAGS": "TagB", "WAIT": "true"})
ITEMS = [BatchItem(0, b"b0", PROPERTIES), BatchItem(1, b"b1", PROPERTIES)]
RAW = bytes.fromhex(
    "0000002c0000000000000000000000000000000262300014544147530154616742025741495401747275650200"
    "00002c0000000000000000000000010000000262310014544147530154616742025741495401747275650"
    "2"
)
STORED = bytes.fromhex(
    "00000077daa320a747cc1be000000003000000010000000000000003000000000000045f000000000000018bcfe5687b"
    "0a0102030000d4310000018bcfe56db0c0a8070900002a9f000000000000000000000000000000026231066f72646572"
    "73001454414753015461674202574149540174727565"
    "02"
)
BORN = {"born_timestamp_ms": 1700000000123, "born_host": pack_host("10.1.2.3", 54321)}
items = st.lists(
    st.builds(
        BatchItem,
        st.integers(-(2**31), 2**31 - 1),
        st.binary(max_size=40),
        st.binary(max_size=40),
    ),
    max_size=5,
)


def frame_of(raw: bytes = RAW, topic: str = "orders", **changes: object) -> bytes:
    usual = {"max_message_bytes": 1 << 20, "shape": Shape()} | BORN
    return batch_frame(raw, topic, 3, **(usual | changes))[0]


def test_a_batch_has_the_golden_bytes_and_becomes_the_golden_records() -> None:
    """store-format, 17.7."""
    assert encode_batch(ITEMS) == RAW
    assert decode_batch(RAW) == ITEMS
    frame = frame_of()
    starts = check_frame(frame, [(b"orders", 3, 2)], 1 << 20)
    stored = bytearray(len(frame))
    stamp = Stamp(1700000001456, pack_host("192.168.7.9", 10911))
    put_stamped(stored, frame, starts, [2, 3], 1000, stamp)
    assert starts == [0, 119, 238]
    assert bytes(stored[119:]) == STORED


@given(items)
def test_any_items_come_back(found: list[BatchItem]) -> None:
    assert decode_batch(encode_batch(found)) == found


@given(items, st.data())
def test_a_batch_that_is_cut_or_changed_is_refused_or_is_another_batch(
    found: list[BatchItem], data: st.DataObject
) -> None:
    raw = bytearray(encode_batch(found))
    if raw and data.draw(st.booleans()):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    try:
        again = decode_batch(bytes(raw))
    except InvalidMessage:
        return
    blank = bytearray(raw)  # magic and checksum are not looked at
    at = 0
    for item in again:
        blank[at + 4 : at + 12] = bytes(8)
        at += 22 + len(item.body) + len(item.properties)
    assert encode_batch(again) == bytes(blank)


@given(st.binary(max_size=200))
def test_any_other_bytes_are_refused(raw: bytes) -> None:
    with suppress(InvalidMessage):
        assert decode_batch(raw) == [] or len(raw) >= 22


@given(items.filter(bool), st.sampled_from([8, 20]), st.booleans())
def test_the_records_of_a_batch_are_its_items_for_every_kind_of_broker(
    found: list[BatchItem], store_host_bytes: int, prop_crc: bool
) -> None:
    shape = Shape(store_host_bytes, prop_crc)
    frame = frame_of(encode_batch(found), shape=shape, sys_flag=2, reconsume_times=5)
    starts = check_frame(frame, [(b"orders", 3, len(found))], 1 << 20, shape=shape)
    for item, at, end in zip(found, starts, starts[1:], strict=False):
        record = decode_record(frame[at:end])
        assert (record.flag, record.body, record.reconsume_times) == (item.flag, item.body, 5)
        assert record.properties.startswith(item.properties)
        assert prop_crc or record.properties == item.properties


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"raw": b""}, "holds no message"),
        ({"sys_flag": 4}, "part of a transaction"),
        ({"sys_flag": 0x80}, "one in one record"),
        ({"topic": "%RETRY%g"}, "retry topic"),
        ({"topic": "a/b"}, "characters"),
        ({"max_message_bytes": 87}, "larger than 87"),
    ],
)
def test_what_rocketmq_refuses_is_refused(changes: dict[str, object], words: str) -> None:
    assert frame_of(max_message_bytes=88)
    with pytest.raises((InvalidMessage, InvalidArgument), match=words):
        frame_of(**changes)


def test_properties_that_do_not_fit_are_refused() -> None:
    full = BatchItem(0, b"", b"k\x01" + b"v" * 32764 + b"\x02")
    assert len(full.properties) == 32767
    assert decode_batch(encode_batch([full])) == [full]
    with pytest.raises(PropertiesTooLarge):
        frame_of(encode_batch([full]), shape=Shape(8, True))
    with pytest.raises(PropertiesTooLarge):
        encode_batch([full._replace(properties=full.properties + b"x")])
