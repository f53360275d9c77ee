"""Consume queue entries: 20 bytes for each message of a queue. Pure functions on buffers.

    off  field              type
      0  physical offset    i64   of the record in the commit log
      8  size               i32   the whole record
     12  tags code          i64   String.hashCode(TAGS), 0 without; see delay_levels for its topic

Entry k of a queue stands at byte 20 * k of the queue's logical file. In a queue that starts
mid-way, blank entries (offset 0, size 0x7FFFFFFF, code 0) fill the slots before its first message.
"""

from __future__ import annotations

import struct

from penstock.shared.formats.java_hash import string_hash
from penstock.shared.layout import CQ_ENTRY_BYTES

ENTRY = struct.Struct(">qiq")
BLANK_SIZE = 0x7FFFFFFF
BLANK_ENTRY = ENTRY.pack(0, BLANK_SIZE, 0)

assert ENTRY.size == CQ_ENTRY_BYTES, "one entry is 20 bytes"


def all_lead_somewhere(raw: bytes) -> bool:
    """Whether each of these entries has a size above 0 and an offset that is not negative; blank
    ones do. Compares whole columns of bytes: a loop would take longer than reading the entries, and
    a process with few queues should not have to import numpy.
    """
    # the first byte of a number has its sign
    if not (raw[::CQ_ENTRY_BYTES].isascii() and raw[8::CQ_ENTRY_BYTES].isascii()):
        return False
    sizes = 0
    for column in range(8, 12):
        sizes |= int.from_bytes(raw[column::CQ_ENTRY_BYTES])
    return 0 not in sizes.to_bytes(len(raw) // CQ_ENTRY_BYTES)


def tags_code(tags: str) -> int:
    """The code an ordinary message is filtered by; 0 without tags."""
    return string_hash(tags) if tags else 0
