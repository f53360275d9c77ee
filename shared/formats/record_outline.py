"""What a checker or an index needs of a record, without decoding all of it. Pure functions.

A full decode copies the body and makes texts; a walk over a whole store cannot afford either.
"""

from __future__ import annotations

import struct
from functools import lru_cache

import msgspec

from penstock.shared.formats.properties import DELAY, KEYS, TAGS, UNIQ_KEY, find_property
from penstock.shared.formats.queue_entry import (
    DELAY_LEVELS_MS,
    SCHEDULE_TOPIC,
    delay_due_ms,
    tags_code,
)
from penstock.shared.formats.record import (
    AT_BODY_V4,
    AT_BORN_TIMESTAMP,
    AT_MAGIC,
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
    AT_STORE_HOST_V4,
    AT_STORE_TIMESTAMP_V4,
    AT_SYS_FLAG,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAGIC_V2,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
    body_span,
    store_timestamp_ms,
)
from penstock.shared.formats.record_crc import PROP_CRC_BYTES, has_prop_crc

_V6_EXTRA_BYTES = HOST_V6_BYTES - HOST_V4_BYTES
_ANY_HOST_V6 = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6
_UNQUEUED = (SYS_TRANSACTION_PREPARED, SYS_TRANSACTION_ROLLBACK)
_DELAY, _TAGS = DELAY.encode(), TAGS.encode()
_KEYS, _UNIQ_KEY = KEYS.encode(), UNIQ_KEY.encode()
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
# queueId, queueOffset, sysFlag, storeTimestamp and body length, where both hosts are IPv4
_USUAL = struct.Struct(">12xi4xq8xi16xq20xi")
_FLAG_AND_LENGTH = struct.Struct(">36xi44xi")

assert _USUAL.size == _FLAG_AND_LENGTH.size == AT_BODY_V4, (
    "the body begins right behind these fields"
)
assert AT_QUEUE_ID == 12 and AT_QUEUE_OFFSET == 20, "the skipped bytes follow from the layout"


class Outline(msgspec.Struct, gc=False):
    """Where a record belongs. Topic and properties are raw bytes."""

    topic: bytes
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp_ms: int
    properties: bytes

    @property
    def is_queued(self) -> bool:
        """Whether a consume queue has an entry for it: all but prepared and rolled back."""
        return self.sys_flag & SYS_TRANSACTION_MASK not in _UNQUEUED


def outline(record: memoryview) -> Outline:
    """The outline of one whole, examined record."""
    queue_id, queue_offset, sys_flag, stored_ms, length = _USUAL.unpack_from(record)
    body_at = AT_BODY_V4
    if sys_flag & _ANY_HOST_V6:
        body_at, length = body_span(record, 0)
        stored_ms = store_timestamp_ms(record, 0)
    topic_at = body_at + length + 1
    topic_length = record[topic_at - 1]
    if record[AT_MAGIC + 3] == MAGIC_V2 & 0xFF:
        topic_length = topic_length << 8 | record[topic_at]
        topic_at += 1
    topic_end = topic_at + topic_length
    return Outline(
        bytes(record[topic_at:topic_end]),
        queue_id,
        queue_offset,
        sys_flag,
        stored_ms,
        bytes(record[topic_end + 2 :]),
    )


def raw_properties(record: memoryview) -> bytes:
    """The properties string of one whole, examined record, and nothing else of it."""
    sys_flag, length = _FLAG_AND_LENGTH.unpack_from(record)
    at = AT_BODY_V4
    if sys_flag & _ANY_HOST_V6:
        at, length = body_span(record, 0)
    at += length
    if record[AT_MAGIC + 3] == MAGIC_V2 & 0xFF:
        return bytes(record[at + 4 + (record[at] << 8 | record[at + 1]) :])
    return bytes(record[at + 3 + record[at] :])


def unique_key_of(record: memoryview) -> bytes:
    """The UNIQ_KEY of one whole record; b"" when it has none."""
    return find_property(raw_properties(record), _UNIQ_KEY)


def record_keys(record: Outline) -> tuple[bytes, bytes]:
    """(unique key, keys) that a record is to be indexed under; empty where there are none."""
    if record.sys_flag & SYS_TRANSACTION_MASK == SYS_TRANSACTION_ROLLBACK:
        return b"", b""
    return (
        find_property(record.properties, _UNIQ_KEY),
        find_property(record.properties, _KEYS),
    )


def sent_part(record: memoryview) -> bytes:
    """What of one whole record its sender decided: all but what a broker stamps.

    A message has the same bytes here in each of its copies, whatever broker has stored it.
    """
    sys_flag = int.from_bytes(record[AT_SYS_FLAG:AT_BORN_TIMESTAMP], "big")
    born_stop = AT_STORE_TIMESTAMP_V4
    if sys_flag & SYS_BORN_HOST_V6:
        born_stop += _V6_EXTRA_BYTES
    rest_at = born_stop + AT_STORE_HOST_V4 - AT_STORE_TIMESTAMP_V4 + HOST_V4_BYTES
    if sys_flag & SYS_STORE_HOST_V6:
        rest_at += _V6_EXTRA_BYTES
    rest: bytes | memoryview = record[rest_at:]
    if has_prop_crc(record, len(record)):
        rest = _without_prop_crc(record, rest_at)
    return b"".join(
        (
            record[AT_MAGIC:AT_QUEUE_OFFSET],
            (sys_flag & ~SYS_STORE_HOST_V6).to_bytes(4, "big"),
            record[AT_BORN_TIMESTAMP:born_stop],
            rest,
        )
    )


def _without_prop_crc(record: memoryview, start: int) -> bytes:
    """A record from `start` on, as it would be without its last property."""
    properties = raw_properties(record)[:-PROP_CRC_BYTES]
    lead = record[start : len(record) - PROP_CRC_BYTES - len(properties) - 2]
    return b"".join((lead, len(properties).to_bytes(2, "big"), properties))


def entry_tags_code(record: Outline, delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS) -> int:
    """What the record's consume queue entry carries: its tags' hash, or when it is due."""
    if record.topic == _SCHEDULE_TOPIC:
        level = find_property(record.properties, _DELAY)
        if level.isdigit() and len(level) < 10 and int(level) > 0:
            return delay_due_ms(int(level), record.store_timestamp_ms, delay_levels_ms)
    return _code(find_property(record.properties, _TAGS))


@lru_cache(maxsize=65536)
def _code(tags: bytes) -> int:
    return tags_code(tags.decode("utf-8", "replace"))
