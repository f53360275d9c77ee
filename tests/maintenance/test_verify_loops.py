"""The verifier's loops: both forms give the same, and with the rest of Penstock they agree about
every record, sound or damaged. Neither shares code with the other two."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.maintenance.verify_loops import pure
from penstock.maintenance.verify_loops.pure import BODY, OWN, ROW_NUMBERS, Checked
from penstock.shared.formats.index_chains import (
    ITEM_DTYPE,
    SLOT_DTYPE,
    index_keys,
    key_hashes,
    link_entries,
    move_slots,
)
from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.formats.record_check import Kind, examine
from penstock.shared.formats.record_crc import (
    Checksum,
    complete_prop_crc,
    has_prop_crc,
    with_prop_crc_room,
)
from penstock.shared.formats.record_outline import entry_tags_code, outline, record_keys
from penstock.shared.loops.active import record_starts

GOLDEN = Path(__file__).parent.parent / "golden"
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
LEVELS_MS = array("q", [1000, 5000, 60_000])
COMPARED = {
    Checksum.NONE: 0,
    Checksum.BODY: BODY,
    Checksum.RECORD: OWN,
    Checksum.BOTH: BODY | OWN,
}
# names that one may take for another, values that are not there or no UTF-8, a hash that is -2**31
NAMES = [b"TAGS", b"KEYS", b"UNIQ_KEY", b"DELAY", b"XTAGS", b"TAG", b"", b"__CRC32#"]
VALUES = [b"", b"a", b"a b  a", b"2", b"9", b"007", b"0", b"1234567890", b"\x01x", b"0A" * 16]
VALUES += ["标签 键".encode(), "x😀".encode(), b"\xff\xc3", b"polygenelubricants"]
TOPICS = ["orders", "SCHEDULE_TOPIC_XXXX", "%RETRY%" + "g" * 130, "a.b:c", "t" * 127]
hosts = st.sampled_from([pack_host("10.1.2.3", 54321), pack_host("2001:db8::1", 9)])
entries = st.tuples(st.sampled_from(NAMES), st.sampled_from([b"\x01", b"\x01", b""]))
properties = st.lists(
    st.tuples(entries, st.sampled_from(VALUES), st.sampled_from([b"\x02", b"\x02", b""])),
    max_size=5,
).map(lambda found: b"".join(b"".join((*name, value, end)) for name, value, end in found))


@st.composite
def pieces(draw: st.DrawFn) -> tuple[int, bytes]:
    """A log offset and the records there, of every sort."""
    position = draw(st.sampled_from([0, 4096, 2**40]))
    log = bytearray()
    for _ in range(draw(st.integers(0, 5))):
        has_own = draw(st.booleans())
        record = Record(
            draw(st.sampled_from(TOPICS)),
            draw(st.binary(max_size=40)),
            with_prop_crc_room(draw(properties), has_own),
            queue_id=draw(st.integers(0, 3)),
            queue_offset=draw(st.sampled_from([0, 7, 2**58 - 1])),
            physical_offset=position + len(log),
            sys_flag=draw(st.sampled_from([0, 0, 1, 4, 8, 12])),
            store_timestamp_ms=draw(st.sampled_from([1700000001456, 0, -5, 2**63 - 1])),
            born_host=draw(hosts),
            store_host=draw(hosts),
        )
        raw = bytearray(encode_record(record))
        if has_own:
            complete_prop_crc(raw, 0, len(raw))
        log += raw
    return position, bytes(log)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[int, bytes]:
    """The same with bytes changed, mostly those of numbers, or cut off; or with more after it."""
    position, log = draw(pieces())
    changed = bytearray(log)
    for _ in range(draw(st.integers(0, 3)) if log else 0):
        near = st.sampled_from([0, 3, 4, 7, 8, 12, 20, 28, 35, 39, 56, 84, 87, 88])
        at = draw(near | st.integers(0, len(changed) - 1)) % len(changed)
        changed[at] = draw(st.sampled_from([0, 1, 2, 46, 91, 127, 128, 255]))
    return position, bytes(changed[: draw(st.integers(0, len(log)) | st.just(len(log)))]) + draw(
        st.sampled_from([b"", bytes(100), b"\xff" * 200])
    )


def _asked(
    loops: Any, log: bytes, position: int, checksum: Checksum, limit: int, keyed: bool = True
) -> tuple[Checked, dict[bytes, int]]:
    queues: dict[bytes, int] = {}
    asked = memoryview(log), position, limit, COMPARED[checksum], LEVELS_MS, queues, keyed
    return loops.check(*asked), queues


@given(damaged(), st.sampled_from(Checksum), st.integers(0, 400) | st.just(1 << 40), st.booleans())
def test_both_forms_of_the_loop_give_the_same(
    piece: tuple[int, bytes], checksum: Checksum, limit: int, keyed: bool
) -> None:
    compiled = pytest.importorskip("penstock.maintenance.verify_loops.compiled")
    asked = piece[1], piece[0], checksum, limit, keyed
    assert _asked(compiled, *asked) == _asked(pure, *asked)


@pytest.mark.parametrize("form", ["compiled", "pure"])
@pytest.mark.parametrize("has_own", [False, True])
@pytest.mark.parametrize("checksum", Checksum)
def test_a_body_s_checksum_counts_where_it_is_asked_for_and_where_there_is_no_other(
    form: str, has_own: bool, checksum: Checksum
) -> None:
    """The record's own covers the body, too: beside it, asked for alone, the body's is not read."""
    loops = pytest.importorskip(f"penstock.maintenance.verify_loops.{form}")
    raw = bytearray(encode_record(Record("orders", b"body", with_prop_crc_room(b"", has_own))))
    raw[8] ^= 1
    if has_own:
        complete_prop_crc(raw, 0, len(raw))
    is_refused = checksum in (Checksum.BODY, Checksum.BOTH)
    is_refused |= checksum is Checksum.RECORD and not has_own
    found, _ = _asked(loops, bytes(raw), 0, checksum, 1 << 40)
    assert found.stop == (0 if is_refused else len(raw))


@given(damaged(), st.sampled_from([Checksum.NONE, Checksum.BODY, Checksum.BOTH]))
def test_the_loop_takes_the_records_that_a_scan_takes(
    piece: tuple[int, bytes], checksum: Checksum
) -> None:
    """All of them, but for inner batches."""
    position, log = piece
    starts = record_starts(log, position, checksum)
    inner = [at for at in starts[:-1] if log[at + 39] & 0x80]
    found, _ = _asked(pure, log, position, checksum, 1 << 40)
    assert found.stop == [*inner, starts[-1]][0]


@given(damaged())
def test_of_records_with_and_without_a_checksum_the_loop_takes_none_that_does_not_hold(
    piece: tuple[int, bytes],
) -> None:
    position, log = piece
    found, _ = _asked(pure, log, position, Checksum.RECORD, 1 << 40)
    at = without = 0
    while at < found.stop:
        size = int.from_bytes(log[at : at + 4])
        has_own = has_prop_crc(log, at + size)
        without += not has_own
        held_to = Checksum.RECORD if has_own else Checksum.BODY
        kind, _, reason = examine(log, at, len(log), position=position + at, checksum=held_to)
        assert kind is Kind.RECORD, reason
        at += size
    assert found.without_crc == without


@given(pieces())
def test_what_the_loop_reads_is_what_the_rest_of_penstock_writes(piece: tuple[int, bytes]) -> None:
    position, log = piece
    found, queues = _asked(pure, log, position, Checksum.BOTH, 1 << 40)
    assert found.stop == len(log)
    names = {number: (name[:-4], int.from_bytes(name[-4:])) for name, number in queues.items()}
    rows = np.frombuffer(found.rows, np.int64).reshape(-1, ROW_NUMBERS).tolist()
    keys, items, at = set(), [], 0
    for number, slot, place, size, code, key_hash, stored_ms in rows:
        fields = outline(memoryview(log)[at : at + size])
        assert (place, stored_ms) == (position + at, fields.store_timestamp_ms)
        assert (number >= 0) == fields.is_queued
        if fields.is_queued:
            assert names[number] == (fields.topic, fields.queue_id)
        assert (slot, code) == (fields.queue_offset, entry_tags_code(fields, (*LEVELS_MS,)))
        unique_key, words = record_keys(fields)
        if fields.is_queued:
            assert bool(key_hash) == bool(unique_key)
            keys.add((unique_key, key_hash))
        hashes = key_hashes(index_keys(fields.topic, unique_key, words)).tolist()
        items += [(each, place) for each in hashes]
        at += size
    assert np.frombuffer(found.items, np.int64).reshape(-1, 2).tolist() == [*map(list, items)]
    assert len(keys) == len({key for key, _ in keys}) == len({each for _, each in keys})


@pytest.mark.parametrize("name", ["broker-5.3", "broker-crc-5.3", "clean-4.9", "ipv6-5.3"])
def test_rocketmqs_own_records_are_usual(tmp_path: Path, name: str) -> None:
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as packed:
        packed.extractall(tmp_path, **SAFELY)
    for segment in tmp_path.rglob("commitlog/*"):
        log, position = segment.read_bytes(), int(segment.name)
        for checksum in (Checksum.BODY, Checksum.BOTH):
            starts = record_starts(log, position, checksum)
            found, _ = _asked(pure, log, position, checksum, 1 << 40)
            assert len(starts) > 10 and found.stop == starts[-1]


def test_keys_that_differ_in_some_digits_have_hashes_of_their_own() -> None:
    """As a client's keys do: time and counter, at the end of what is the same."""
    stamps = [(2**20 + ms, count) for ms in range(300) for count in range(9)]
    keys = {b"0A010203D4310A1B2C3D%08X%04X" % stamp for stamp in stamps}
    keys |= {b"%d" % number for number in range(3000)} | {b"\0" * size for size in range(1, 40)}
    assert len({pure.key_hash(key) for key in keys}) == len(keys)
    assert pure.key_hash(b"") == 0


