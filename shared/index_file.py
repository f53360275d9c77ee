"""One hash index file: where is the message with this key? Pure functions on buffers.

    off            field                  type
      0            begin timestamp ms     i64   store time of item 1's record
      8            end timestamp ms       i64   store time of the last item's record
     16            begin offset           i64   log offset of item 1's record
     24            end offset             i64   log offset of the last item's record
     32            slots in use           i32   counts puts that found their slot empty
     36            next item              i32   starts at 1: item 0 is never used
     40            slots                  i32 each: the slot's newest item, 0 for none
     40 + 4*slots  items                  20 bytes each:
                     +0  hash             i32   of `topic#key`, never negative
                     +4  offset           i64   of the record in the log
                    +12  seconds          i32   store time, from the begin timestamp on
                    +16  previous         i32   the next older item of the slot, 0 for none

How many slots and items a file has is configuration and stands nowhere in it. A put is the items,
then the slots, then the header: items are only ever appended, so slots and counts follow from them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.shared.string_hash import string_hashes

HEADER = struct.Struct(">qqqqii")
ITEM = struct.Struct(">iqii")
ITEM_DTYPE = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
SLOT_DTYPE = np.dtype(">i4")
SLOT_BYTES = SLOT_DTYPE.itemsize

assert ITEM.size == ITEM_DTYPE.itemsize == 20 and HEADER.size == 40, "sizes as drawn above"

Ints = npt.NDArray[np.int64]


class Geometry(NamedTuple):
    """RocketMQ's maxHashSlotNum and maxIndexNum."""

    slots: int
    items: int

    @property
    def table_bytes(self) -> int:
        """Header and slots."""
        return HEADER.size + SLOT_BYTES * self.slots

    @property
    def file_bytes(self) -> int:
        return self.table_bytes + ITEM.size * self.items

    def item_at(self, number: int) -> int:
        """Where an item stands in its file."""
        return self.table_bytes + ITEM.size * number


class IndexHeader(msgspec.Struct, frozen=True):
    """The header's words; all zero, and 1 as the next item, in the first file of a store."""

    begin_timestamp_ms: int = 0
    end_timestamp_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slots_in_use: int = 0
    next_item: int = 1

    def encode(self) -> bytes:
        return HEADER.pack(
            self.begin_timestamp_ms,
            self.end_timestamp_ms,
            self.begin_offset,
            self.end_offset,
            self.slots_in_use,
            self.next_item,
        )

    def successor(self) -> IndexHeader:
        """What the next file begins with: its begin is this one's end until item 1 replaces it."""
        end_ms, end = self.end_timestamp_ms, self.end_offset
        return IndexHeader(end_ms, end_ms, end, end)


def decode_header(raw: bytes | memoryview) -> IndexHeader:
    """The words of a header. A file that has just been made counts from 1 as well."""
    begin_ms, end_ms, begin, end, in_use, next_item = HEADER.unpack_from(raw)
    return IndexHeader(begin_ms, end_ms, begin, end, in_use, max(next_item, 1))


class Entries(NamedTuple):
    """What goes into the index, a row for each key, in log order."""

    hashes: Ints
    offsets: Ints
    stored_ms: Ints

    def part(self, start: int, stop: int | None = None) -> Entries:
        rows = slice(start, stop)
        return Entries(self.hashes[rows], self.offsets[rows], self.stored_ms[rows])


class KeyBatch:
    """Gathers the keys of records, to be hashed all at once."""

    def __init__(self) -> None:
        self._texts: list[bytes] = []
        self._offsets: list[int] = []
        self._stored_ms: list[int] = []

    def __len__(self) -> int:
        return len(self._texts)

    def add(
        self, topic: bytes, unique_key: bytes, keys: bytes, offset: int, stored_ms: int
    ) -> None:
        """The next record. Empty bytes are no keys."""
        if keys or not unique_key:
            texts = index_keys(topic, unique_key, keys)
            self._texts += texts
            self._offsets += [offset] * len(texts)
            self._stored_ms += [stored_ms] * len(texts)
        else:  # the usual record, for which a list would be dear
            self._texts.append(topic + b"#" + unique_key)
            self._offsets.append(offset)
            self._stored_ms.append(stored_ms)

    def entries(self) -> Entries:
        return Entries(
            key_hashes(self._texts),
            np.array(self._offsets, np.int64),
            np.array(self._stored_ms, np.int64),
        )


class Put(NamedTuple):
    """What a put of some entries changes in a file, in the order in which it is to be written."""

    items: npt.NDArray[np.void]
    slots: Ints
    newest: Ints  # the numbers for these slots
    header: IndexHeader


def index_keys(topic: bytes, unique_key: bytes, keys: bytes) -> list[bytes]:
    """The texts that a record is found by: its unique key, then each word of its keys."""
    found = [topic + b"#" + unique_key] if unique_key else []
    if keys:
        found += [topic + b"#" + key for key in keys.split(b" ") if key]
    return found


def key_hashes(texts: Sequence[bytes]) -> Ints:
    """The hashes of `topic#key` texts as items hold them: not negative."""
    codes = np.abs(string_hashes(texts).astype(np.int64))
    codes[codes > 0x7FFFFFFF] = 0  # Java's abs(-2**31) stays negative
    return codes


def put(
    header: IndexHeader, slots: npt.NDArray[np.signedinteger], geometry: Geometry, new: Entries
) -> Put:
    """Link entries into a file that has room for them all; nothing is written.

    The result is that of RocketMQ's one put after the other. `slots` are all slots of the file.
    """
    count, first = len(new.hashes), header.next_item
    numbers = np.arange(first, first + count)
    targets = new.hashes % geometry.slots
    # equal slots side by side, each in the order of its items
    order = np.sort(targets << 32 | np.arange(count)) & 0xFFFFFFFF
    ordered = targets[order]
    is_first = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    before = np.empty(count, np.int64)
    before[1:] = numbers[order[:-1]]
    found = slots[ordered[is_first]].astype(np.int64)
    # what is no item of the file counts as an empty slot
    found[(found < 0) | (found > numbers[order[is_first]])] = 0
    before[is_first] = found

    items = np.zeros(count, ITEM_DTYPE)
    items["hash"], items["offset"] = new.hashes, new.offsets
    items["previous"][order] = before
    begin_ms = int(new.stored_ms[0]) if first == 1 else header.begin_timestamp_ms
    items["seconds"] = _seconds(new.stored_ms, begin_ms)
    if first == 1:  # item 1 still counts from what the file began with
        items["seconds"][0] = _seconds(new.stored_ms[:1], header.begin_timestamp_ms)[0]
    is_last = np.concatenate((is_first[1:], [True]))
    return Put(
        items,
        ordered[is_last],
        numbers[order[is_last]],
        IndexHeader(
            begin_ms,
            int(new.stored_ms[-1]),
            int(new.offsets[0]) if first == 1 else header.begin_offset,
            int(new.offsets[-1]),
            header.slots_in_use + int(np.count_nonzero(items["previous"] == 0)),
            first + count,
        ),
    )


def _seconds(stored_ms: Ints, begin_ms: int) -> Ints:
    if begin_ms <= 0:
        return np.zeros(len(stored_ms), np.int64)
    return np.clip((stored_ms - begin_ms) // 1000, 0, 0x7FFFFFFF)
