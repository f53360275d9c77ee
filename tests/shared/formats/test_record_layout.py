"""The layout of a record: the drawing, the offsets, and readers that take fields by offset."""

from __future__ import annotations

import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.formats import record_layout
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_layout import (
    AT_BODY_V4,
    AT_BORN_TIMESTAMP,
    AT_FLAG,
    AT_QUEUE_ID,
    AT_SYS_FLAG,
    FIXED_HEAD,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    SMALLEST_RECORD_BYTES,
    body_span,
    fields_at,
    store_host,
    store_timestamp_ms,
)

HOSTS = (HOST_V4_BYTES, HOST_V6_BYTES)


def test_the_drawing_and_the_offsets_say_the_same() -> None:
    drawing, _ = (record_layout.__doc__ or "").split("Everything is big-endian")
    drawn = re.findall(r" (\d+)(?:\+[BS+]+)? +([a-z][A-Za-z]+)", drawing)
    named = {
        "".join(word.capitalize() for word in name.removesuffix("_V4").split("_")[1:]): value
        for name, value in vars(record_layout).items()
        if name.startswith("AT_") and not name.endswith("_LOW")
    }
    hosts_before = {"StoreTimestamp": 1, "StoreHost": 1} | dict.fromkeys(
        ("ReconsumeTimes", "PreparedOffset", "BodyLength", "Body"), 2
    )
    expected = {
        name.lower(): value - HOST_V4_BYTES * hosts_before.get(name, 0)
        for name, value in named.items()
    }
    aliases = {"bodycrc": "bodycrc", "preparedtransactionoffset": "preparedoffset"}
    found = {aliases.get(name.lower(), name.lower()): int(offset) for offset, name in drawn}
    assert found == expected
    assert len(found) == 16


@pytest.mark.parametrize("born", HOSTS)
@pytest.mark.parametrize("store", HOSTS)
@given(topic_bytes=st.sampled_from((1, 127, 128, 255)))
def test_the_fields_of_a_record_are_found_whatever_its_hosts(
    born: int, store: int, topic_bytes: int
) -> None:
    record = encode_record(
        Record(
            "t" * topic_bytes,
            b"body",
            born_host=bytes(born),
            store_host=b"\x07" * store,
            store_timestamp_ms=1_700_000_001_456,
        )
    )
    assert body_span(record, 0) == (AT_BODY_V4 + born + store - 2 * HOST_V4_BYTES, 4)
    assert store_host(record) == b"\x07" * store
    assert store_timestamp_ms(record[:SMALLEST_RECORD_BYTES], 0) == 1_700_000_001_456


def test_a_head_that_is_cut_off_has_no_store_time() -> None:
    assert store_timestamp_ms(b"", 0) == 0


@given(st.binary(min_size=FIXED_HEAD.size, max_size=FIXED_HEAD.size))
def test_fields_taken_by_offset_are_those_of_the_whole_head(raw: bytes) -> None:
    some = fields_at(
        (AT_QUEUE_ID, "i"), (AT_FLAG, "i"), (AT_SYS_FLAG, "i"), (AT_BORN_TIMESTAMP, "q")
    )
    _, _, _, queue_id, flag, _, _, sys_flag, born_ms = FIXED_HEAD.unpack(raw)
    assert some.unpack_from(raw) == (queue_id, flag, sys_flag, born_ms)


def test_fields_are_named_in_the_order_in_which_they_stand() -> None:
    with pytest.raises(struct.error):
        fields_at((AT_FLAG, "i"), (AT_QUEUE_ID, "i"))