@given(st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 20), max_size=90), st.integers(1, 9))
def test_chains_are_those_of_the_index(hashes: list[int], slot_count: int) -> None:
    slots, own = np.zeros(slot_count, SLOT_DTYPE), array("i", bytes(4 * slot_count))
    twins = array("i", own)
    compiled = pytest.importorskip("penstock.maintenance.verify_loops.compiled")
    for start in range(0, len(hashes), 40):
        some = np.array(hashes[start : start + 40], np.int64)
        raw, _ = link_entries(slots, some, some, some, start + 1, 0)
        move_slots(slots, some, start + 1)
        expected = np.frombuffer(raw, ITEM_DTYPE)["previous"].tolist()
        assert np.frombuffer(pure.chain(raw, start + 1, twins), np.int32).tolist() == expected
        assert np.frombuffer(compiled.chain(raw, start + 1, own), np.int32).tolist() == expected
    assert own.tolist() == twins.tolist() == slots.tolist()


def test_a_hash_with_a_sign_has_a_slot_too() -> None:
    """As a damaged file may have one."""
    compiled = pytest.importorskip("penstock.maintenance.verify_loops.compiled")
    raw = b"".join(code.to_bytes(4, signed=True) + bytes(16) for code in (-1, -7, -(2**31), 5))
    slots = array("i", bytes(28)), array("i", bytes(28))
    assert pure.chain(raw, 1, slots[0]) == compiled.chain(raw, 1, slots[1])
    assert slots[0] == slots[1]


@pytest.mark.parametrize(
    ("setting", "module"), [("", "compiled"), ("0", "compiled"), ("1", "pure")]
)
def test_the_form_in_python_can_be_chosen(setting: str, module: str) -> None:
    pytest.importorskip("penstock.maintenance.verify_loops.compiled")
    program = "from penstock.maintenance.verify_loops import chain, check; print(check.__module__)"
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PENSTOCK_PURE": setting},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip().rpartition(".")[2] == module
