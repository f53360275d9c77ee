"""The layout of a hash index file, and its header's words. Without arrays, because a program that
only reads a header should not have to import numpy.

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

The numbers of slots and items are configured, and the file does not have them. A put writes the
items, then the slots, then the header. Items are only ever appended, so slots and counts follow
from them.
"""

from __future__ import annotations

import mmap
import struct
from typing import NamedTuple

import msgspec

HEADER = struct.Struct(">qqqqii")
ITEM = struct.Struct(">iqii")
SLOT_BYTES = 4

assert ITEM.size == 20 and HEADER.size == 40, "sizes as drawn above"


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
    """The header's words. In the first file of a store all are 0, and the next item is 1."""

    begin_timestamp_ms: int = 0
    end_timestamp_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slots_in_use: int = 0
    next_item: int = 1

    def encode(self) -> bytes:
        """The 40 bytes of a header. Write them after the items and slots that it counts."""
        return HEADER.pack(
            self.begin_timestamp_ms,
            self.end_timestamp_ms,
            self.begin_offset,
            self.end_offset,
            self.slots_in_use,
            self.next_item,
        )

    def successor(self) -> IndexHeader:
        """The next file's header: until item 1 sets its begin, that is this file's end."""
        end_ms, end = self.end_timestamp_ms, self.end_offset
        return IndexHeader(end_ms, end_ms, end, end)


def decode_header(raw: bytes | memoryview | mmap.mmap) -> IndexHeader:
    """The words of a header. In a file that was just made the next item counts as 1, too."""
    begin_ms, end_ms, begin, end, in_use, next_item = HEADER.unpack_from(raw)
    return IndexHeader(begin_ms, end_ms, begin, end, in_use, max(next_item, 1))
