"""Consume queue entries: 20 bytes for each message of a queue. Pure functions on buffers.

    off  field              type
      0  physical offset    i64   of the record in the commit log
      8  size               i32   the whole record
     12  tags code          i64   String.hashCode(TAGS), 0 without; due time in the delay topic

Entry k of a queue stands at byte 20 * k of the queue's logical file. A blank entry (offset 0, size
0x7FFFFFFF, code 0) fills the slots before the first message of a queue that starts mid-way.
"""

from __future__ import annotations

import struct

from penstock.shared.formats.java_hash import string_hash
from penstock.shared.layout import CQ_ENTRY_BYTES

ENTRY = struct.Struct(">qiq")
BLANK_SIZE = 0x7FFFFFFF
BLANK_ENTRY = ENTRY.pack(0, BLANK_SIZE, 0)

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
_DELAY_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """What each delay level waits in ms, level 1 first, from RocketMQ's `1s 5s 10s ...`."""
    return tuple(int(each[:-1]) * _DELAY_UNITS_MS[each[-1]] for each in text.split(" "))


DELAY_LEVELS_MS = parse_delay_levels("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h")

assert ENTRY.size == CQ_ENTRY_BYTES, "one entry is 20 bytes"


def tags_code(tags: str) -> int:
    """The code an ordinary message is filtered by; 0 without tags."""
    return string_hash(tags) if tags else 0


def delay_due_ms(
    level: int, store_timestamp_ms: int, levels_ms: tuple[int, ...] = DELAY_LEVELS_MS
) -> int:
    """When a message of this delay level is due: what its entry carries instead of a tag hash."""
    wait_ms = 1000 if level <= 0 else levels_ms[min(level, len(levels_ms)) - 1]
    # a Java long: damage may have made the timestamp any number
    return (store_timestamp_ms + wait_ms + 2**63) % 2**64 - 2**63
