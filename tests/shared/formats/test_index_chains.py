"""The index file's codec against the golden vectors, and against one put after the other."""

from __future__ import annotations

import struct
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.formats import index_chains
from penstock.shared.formats.index_chains import (
    SLOT_DTYPE,
    Entries,
    KeyBatch,
    counted,
    index_keys,
    key_hashes,
)
from penstock.shared.formats.index_layout import Geometry, IndexHeader, decode_header
from penstock.shared.loops import active

FORMS = [index_chains] if active.why_pure else [active, index_chains]

ST = 1700000001456
GOLDEN = """
    0000018bcfe56db0 0000018bcfe55a28 0000000000000000 000000000000019a 00000003 00000005
    00000004 00000000 00000000 00000000 00000000 00000000 00000000 00000002 00000003 00000000
    0000000000000000000000000000000000000000
    1749f87c 0000000000000000 00000000 00000000
    1749f87b 00000000000000af 00000001 00000000
    1749f87c 0000000000000123 00000002 00000001
    00000000 000000000000019a 00000000 00000000
    """


class Model:
    """RocketMQ's put, one key at a time, on the bytes of one file."""

    def __init__(self, geometry: Geometry, before: Model | None = None) -> None:
        self.geometry = geometry
        self.raw = bytearray(geometry.file_bytes)
        self.begin_ms = self.end_ms = before.end_ms if before else 0
        self.begin = self.end = before.end if before else 0
        self.in_use, self.next = 0, 1

    @property
    def is_full(self) -> bool:
        return self.next >= self.geometry.items

    def put(self, code: int, offset: int, stored_ms: int) -> None:
        at = 40 + 4 * (code % self.geometry.slots)
        (previous,) = struct.unpack_from(">i", self.raw, at)
        if previous <= 0 or previous > self.next:
            previous = 0
        seconds = int((stored_ms - self.begin_ms) / 1000)
        seconds = 0 if self.begin_ms <= 0 or seconds < 0 else min(seconds, 2**31 - 1)
        item = 40 + 4 * self.geometry.slots + 20 * self.next
        struct.pack_into(">iqii", self.raw, item, code, offset, seconds, previous)
        struct.pack_into(">i", self.raw, at, self.next)
        if self.next <= 1:
            self.begin, self.begin_ms = offset, stored_ms
        self.in_use += previous == 0
        self.next += 1
        self.end, self.end_ms = offset, stored_ms
        words = (self.begin_ms, self.end_ms, self.begin, self.end, self.in_use, self.next)
        struct.pack_into(">qqqqii", self.raw, 0, *words)


class File:
    """A file of the codec's, in memory."""

    def __init__(self, form: ModuleType, geometry: Geometry, header: IndexHeader) -> None:
        self.form = form
        self.raw = bytearray(geometry.file_bytes)
        self.geometry = geometry
        self.header = header

    def put(self, new: Entries) -> None:
        slots = np.frombuffer(self.raw, SLOT_DTYPE, self.geometry.slots, 40)
        first, begin_ms = self.header.next_item, self.header.begin_timestamp_ms
        before = bytes(self.raw)
        items, empty = self.form.link_entries(slots, *new, first, begin_ms)
        assert self.raw == before, "an item is written before a slot leads to it"
        at = self.geometry.item_at(first)
        self.raw[at : at + len(items)] = items
        self.form.move_slots(slots, new.hashes, first)
        del slots
        self.header = counted(self.header, new, empty)
        self.raw[:40] = self.header.encode()


def _entries(rows: list[tuple[int, int, int]]) -> Entries:
    return Entries(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))


@pytest.mark.parametrize("form", FORMS)
def test_the_golden_file_is_written_byte_for_byte(form: ModuleType) -> None:
    batch = KeyBatch()
    for key, offset, stored_ms in (
        (b"k1", 0, ST),
        (b"k2", 175, ST + 1500),
        (b"k1", 291, ST + 2600),
        (b"Engnocb", 410, ST - 5000),
    ):
        batch.add(b"orders", key, b"", offset, stored_ms)
    file = File(form, Geometry(10, 8), IndexHeader())
    file.put(batch.entries())
    golden = bytes.fromhex(GOLDEN)
    assert file.raw == golden.ljust(40 + 40 + 160, b"\0")
    assert decode_header(file.raw) == file.header


