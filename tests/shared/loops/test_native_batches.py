"""The batches of RocketMQ's clients: the compiled loop and its twin make the same records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.loops.pure import plain as pure

native = pytest.importorskip("penstock.shared.loops.compiled", reason="was not built")

HOSTS = [pack_host("10.1.2.3", 54321), pack_host("2001:db8::1", 9)]
pieces = st.sampled_from([b"__CRC32#\x01", b"0123456789\x02", b"K\x01v\x02", b"_", b"\x02", b"x"])
properties = st.lists(pieces, max_size=4).map(b"".join) | st.binary(max_size=20)
commons = st.builds(
    lambda topic, born, store: encode_record(
        Record(topic, b"", queue_id=3, sys_flag=1, born_host=born, store_host=bytes(len(store)))
    ),
    st.sampled_from(["a", "orders", "%RETRY%" + "g" * 200]),
    st.sampled_from(HOSTS),
    st.sampled_from(HOSTS),
)


def item(flag: int, body: bytes, raw: bytes) -> bytes:
    lengths = len(body).to_bytes(4, "big") + body + len(raw).to_bytes(2, "big") + raw
    head = (len(lengths) + 16).to_bytes(4, "big") + bytes(8) + flag.to_bytes(4, "big", signed=True)
    return head + lengths


items = st.builds(item, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=40), properties)
batches = st.lists(items, max_size=4).map(b"".join)


@given(batches, commons, st.booleans())
def test_whole_batches_become_the_same_records(raw: bytes, common: bytes, crc: bool) -> None:
    found = native.batch_records(raw, common, crc)
    assert found == pure.batch_records(raw, common, crc) and found is not None


@given(batches, commons, st.booleans(), st.data())
def test_what_is_bent_or_cut_is_refused_alike(
    raw: bytes, common: bytes, crc: bool, data: st.DataObject
) -> None:
    bent = bytearray(raw)
    for _ in range(data.draw(st.integers(0, 2)) if raw else 0):
        at = data.draw(st.integers(0, len(bent) - 1))
        bent[at : at + 4] = data.draw(st.sampled_from([b"\xff", b"\0\0\0\x16", b"\x7f\xff", b"\0"]))
    cut = bytes(bent[: data.draw(st.integers(0, len(bent)))])
    assert native.batch_records(cut, common, crc) == pure.batch_records(cut, common, crc)


@pytest.mark.parametrize(
    ("size", "crc"), [(32767, False), (32747, True), (32746, True), (32748, True)]
)
def test_properties_fit_alike(size: int, crc: bool) -> None:
    common = encode_record(Record("a", b""))
    raw = item(0, b"x", b"v" * size)
    found = native.batch_records(raw, common, crc)
    assert found == pure.batch_records(raw, common, crc)
    # what ends without a separator has one put before the checksum
    assert (found is None) == (crc and size > 32746)
