"""One hash index file: where is the message with this key? Pure functions on arrays.

The layout is drawn in index_layout.py. RocketMQ puts keys one by one; here a batch of them is
linked at once, and tests compare the bytes with those of single puts. A put writes the items, then
the slots, then the header: a reader may follow a chain meanwhile, so an item is complete before a
slot leads to it. A crash before the header leaves items that do not count, and when the put is
repeated the same items go to the same places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.shared.formats.index_layout import ITEM, SLOT_BYTES, IndexHeader
from penstock.shared.formats.java_hash import string_hashes

# Big-endian as on disk, so that arrays of these are the file's bytes.
ITEM_DTYPE = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
SLOT_DTYPE = np.dtype(">i4")

assert ITEM.size == ITEM_DTYPE.itemsize and SLOT_DTYPE.itemsize == SLOT_BYTES

Ints = npt.NDArray[np.int64]
Slots = npt.NDArray[np.signedinteger]

_MAX_INT = 0x7FFFFFFF


class Entries(NamedTuple):
    """What goes into the index, a row for each key, in log order.

    `hashes` are made by `key_hashes`, `offsets` are of records in the log, store times are in ms;
    each array is contiguous. A record with several keys has as many rows, next to each other.
    """

    hashes: Ints
    offsets: Ints
    stored_ms: Ints

    def part(self, start: int, stop: int | None = None) -> Entries:
        """Some of the rows, as views: for a batch that does not fit into the current file."""
        rows = slice(start, stop)
        return Entries(self.hashes[rows], self.offsets[rows], self.stored_ms[rows])


class KeyBatch:
    """Collects the keys of records, to hash them all at once.

    Records come in log order. A key that comes twice makes two rows: RocketMQ does not merge them
    either, and merged files would differ from its own.
    """

    def __init__(self) -> None:
        self._texts: list[bytes] = []
        self._offsets: list[int] = []
        self._stored_ms: list[int] = []

    def __len__(self) -> int:
        """The number of keys collected, and so of the items they will take."""
        return len(self._texts)

    def add(
        self, topic: bytes, unique_key: bytes, keys: bytes, offset: int, stored_ms: int
    ) -> None:
        """Add the next record. Empty bytes mean that there is no key."""
        if keys or not unique_key:
            texts = index_keys(topic, unique_key, keys)
            self._texts += texts
            self._offsets += [offset] * len(texts)
            self._stored_ms += [stored_ms] * len(texts)
        else:  # the usual record; index_keys() would make a list for each
            self._texts.append(topic + b"#" + unique_key)
            self._offsets.append(offset)
            self._stored_ms.append(stored_ms)

    def entries(self) -> Entries:
        """All that was collected. The batch keeps it: make a new one for what follows."""
        return Entries(
            key_hashes(self._texts),
            np.array(self._offsets, np.int64),
            np.array(self._stored_ms, np.int64),
        )


def index_keys(topic: bytes, unique_key: bytes, keys: bytes) -> list[bytes]:
    """The texts that a record is found by: its unique key, then each word of its keys."""
    found = [topic + b"#" + unique_key] if unique_key else []
    if keys:
        found += [topic + b"#" + key for key in keys.split(b" ") if key]
    return found


def key_hashes(texts: Sequence[bytes]) -> Ints:
    """The hashes of `topic#key` texts as items have them: not negative.

    Different texts may have the same hash, and no text is stored, so a query reads the record.
    """
    codes = np.abs(string_hashes(texts).astype(np.int64))
    codes[codes > _MAX_INT] = 0  # Java's abs(-2**31) stays negative
    return codes


def counted(header: IndexHeader, new: Entries, empty: int) -> IndexHeader:
    """The header after these entries, at least one, of which `empty` found their slot empty.
    RocketMQ counts such puts in the field that it calls slots in use."""
    is_first = header.next_item == 1
    return IndexHeader(
        int(new.stored_ms[0]) if is_first else header.begin_timestamp_ms,
        int(new.stored_ms[-1]),
        int(new.offsets[0]) if is_first else header.begin_offset,
        int(new.offsets[-1]),
        header.slots_in_use + empty,
        header.next_item + len(new.hashes),
    )


# --- the twin of what is compiled: see loops.active ---


def link_entries(
    slots: Slots,
    hashes: Ints,
    offsets: Ints,
    stored_ms: Ints,
    first: int,
    begin_ms: int,
) -> tuple[bytes, int]:
    """The items of entries, from item number `first` on, and how many found their slot empty.

    The result is that of RocketMQ's single puts. `slots` are all slots of the file, which are only
    read, and `begin_ms` is the header's. The caller has checked that there is room.
    """
    count = len(hashes)
    numbers = np.arange(first, first + count)
    targets = hashes % len(slots)
    # Packed into one integer, so that one sort groups equal slots, each group in item order.
    order = np.sort(targets << 32 | np.arange(count)) & 0xFFFFFFFF
    ordered = targets[order]
    # Only the first item of each slot among these follows what the slot had before.
    is_first = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    before = np.empty(count, np.int64)
    before[1:] = numbers[order[:-1]]
    found = slots[ordered[is_first]].astype(np.int64)
    # A slot may hold anything after a crash. What is not an item of this file counts as empty: a
    # chain could otherwise lead out of the file or in a circle. RocketMQ lets an item name itself,
    # and so does this; a query stops at an item that does not name an older one.
    found[(found < 0) | (found > numbers[order[is_first]])] = 0
    before[is_first] = found

    # Items stay in log order; only their predecessors were found in slot order.
    items = np.zeros(count, ITEM_DTYPE)
    items["hash"], items["offset"] = hashes, offsets
    items["previous"][order] = before
    items["seconds"] = _seconds(stored_ms, begin_ms)
    if first == 1:
        # Item 1 sets the begin time. But RocketMQ computes its seconds from the time that the file
        # inherited from its predecessor.
        items["seconds"][1:] = _seconds(stored_ms[1:], int(stored_ms[0]))
    return items.tobytes(), int(np.count_nonzero(before == 0))


def move_slots(slots: Slots, hashes: Ints, first: int) -> None:
    """Let each slot lead to the last of its new items, which begin at number `first`; the others
    are reached from there. Call it after the items are written: a reader may follow a chain."""
    # if a slot comes more than once, numpy stores the last number
    slots[hashes % len(slots)] = np.arange(first, first + len(hashes))


def _seconds(stored_ms: Ints, begin_ms: int) -> Ints:
    """Store times as items have them. A time before the begin time is 0, and without a begin time
    all are 0, as in RocketMQ. Java's division truncates where this one rounds down: the results
    differ only below 0, where both become 0."""
    if begin_ms <= 0:
        return np.zeros(len(stored_ms), np.int64)
    return np.clip((stored_ms - begin_ms) // 1000, 0, _MAX_INT)