def test_hashes_are_those_of_the_golden_table() -> None:
    texts = [b"orders#k1", b"orders#kk", b"orders#Engnocb"]
    assert key_hashes(texts).tolist() == [390723708, 390723650, 0]


def test_the_unique_key_comes_first_and_keys_are_split_on_single_spaces() -> None:
    assert index_keys(b"t", b"u", b" k1 k2  k3 k1 ") == [
        *(b"t#u", b"t#k1", b"t#k2", b"t#k3", b"t#k1")
    ]
    assert index_keys(b"t", b"", b"") == []


codes = st.integers(0, 12) | st.sampled_from([0, 2**31 - 1]) | st.integers(0, 2**31 - 1)
times = st.integers(ST - 5000, ST + 9000) | st.sampled_from([0, -1, 2**62, -(2**62)])
rows = st.lists(st.tuples(codes, st.integers(0, 2**40), times), min_size=1, max_size=40)


@pytest.mark.parametrize("form", FORMS)
@given(
    puts=rows,
    slots=st.integers(1, 9),
    items=st.integers(2, 60),
    sizes=st.lists(st.integers(1, 40), min_size=1),
)
def test_batches_make_the_same_files_as_one_put_after_the_other(
    form: ModuleType,
    puts: list[tuple[int, int, int]],
    slots: int,
    items: int,
    sizes: list[int],
) -> None:
    geometry = Geometry(slots, items)
    model, file = Model(geometry), File(form, geometry, IndexHeader())
    done = 0
    for size in sizes * len(puts):
        if model.is_full:
            model = Model(geometry, before=model)
            file = File(form, geometry, file.header.successor())
        count = min(size, items - file.header.next_item)
        part = puts[done : done + count]
        if not part:
            break
        for row in part:
            model.put(*row)
        file.put(_entries(part))
        done += len(part)
        assert file.raw == model.raw


@pytest.mark.parametrize("form", FORMS)
@given(puts=rows, nonsense=st.lists(st.integers(-3, 60), min_size=5, max_size=5))
def test_slots_that_hold_nonsense_count_as_empty_where_rocketmq_says_so(
    form: ModuleType, puts: list[tuple[int, int, int]], nonsense: list[int]
) -> None:
    geometry = Geometry(5, 50)
    model, file = Model(geometry), File(form, geometry, IndexHeader())
    for made in (model, file):
        struct.pack_into(">5i", made.raw, 40, *nonsense)
    for row in puts:
        model.put(*row)
    file.put(_entries(puts))
    assert file.raw == model.raw


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("begin", "seconds"), [(0, 0), (ST - 4500, 4), (ST + 4500, 0)])
def test_item_1_counts_its_seconds_from_what_the_file_began_with(
    form: ModuleType, begin: int, seconds: int
) -> None:
    file = File(form, Geometry(5, 9), IndexHeader(begin, begin, 7, 7))
    file.put(_entries([(1, 100, ST), (2, 200, ST + 1000)]))
    at = file.geometry.item_at(1)
    assert struct.unpack_from(">iqiiiqii", file.raw, at) == (1, 100, seconds, 0, 2, 200, 1, 0)
    assert file.header.begin_timestamp_ms == ST and file.header.begin_offset == 100


@pytest.mark.parametrize("form", FORMS)
def test_many_entries_of_many_slots_are_those_of_one_put_after_the_other(form: ModuleType) -> None:
    """As many as a turn of the reput has, more than a small table's places."""
    geometry = Geometry(997, 6000)
    model, file = Model(geometry), File(form, geometry, IndexHeader())
    codes = np.random.default_rng(5).integers(0, 2**31 - 1, 5000).tolist()
    puts = [(code, 300 * number, ST + 7 * number) for number, code in enumerate(codes)]
    for row in puts:
        model.put(*row)
    for start, stop in ((0, 1), (1, 1200), (1200, 5000)):
        file.put(_entries(puts[start:stop]))
    assert file.raw == model.raw


