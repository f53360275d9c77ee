"""The compiled loops keep nothing when they return: no buffer, which its owner could no longer
resize or unmap, and no memory, which a process that runs for months would not get back."""

from __future__ import annotations

import gc
import tracemalloc
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from penstock.shared.formats.message_id import KeyOrigin
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.formats.record_crc import Checksum, body_crc
from penstock.shared.formats.record_layout import Shape
from penstock.shared.loops.forms import PlainRules, Rows, Stamp, rows_of

native = pytest.importorskip("penstock.shared.loops.compiled", reason="was not built")

HOST = pack_host("10.1.2.3", 54321)
COUNT = 100
BODY, KEY = b"body", b"UNIQ_KEY\x010A\x02"
RECORD = encode_record(Record("orders", BODY, KEY))
SIZE = len(RECORD)
STARTS = list(range(0, SIZE * COUNT + 1, SIZE))
ENTRIES = rows_of(0, 0, b"".join(ENTRY.pack(at, SIZE, 0) for at in STARTS[:-1]))
ITEM = (
    *((16 + 4 + 4 + 2).to_bytes(4, "big"), bytes(12)),
    *((4).to_bytes(4, "big"), BODY, (0).to_bytes(2, "big")),
)


def log() -> bytearray:
    """Records that name their places."""
    raw = bytearray(RECORD * COUNT)
    for at in STARTS[:-1]:
        raw[at + 28 : at + 36] = at.to_bytes(8, "big")
    return raw


def words(*numbers: int) -> array[int]:
    return array("q", numbers)


# Each does some work, and returns what it was given that could grow.
Work = Callable[[], tuple[Any, ...]]


def check() -> tuple[Any, ...]:
    frame = bytearray(RECORD * COUNT)
    starts = native.check_frame(frame, [(b"orders", 0, COUNT)], 1 << 20)
    native.check_properties(frame, starts, False)
    target = bytearray(len(frame))
    native.put_stamped(target, frame, starts, [0] * COUNT, 0, Stamp(1, HOST))
    return frame, target


def walk() -> tuple[Any, ...]:
    raw, numbers = log(), native.QueueNumbers()
    assert native.dispatch(raw, 0, numbers, (), True).records == COUNT
    for checksum in Checksum:
        native.record_starts(raw, 0, checksum)
    native.crc32(raw)
    native.touch_pages(raw)
    return (raw,)


def queues() -> tuple[Any, ...]:
    windows, area, ends = words(0, COUNT, 0), bytearray(20 * COUNT), words(0)
    assert native.put_entries(ENTRIES, windows, area) == b""
    native.move_ends(ENTRIES, ends, 1)
    numbers = native.QueueNumbers([(b"orders", number) for number in (*range(1000), 1 << 30)])
    native.by_queue(ENTRIES, numbers)
    return windows, area, ends


def index() -> tuple[Any, ...]:
    slots = bytearray(4 * COUNT)
    entries = [words(*range(COUNT)) for _ in range(3)]
    native.link_entries(slots, *entries, 1, 0)
    native.move_slots(slots, entries[0], 1)
    return slots, *entries


def refused_index() -> tuple[Any, ...]:
    slots, hashes = bytearray(4), words(1, 2)
    short = words(1)
    for places, times in ((short, hashes), (hashes, short)):
        with pytest.raises(ValueError, match="each entry"):
            native.link_entries(slots, hashes, places, times, 1, 0)
    with pytest.raises(ValueError, match="slots"):
        native.move_slots(slots, hashes, 0)
    return slots, hashes, short


