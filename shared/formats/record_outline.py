"""What a checker or an index needs of a record, without decoding all of it. Pure functions.

A full decode copies the body and makes texts; a walk over a whole store cannot afford either.
Everything here takes one whole, examined record, and so checks no length again: of other bytes it
makes nonsense, or an IndexError.
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

# A prepared message is not to be read before it is committed, a rolled-back one never.
_UNQUEUED = (SYS_TRANSACTION_PREPARED, SYS_TRANSACTION_ROLLBACK)
_TAGS, _KEYS, _UNIQ_KEY = TAGS.encode(), KEYS.encode(), UNIQ_KEY.encode()
_MAGIC_V2_LOW = MAGIC_V2 & 0xFF
# where both hosts are IPv4; of others the last field of either stands elsewhere
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

    They are copies, so an outline may outlive the buffer. It holds numbers and bytes only, and no
    cycle can go through it: gc=False spares the collector one object for each record.
    """

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
    """The outline of one whole, examined record. `record` begins and ends with it."""
    # One call for all five, which is right where both hosts are IPv4. Otherwise the body length,
    # and perhaps the store time, was looked for at a wrong place, and both are read again.
    queue_id, queue_offset, sys_flag, stored_ms, length = _USUAL.unpack_from(record)
    body_at = AT_BODY_V4
    if sys_flag & SYS_ANY_HOST_V6:
        body_at, length = body_span(record, 0)
        stored_ms = store_timestamp_ms(record, 0)
    # The length byte is signed in RocketMQ. In an examined record it is not negative, so an index,
    # which is unsigned, is enough.
    topic_at = body_at + length + 1
    topic_length = record[topic_at - 1]
    # a second length byte, so the first was the high one and the topic begins one later
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
        # to the record's end: examining it has shown that their length says the same
        bytes(record[topic_end + PROPERTIES_LENGTH_BYTES :]),
    )


def raw_properties(record: memoryview) -> bytes:
    """The properties string of one whole, examined record, and nothing else of it."""
    # not by way of outline(): filters call this for each record, and need neither topic nor queue
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
    """The UNIQ_KEY of one whole record, as bytes; b"" when it has none.

    A message without one is never taken for a retry of another.
    """
    return find_property(raw_properties(record), _UNIQ_KEY)


def record_keys(record: Outline) -> tuple[bytes, bytes]:
    """(unique key, keys) that a record is to be indexed under; empty where there are none.

    A rolled-back message has none: nobody will ever read it. A prepared one has, as in RocketMQ.
    """
    if record.sys_flag & SYS_TRANSACTION_MASK == SYS_TRANSACTION_ROLLBACK:
        return b"", b""
    return (
        find_property(record.properties, _UNIQ_KEY),
        find_property(record.properties, _KEYS),
    )


def sent_part(record: memoryview) -> bytes:
    """What of one whole record its sender decided: all but what a broker stamps.

    A message has the same bytes here in each of its copies, whatever broker has stored it. So a
    retry is compared by this, and not by its key alone, which anybody could have sent before.
    """
    sys_flag = int.from_bytes(record[AT_SYS_FLAG:AT_BORN_TIMESTAMP], "big")
    # The store time follows the born host only; what comes after it follows both hosts.
    born_stop, rest_at = AT_STORE_TIMESTAMP_V4, AT_RECONSUME_TIMES_V4
    if sys_flag & SYS_BORN_HOST_V6:
        born_stop += V6_EXTRA_BYTES
    rest_at += v6_extra_bytes(sys_flag)
    rest: bytes | memoryview = record[rest_at:]
    if has_prop_crc(record, len(record)):
        rest = _without_prop_crc(record, rest_at)
    # From the magic on: the total size counts the store host and the checksum, and both differ
    # between brokers. For the same reason the bit of the store host is taken out of sysFlag.
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

    The length in front of the properties counts that too, so it is written again.
    """
    properties = raw_properties(record)[:-PROP_CRC_BYTES]
    lead = record[start : len(record) - PROP_CRC_BYTES - len(properties) - PROPERTIES_LENGTH_BYTES]
    return b"".join((lead, len(properties).to_bytes(PROPERTIES_LENGTH_BYTES, "big"), properties))


def entry_tags_code(record: Outline, delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS) -> int:
    """What the record's consume queue entry carries: its tags' hash, or when it is due in ms.

    The levels are the broker's configuration; a rebuild with others would make other due times.
    """
    code = _code(find_property(record.properties, _TAGS))
    if record.topic != SCHEDULE_TOPIC_RAW:
        return code
    return due_ms(record.store_timestamp_ms, record.properties, code, delay_levels_ms)


# by the raw bytes, so a tag that comes again is not even decoded
@lru_cache(maxsize=65536)
def _code(tags: bytes) -> int:
    return tags_code(tags.decode("utf-8", "replace"))
