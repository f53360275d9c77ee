"""The checksum of whole records: RocketMQ's bytes, and no changed bit goes unseen."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.maintenance.verify.check import verify_store
from penstock.shared.errors import StoreDamaged
from penstock.shared.formats.properties import decode_properties, encode_properties
from penstock.shared.formats.record import Record, decode_record, encode_record, pack_host
from penstock.shared.formats.record_check import NO_RECORD_CRC, Kind, examine
from penstock.shared.formats.record_crc import (
    PROP_CRC_BYTES,
    PROP_CRC_ROOM,
    Checksum,
    complete_prop_crc,
    has_prop_crc,
    prop_crc_holds,
    with_prop_crc_room,
)
from penstock.shared.formats.record_layout import AT_BODY_V4, AT_QUEUE_OFFSET, Shape
from penstock.shared.layout import segment_name
from penstock.shared.loops.active import check_frame, put_stamped
from penstock.shared.loops.forms import Stamp
from penstock.shared.store.directory import StoreDirectory

RecordMaker = Callable[..., Record]
GOLDEN_E = bytes.fromhex(
    "0000008adaa320a70d4a1185000000030000000000000000000000000000000000000000000000000000018bcfe5687b"
    "0a0102030000d4310000018bcfe56db0c0a8070900002a9f0000000000000000000000000000000b68656c6c6f20776f"
    "726c64066f7264657273001e54414753015461674102"
    "5f5f43524333322301"
    "3230383430393637313102"
)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=9)
properties = st.dictionaries(texts | st.just("__CRC32#"), texts, max_size=3).map(encode_properties)
hosts = st.sampled_from([pack_host("10.1.2.3", 54321), pack_host("2001:db8::1", 9)])


def with_room(record: Record) -> bytes:
    raw = with_prop_crc_room(record.properties, True)
    return encode_record(msgspec.structs.replace(record, properties=raw))


def stamped(frame: bytes, starts: list[int], position: int, stamp: Stamp) -> bytearray:
    target = bytearray(len(frame))
    put_stamped(target, frame, starts, [0], position, stamp)
    return target


def test_a_stamped_record_is_the_golden_one(make_record: RecordMaker) -> None:
    """store-format, 17.5: the least significant digit comes first."""
    record = make_record(queue_id=3, properties=b"TAGS\x01TagA\x02", store_host=bytes(8))
    stamp = Stamp(1700000001456, pack_host("192.168.7.9", 10911), True)
    frame = stamped(with_room(record), [0, 138], 0, stamp)
    assert bytes(frame) == GOLDEN_E
    assert decode_properties(decode_record(frame).properties)["__CRC32#"] == "2084096711"
    assert examine(GOLDEN_E, 0, 138, position=0, checksum=Checksum.RECORD)[0] is Kind.RECORD


def test_digits_of_a_small_checksum_are_filled_up_on_the_right(make_record: RecordMaker) -> None:
    for number in range(10_000):
        raw = with_room(make_record(flag=number))
        frame = stamped(raw, [0, len(raw)], 0, Stamp(1, bytes(8), True))
        digits = bytes(frame[-11:-1])
        if digits.endswith(b"0"):
            assert prop_crc_holds(frame, 0, len(frame))
            return
    raise AssertionError("one in four has a leading zero")


@given(properties, st.binary(max_size=40), hosts, hosts, st.data())
def test_a_changed_bit_anywhere_is_seen(
    found: bytes, body: bytes, born: bytes, host: bytes, data: st.DataObject
) -> None:
    record = Record("orders", body, found, queue_id=3, born_host=born, store_host=bytes(len(host)))
    raw = with_room(record)
    shape = Shape(len(host), True)
    starts = check_frame(raw, [(b"orders", 3, 1)], 1 << 20, shape=shape)
    frame = stamped(raw, starts, 4096, Stamp(1700000001456, host, True))
    assert examine(frame, 0, len(frame), position=4096, checksum=Checksum.RECORD) == (
        Kind.RECORD,
        len(frame),
        "",
    )
    assert decode_record(frame).store_host == host
    bit = data.draw(st.integers(0, len(frame) * 8 - 1))
    frame[bit // 8] ^= 1 << bit % 8
    assert examine(frame, 0, len(frame), checksum=Checksum.RECORD)[0] is not Kind.RECORD


@given(properties, st.booleans())
def test_the_room_replaces_a_checksum_that_came_along(found: bytes, cut: bool) -> None:
    """Whether or not the last separator is there: some versions of RocketMQ leave it out."""
    raw = found[:-1] if cut else found
    kept = {k: v for k, v in decode_properties(raw).items() if k != "__CRC32#"}
    with_it = with_prop_crc_room(raw, True)
    assert with_it.endswith(PROP_CRC_ROOM)
    assert decode_properties(with_it[:-PROP_CRC_BYTES]) == kept
    assert decode_properties(with_prop_crc_room(raw, False)) == kept
    assert with_prop_crc_room(with_it, True) == with_it


def test_a_record_without_a_checksum_says_so_and_a_torn_one_does_not(
    make_record: RecordMaker,
) -> None:
    whole = encode_record(make_record(properties=b"TAGS\x01TagA\x02"))
    found, _, reason = examine(whole, 0, len(whole), checksum=Checksum.RECORD)
    assert (found, reason) == (Kind.DAMAGED, NO_RECORD_CRC)
    torn = GOLDEN_E[:-5] + bytes(5)
    found, _, reason = examine(torn, 0, len(torn), checksum=Checksum.RECORD)
    assert (found, reason) == (Kind.DAMAGED, "record CRC differs")


def test_a_store_is_verified_by_the_checksum_that_is_asked_for(
    store_builder: Callable[..., Path], make_record: RecordMaker
) -> None:
    root = store_builder([make_record(body=bytes([i])) for i in range(30)])
    assert verify_store(root).ok
    report = verify_store(root, checksum=Checksum.RECORD)
    (problem,) = report.problems
    assert (problem.kind, report.messages, report.log_damaged) == (
        "record-checksum-missing",
        30,
        False,
    )
    assert (problem.file, problem.offset) == (str(root / "commitlog"), 0)
    assert problem.detail.startswith("30 of 30 records have no checksum of their own")


@pytest.fixture
def written_with_both(store_builder: Callable[..., Path], make_record: RecordMaker) -> Path:
    """Of 20 records, which are one segment, every second one has no checksum of its own."""
    forms = [with_prop_crc_room(b"who\x01somebody\x02", number % 2 > 0) for number in range(20)]
    root = store_builder([make_record(properties=each) for each in forms])
    segment = root / "commitlog" / segment_name(0)
    log = bytearray(segment.read_bytes())
    with StoreDirectory(root) as store:
        for at, found, size, *_ in store.scan_log():
            if found is Kind.RECORD and has_prop_crc(log, at + size):
                complete_prop_crc(log, at, at + size)
    segment.write_bytes(log)
    return root


def test_a_check_compares_bodies_and_the_checksums_that_records_have(
    written_with_both: Path,
) -> None:
    """A flipped bit of a body is seen everywhere; one of a property where a checksum covers it."""
    assert verify_store(written_with_both).ok
    segment = written_with_both / "commitlog" / segment_name(0)
    sound = segment.read_bytes()
    with StoreDirectory(written_with_both) as store:
        places = [(at, bytes(record)) for at, _, _, record, _ in store.scan_log() if record]
    for number, (position, record) in enumerate(places):
        for inside, seen in ((AT_BODY_V4, True), (record.index(b"somebody"), number % 2 > 0)):
            at = position + inside
            segment.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
            report = verify_store(written_with_both)
            assert (report.ok, report.log_damaged) == (not seen, seen), (number, inside)
            assert report.messages == 20 - seen
            body = verify_store(written_with_both, checksum=Checksum.BODY)
            assert body.log_damaged == (inside == AT_BODY_V4)


@given(kinds=st.lists(st.sampled_from(["with", "without", "torn", "broken"]), max_size=40))
def test_of_records_with_and_without_a_checksum_each_is_held_to_what_it_has(
    make_record: RecordMaker, kinds: list[str]
) -> None:
    log, damaged, without = bytearray(), 0, 0
    for kind in kinds:
        properties = with_prop_crc_room(b"TAGS\x01T\x02", kind in ("with", "broken"))
        record = make_record(properties=properties, physical_offset=len(log))
        raw = bytearray(encode_record(record))
        if kind in ("with", "broken"):
            complete_prop_crc(raw, 0, len(raw))
        if kind == "torn":
            raw[-4:] = bytes(4)
        elif kind == "broken":
            raw[AT_QUEUE_OFFSET + 7] ^= 1  # which the body's checksum does not cover
        damaged += kind in ("torn", "broken")
        without += kind == "without"
        log += raw
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place, "store", "commitlog")
        directory.mkdir(parents=True)
        (directory / segment_name(0)).write_bytes(log + bytes(64 << 10))
        with StoreDirectory(directory.parent) as store:
            steps = list(store.scan_log(checksum=Checksum.RECORD))
    reasons = [reason for _, found, _, _, reason in steps if found is Kind.RECORD]
    assert len(reasons) == sum(kind in ("with", "without") for kind in kinds)
    assert reasons.count(NO_RECORD_CRC) == without
    assert sum(found is Kind.DAMAGED for _, found, _, _, _ in steps) == damaged


@pytest.mark.parametrize("unclean", [True, False])
def test_a_start_that_asks_for_checksums_of_a_store_without_cuts_nothing(
    stopped_store: Callable[..., Any], make_record: RecordMaker, unclean: bool
) -> None:
    """RocketMQ cuts off the whole log."""
    stopped = stopped_store([make_record() for _ in range(3)], unclean=unclean, queues=not unclean)
    before = stopped.contents()
    strict = msgspec.structs.replace(stopped.config, force_verify_prop_crc=True)
    with pytest.raises(StoreDamaged, match="force_verify_prop_crc"):
        stopped._replace(config=strict).recover()
    assert stopped.contents() == before
    lenient = msgspec.structs.replace(strict, check_crc_on_recover=False)
    assert stopped._replace(config=lenient).recover().log_end == 3 * 108