def pack() -> tuple[Any, ...]:
    maker = native.RecordMaker(HOST, KeyOrigin("0A" * 10, 0), Shape())
    into = bytearray(1 << 16)
    maker.pack(into, [(b"\x06orders", 0, [BODY] * COUNT, words(*range(COUNT)))])
    ends = array("i", range(0, 4 * COUNT + 1, 4))
    none = array("i", [0] * (COUNT + 1))
    rows = Rows(
        [b"\x06orders"],
        array("i", [0] * COUNT),
        array("i", [0] * COUNT),
        words(*range(COUNT)),
        *(ends, bytearray(BODY * COUNT), none, b""),
    )
    order = words(*range(COUNT))
    maker.pack_rows(into, rows, order)
    native.join_properties([(b"TAGS", ends, rows.bodies)])
    return into, order, ends, none, rows.bodies


def refused_pack() -> tuple[Any, ...]:
    maker = native.RecordMaker(HOST, KeyOrigin("0A" * 10, 0), Shape())
    into = bytearray(10)
    with pytest.raises(ValueError, match="a record of"):
        maker.pack(into, [(b"\x06orders", 0, [BODY] * COUNT, words(*range(COUNT)))])
    return (into,)


def columns() -> tuple[Any, ...]:
    raw = bytearray(KEY * COUNT)
    at = words(*range(0, len(raw), len(KEY)))
    sizes, crcs = words(*[len(KEY)] * COUNT), words(*[body_crc(KEY)] * COUNT)
    target = bytearray(len(raw))
    assert native.copy_bodies(raw, at, sizes, crcs, target) == -1
    native.cut_properties(raw, at, sizes, (b"KEYS",))
    return raw, at, sizes, crcs, target


def fields() -> tuple[Any, ...]:
    raw, into = log(), words(*[0] * 8 * COUNT)
    starts, sizes = words(*STARTS[:-1]), words(*[SIZE] * COUNT)
    named = starts, sizes, starts, words(*[0] * COUNT), words(0)
    topics, ends = bytearray(b"orders"), words(6)
    assert native.record_fields(raw, named, topics, ends, into) == -1
    return raw, into, *named, topics, ends


def listing() -> tuple[Any, ...]:
    raw = log()
    assert native.json_lines(raw, 0, True, False)[1] == len(raw)
    native.cells(raw, 0, True, str)
    return (raw,)


def answers() -> tuple[Any, ...]:
    raw = log()
    native.bodies(raw, (0, len(raw)), None, (0, 1), 1 << 20, b"KEYS")
    native.part_starts(raw, (0, len(raw)), None, (0, 1), b"KEYS")
    entries = b"".join(ENTRY.pack(at, SIZE, 0) for at in STARTS[:-1])
    found = native.log_ranges(entries, 1 << 20, 1 << 30)
    native.gather([(raw, 0, found.ranges)])
    return (raw,)


def batches() -> tuple[Any, ...]:
    assert native.batch_records(b"".join(ITEM) * COUNT, encode_record(Record("orders", b"")), False)
    frame = native.ClientFrame(PlainRules(b"", False, 1 << 20))
    data = bytearray(10)
    assert frame.take(data, 0, "x", HOST, {}, 9) == 0
    for by in range(COUNT):
        assert frame.put(f"x{by}", "orders", by, RECORD, [SIZE], True)
    frame.pack()
    frame.parts()
    frame.answers((b"<",) * 6, b"A", [(0, 0, 0)])
    return (data,)


def locks() -> tuple[Any, ...]:
    held = [native.SendLock() for _ in range(COUNT)]
    for lock in held[::2]:
        lock.acquire()
    return ()


WORK = [
    *(check, walk, queues, index, refused_index, pack, refused_pack),
    *(columns, fields, listing, answers, batches, locks),
]


@pytest.mark.parametrize("work", WORK)
def test_what_a_loop_was_given_can_grow_afterwards(work: Work) -> None:
    for each in work():
        # a buffer that somebody holds raises BufferError
        each.extend(each[:1])


@pytest.mark.parametrize("work", WORK)
def test_a_loop_gives_back_the_memory_it_takes(work: Work) -> None:
    work()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            work()
        gc.collect()
        more = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert more < 20 * 400, "the smallest of what is taken for this many messages is larger"