@pytest.mark.skipif(bool(active.why_pure), reason="the loops are not compiled")
@pytest.mark.parametrize(("slots", "first"), [(0, 1), (5, 0), (5, -1), (5, 2**31 - 3)])
def test_compiled_loops_store_nothing_where_no_slot_or_no_number_is_left(
    slots: int, first: int
) -> None:
    held, new = np.zeros(slots, SLOT_DTYPE), _entries([(1, 0, ST), (2, 9, ST), (3, 9, ST)])
    with pytest.raises(ValueError, match="numbers its items"):
        active.link_entries(held, *new, first, ST)
    with pytest.raises(ValueError, match="numbers its items"):
        active.move_slots(held, new.hashes, first)
    with pytest.raises(ValueError, match="a hash, an offset and a time"):
        active.link_entries(np.zeros(5, SLOT_DTYPE), new.hashes, new.offsets[1:], *new[2:], 1, 1)
    with pytest.raises((ValueError, BufferError)):
        held.flags.writeable = False
        active.move_slots(held, new.hashes, 1)
    assert not held.any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("held", "follows"),
    [(0, 0), (1, 1), (6, 6), (7, 7), (8, 0), (2**31 - 1, 0), (-1, 0), (-(2**31), 0)],
)
def test_an_item_follows_what_its_slot_holds_unless_that_is_no_item_so_far(
    form: ModuleType, held: int, follows: int
) -> None:
    """Item 7, which may have been put before a crash: its slot then names the item itself."""
    slots = np.array([9, held, 9], SLOT_DTYPE)
    items, empty = form.link_entries(slots, *_entries([(4, 300, ST)]), 7, ST)
    assert struct.unpack(">iqii", items) == (4, 300, 0, follows)
    assert empty == (follows == 0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("begin_ms", "stored_ms", "seconds"),
    [(0, 5000, 0), (1, 5000, 4), (1, 5001, 5), (-1, 5000, 0), (ST, ST, 0), (ST, ST - 1, 0)]
    + [(1, (2**31 - 1) * 1000 + 1, 2**31 - 1), (1, 2**31 * 1000 + 1, 2**31 - 1)],
)
def test_an_item_has_the_whole_seconds_since_its_file_began(
    form: ModuleType, begin_ms: int, stored_ms: int, seconds: int
) -> None:
    items, _ = form.link_entries(
        np.zeros(3, SLOT_DTYPE), *_entries([(4, 300, stored_ms)]), 2, begin_ms
    )
    assert struct.unpack(">iqii", items)[2] == seconds


@pytest.mark.skipif(bool(active.why_pure), reason="the loops are not compiled")
def test_the_last_number_of_a_file_is_given_and_none_past_it() -> None:
    held, new = np.zeros(5, SLOT_DTYPE), _entries([(1, 0, ST), (1, 9, ST)])
    active.move_slots(held, new.hashes, 2**31 - 3)
    assert held.tolist() == [0, 2**31 - 2, 0, 0, 0]
    with pytest.raises(ValueError, match="numbers its items"):
        active.move_slots(held, new.hashes, 2**31 - 2)


@pytest.mark.parametrize("form", FORMS)
def test_however_slots_fall_together_each_item_follows_the_one_before_in_its_slot(
    form: ModuleType,
) -> None:
    """Eight at once share a table of 16 places, which neighbours and its end share."""
    dice = np.random.default_rng(11)
    for _ in range(400):
        codes = dice.choice(dice.integers(0, 4096, 5), 8)
        rows = [(int(code), 300, ST) for code in codes]
        items, _ = form.link_entries(np.zeros(4096, SLOT_DTYPE), *_entries(rows), 1, 0)
        last: dict[int, int] = {}
        for number, code in enumerate(codes.tolist(), 1):
            assert struct.unpack_from(">i", items, 20 * number - 4) == (last.get(code, 0),)
            last[code] = number
