"""What a checker or an index needs of a record, without decoding all of it. Pure functions.

A full decode copies the body and makes texts; a walk over a whole store cannot afford either.
Everything here takes one whole, examined record, and so checks no length again: for other bytes the
result is nonsense, or an IndexError.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from penstock.shared.formats.delay_levels import DELAY_LEVELS_MS, SCHEDULE_TOPIC_RAW, due_ms
from penstock.shared.formats.properties import KEYS, TAGS, UNIQ_KEY, find_property
from penstock.shared.formats.queue_entry import tags_code
from penstock.shared.formats.record_crc import PROP_CRC_BYTES, has_prop_crc
from penstock.shared.formats.record_layout import (
    AT_BODY_LENGTH_V4,
    AT_BODY_V4,
    AT_BORN_TIMESTAMP,
    AT_MAGIC,
    AT_MAGIC_LOW,
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
    AT_RECONSUME_TIMES_V4,
    AT_STORE_TIMESTAMP_V4,
    AT_SYS_FLAG,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    SYS_ANY_HOST_V6,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
    V6_EXTRA_BYTES,
    body_span,
    fields_at,
    store_timestamp_ms,
    v6_extra_bytes,
)

# A prepared message must not be read before it is committed, a rolled-back one never.
_UNQUEUED = (SYS_TRANSACTION_PREPARED, SYS_TRANSACTION_ROLLBACK)
_TAGS, _KEYS, _UNIQ_KEY = TAGS.encode(), KEYS.encode(), UNIQ_KEY.encode()
_MAGIC_V2_LOW = MAGIC_V2 & 0xFF
# for IPv4 hosts; with IPv6 hosts the last fields are elsewhere
_USUAL = fields_at(
    (AT_QUEUE_ID, "i"),
    (AT_QUEUE_OFFSET, "q"),
    (AT_SYS_FLAG, "i"),
    (AT_STORE_TIMESTAMP_V4, "q"),
    (AT_BODY_LENGTH_V4, "i"),
)
_FLAG_AND_LENGTH = fields_at((AT_SYS_FLAG, "i"), (AT_BODY_LENGTH_V4, "i"))


class Outline(msgspec.Struct, gc=False):
    """Where a record belongs. Topic and properties are raw bytes.

    They are copies, so an outline may outlive the buffer. It has only numbers and bytes, so it
    cannot be part of a cycle: gc=False saves the collector one object for each record.
    """

    topic: bytes
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp_ms: int
    properties: bytes

    @property
    def is_queued(self) -> bool:
        """Whether a consume queue has an entry for it; not if it is prepared or rolled back."""
        return self.sys_flag & SYS_TRANSACTION_MASK not in _UNQUEUED


def outline(record: memoryview) -> Outline:
    """The outline of one whole, examined record. `record` begins and ends with it."""
    # One call for all five, which is right where both hosts are IPv4. Otherwise the body length,
    # and perhaps the store time, was read from a wrong place, and both are read again.
    queue_id, queue_offset, sys_flag, stored_ms, length = _USUAL.unpack_from(record)
    body_at = AT_BODY_V4
    if sys_flag & SYS_ANY_HOST_V6:
        body_at, length = body_span(record, 0)
        stored_ms = store_timestamp_ms(record, 0)
    # RocketMQ's length byte is signed, and indexing is unsigned: in an examined record that is the
    # same, as the length is not negative.
    topic_at = body_at + length + 1
    topic_length = record[topic_at - 1]
    # version 2 has a second length byte: the first was the high one, and the topic begins one later
    if record[AT_MAGIC_LOW] == _MAGIC_V2_LOW:
        topic_length = topic_length << 8 | record[topic_at]
        topic_at += 1
    topic_end = topic_at + topic_length
    return Outline(
        bytes(record[topic_at:topic_end]),
        queue_id,
        queue_offset,
        sys_flag,
        stored_ms,
        # up to the record's end: `examine` has checked that their length agrees
        bytes(record[topic_end + PROPERTIES_LENGTH_BYTES :]),
    )


def raw_properties(record: memoryview) -> bytes:
    """Only the properties string of one whole, examined record."""
    # not through outline(): filters call this for each record, and need neither topic nor queue
    sys_flag, length = _FLAG_AND_LENGTH.unpack_from(record)
    at = AT_BODY_V4
    if sys_flag & SYS_ANY_HOST_V6:
        at, length = body_span(record, 0)
    at += length
    if record[AT_MAGIC_LOW] == _MAGIC_V2_LOW:
        topic_end = at + 2 + (record[at] << 8 | record[at + 1])
    else:
        topic_end = at + 1 + record[at]
    return bytes(record[topic_end + PROPERTIES_LENGTH_BYTES :])


def unique_key_of(record: memoryview) -> bytes:
    """The UNIQ_KEY of one whole record, as bytes; b"" if it has none.

    A message without one never counts as a retry of another.
    """
    return find_property(raw_properties(record), _UNIQ_KEY)


def record_keys(record: Outline) -> tuple[bytes, bytes]:
    """(unique key, keys) under which to index a record; empty where there are none.

    A rolled-back message has none: nobody will ever read it. A prepared one has, as in RocketMQ.
    """
    if record.sys_flag & SYS_TRANSACTION_MASK == SYS_TRANSACTION_ROLLBACK:
        return b"", b""
    return (
        find_property(record.properties, _UNIQ_KEY),
        find_property(record.properties, _KEYS),
    )


def sent_part(record: memoryview) -> bytes:
    """The part of one whole record that its sender decided: all but what a broker stamps.

    It is the same in each copy of a message, whatever broker has stored it. So retries are
    recognised by this, and not by the key alone, which anybody could have sent before.
    """
    sys_flag = int.from_bytes(record[AT_SYS_FLAG:AT_BORN_TIMESTAMP], "big")
    # The store time comes after the born host; what follows it comes after both hosts.
    born_stop, rest_at = AT_STORE_TIMESTAMP_V4, AT_RECONSUME_TIMES_V4
    if sys_flag & SYS_BORN_HOST_V6:
        born_stop += V6_EXTRA_BYTES
    rest_at += v6_extra_bytes(sys_flag)
    rest: bytes | memoryview = record[rest_at:]
    if has_prop_crc(record, len(record)):
        rest = _without_prop_crc(record, rest_at)
    # From the magic on: the total size includes the store host and the checksum, which differ
    # between brokers. For the same reason the store host's bit is removed from sysFlag.
    return b"".join(
        (
            record[AT_MAGIC:AT_QUEUE_OFFSET],
            (sys_flag & ~SYS_STORE_HOST_V6).to_bytes(4, "big"),
            record[AT_BORN_TIMESTAMP:born_stop],
            rest,
        )
    )


def _without_prop_crc(record: memoryview, start: int) -> bytes:
    """A record from `start` on, as it would be without its last property, the checksum.

    The length in front of the properties includes the checksum, so it is written again.
    """
    properties = raw_properties(record)[:-PROP_CRC_BYTES]
    lead = record[start : len(record) - PROP_CRC_BYTES - len(properties) - PROPERTIES_LENGTH_BYTES]
    return b"".join((lead, len(properties).to_bytes(PROPERTIES_LENGTH_BYTES, "big"), properties))


def entry_tags_code(record: Outline, delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS) -> int:
    """What the record's consume queue entry carries: its tags' hash, or when it is due in ms.

    The levels are the broker's configuration; a rebuild with others makes other due times.
    """
    code = _code(find_property(record.properties, _TAGS))
    if record.topic != SCHEDULE_TOPIC_RAW:
        return code
    return due_ms(record.store_timestamp_ms, record.properties, code, delay_levels_ms)


# cached by raw bytes, so a tag that recurs is not even decoded
@lru_cache(maxsize=65536)
def _code(tags: bytes) -> int:
    return tags_code(tags.decode("utf-8", "replace"))
