"""The record that is stored when a message has waited: bytes of one record to bytes of the next.

    by level    its properties as they are, DELAY among them, as in RocketMQ
    any time    with TIMER_ENQUEUE_MS, when it was stored, and TIMER_DEQUEUE_MS, when it was due
    rolled      the wheel topic again, with TIMER_ROLL_TIMES: its segment is about to expire

A record without a UNIQ_KEY gets the id of its own place in the log as one: otherwise nobody could
tell whether its copy is stored. This runs once for each delayed message, so it works on the bytes.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock.shared.formats.message_id import offset_message_id
from penstock.shared.formats.properties import (
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    encode_properties,
    find_property,
    whole_number,
    without,
)
from penstock.shared.formats.record_crc import PROP_CRC_BYTES, PROP_CRC_LEAD, with_prop_crc_room
from penstock.shared.formats.record_layout import (
    AT_BORN_HOST,
    AT_MAGIC_LOW,
    AT_PHYSICAL_OFFSET,
    AT_SYS_FLAG_LOW,
    FIXED_HEAD,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    SYS_TRANSACTION_MASK,
    TAIL_HEAD,
    Shape,
    store_host,
)
from penstock.shared.messaging.delayed import (
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    real_place,
    timer_due_ms,
)
from penstock.shared.messaging.system_topics import TIMER_TOPIC
from penstock.shared.names import MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES

_STORED = struct.Struct(">q")
_V2_LOW = MAGIC_V2 & 0xFF
_UNIQ_KEY, _ROLL_TIMES = b"UNIQ_KEY", TIMER_ROLL_TIMES.encode()
# A copy that is too long drops these: the store may have got checksums since, which need room.
_OF_ITS_WAY = (DELAY, REAL_TOPIC, REAL_QID)
# What a roll says itself, or what is no longer true.
_OF_A_ROLL = (TIMER_OUT_MS, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_ROLL_TIMES, REAL_QID)


class Copy(NamedTuple):
    """A record for a topic and queue, as a producer sends it."""

    topic: bytes
    queue_id: int
    record: bytes


class Waiting(NamedTuple):
    """A waiting record in parts: what comes before the store time, what is between the store host
    and the topic, and the properties."""

    head: bytes
    stored_ms: int
    tail: bytes
    properties: bytes
    record: memoryview
    # for a record of the wheel topic: when it is due, -1 where it does not say
    due_ms: int

    @property
    def unique_key(self) -> bytes:
        return find_property(self.properties, _UNIQ_KEY)


def taken_apart(record: memoryview) -> Waiting:
    """The parts of one whole, examined record."""
    sys_flag = record[AT_SYS_FLAG_LOW]
    at = AT_BORN_HOST + (HOST_V6_BYTES if sys_flag & SYS_BORN_HOST_V6 else HOST_V4_BYTES)
    head = bytes(record[:at])
    (stored_ms,) = _STORED.unpack_from(record, at)
    at += 8 + (HOST_V6_BYTES if sys_flag & SYS_STORE_HOST_V6 else HOST_V4_BYTES)
    body_length = TAIL_HEAD.unpack_from(record, at)[2]
    topic_at = at + TAIL_HEAD.size + body_length
    tail = bytes(record[at:topic_at])
    if record[AT_MAGIC_LOW] == _V2_LOW:
        topic_end = topic_at + 2 + (record[topic_at] << 8 | record[topic_at + 1])
    else:
        topic_end = topic_at + 1 + record[topic_at]
    properties = bytes(record[topic_end + PROPERTIES_LENGTH_BYTES :])
    due_ms = timer_due_ms(properties, stored_ms)
    return Waiting(head, stored_ms, tail, properties, record, due_ms)


def delivered(waiting: Waiting, shape: Shape, timed: bool) -> Copy | None:
    """The copy to deliver; None for a record that names no destination."""
    place = real_place(waiting.properties)
    if place is None:
        return None
    raw, key, most = _kept(waiting), _missing_key(waiting), _most_bytes(shape)
    if len(raw) + len(key) > most:
        raw = without(raw, _OF_ITS_WAY)
    added = b""
    if timed:
        added = b"TIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02" % (
            waiting.stored_ms,
            waiting.due_ms,
        )
    return Copy(*place, _made(waiting, *place, _fitting(raw, most, key, added), shape))


def rolled(waiting: Waiting, shape: Shape, queue_id: int) -> Copy:
    """The same message once more in the wheel topic, due at the same time, for this queue of its
    topic: the one that it names may have gone."""
    times = whole_number(find_property(waiting.properties, _ROLL_TIMES).decode("latin-1"))
    raw = without(_kept(waiting), _OF_A_ROLL)
    raw += encode_properties({TIMER_OUT_MS: str(waiting.due_ms), REAL_QID: str(queue_id)})
    # if there is no room for this, the record still says when it is due: its time is absolute now
    told = encode_properties({TIMER_ROLL_TIMES: str(max(0, times) + 1)})
    raw = _fitting(raw, _most_bytes(shape), _missing_key(waiting), told)
    topic = TIMER_TOPIC.encode()
    return Copy(topic, 0, _made(waiting, topic, 0, raw, shape))


def _kept(waiting: Waiting) -> bytes:
    """The properties with which it waits, without a checksum."""
    raw = waiting.properties
    if PROP_CRC_LEAD in raw:
        raw = with_prop_crc_room(raw, False)
    # RocketMQ 4.9.1 to 5.1.4 omit the last separator
    return raw + b"\x02" if raw and not raw.endswith(b"\x02") else raw


def _missing_key(waiting: Waiting) -> bytes:
    """A UNIQ_KEY, as a property, for a message that has none."""
    if waiting.unique_key:
        return b""
    physical = int.from_bytes(waiting.head[AT_PHYSICAL_OFFSET : AT_PHYSICAL_OFFSET + 8], "big")
    place = offset_message_id(store_host(waiting.record), physical)
    return b"UNIQ_KEY\x01%s\x02" % place.encode()


def _most_bytes(shape: Shape) -> int:
    return MAX_PROPERTIES_BYTES - (PROP_CRC_BYTES if shape.prop_crc else 0)


def _fitting(raw: bytes, most_bytes: int, *more: bytes) -> bytes:
    """The properties, with those of `more` for which there is room: a copy that is too long would
    be refused, and the message lost."""
    for each in more:
        raw += each if len(raw) + len(each) <= most_bytes else b""
    return raw


def _made(waiting: Waiting, topic: bytes, queue_id: int, raw: bytes, shape: Shape) -> bytes:
    """The record; what a broker stamps is blank."""
    if shape.prop_crc:
        raw = with_prop_crc_room(raw, True)
    magic = MAGIC_V1 if len(topic) <= MAX_TOPIC_BYTES else MAGIC_V2
    _, _, crc, _, flag, _, _, sys_flag, born_ms = FIXED_HEAD.unpack_from(waiting.head)
    sys_flag &= ~(SYS_STORE_HOST_V6 | SYS_TRANSACTION_MASK)
    if shape.store_host_bytes == HOST_V6_BYTES:
        sys_flag |= SYS_STORE_HOST_V6
    times, _, body_length = TAIL_HEAD.unpack_from(waiting.tail)
    rest = b"".join(
        (
            waiting.head[AT_BORN_HOST:],
            bytes(8 + shape.store_host_bytes),
            TAIL_HEAD.pack(times, 0, body_length),
            waiting.tail[TAIL_HEAD.size :],
            len(topic).to_bytes(1 if magic == MAGIC_V1 else 2, "big"),
            topic,
            len(raw).to_bytes(PROPERTIES_LENGTH_BYTES, "big"),
            raw,
        )
    )
    size = FIXED_HEAD.size + len(rest)
    return FIXED_HEAD.pack(size, magic, crc, queue_id, flag, 0, 0, sys_flag, born_ms) + rest
