"""The loops that run once per message: check and stamp a frame, walk the log. Pure Python twins.

Pure functions on buffers: no sockets, no files, no clock. Whatever is not needed for each message
lives elsewhere. All trust no length before it is bounded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from isal import isal_zlib

from penstock.shared.consume_queue import (
    DELAY_LEVELS_MS,
    ENTRY,
    SCHEDULE_TOPIC,
    delay_due_ms,
    tags_code,
)
from penstock.shared.errors import InvalidMessage, PropertiesTooLarge
from penstock.shared.layout import BLANK_HEADER_BYTES, MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES
from penstock.shared.properties import DELAY, KEYS, TAGS, UNIQ_KEY, find_property
from penstock.shared.record import (
    AT_BODY_LENGTH_V4,
    AT_BODY_V4,
    AT_QUEUE_OFFSET,
    AT_STORE_TIMESTAMP_V4,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SMALLEST_RECORD_BYTES,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
    Shape,
    body_span,
    store_timestamp_ms,
)
from penstock.shared.record_crc import complete_prop_crc

if TYPE_CHECKING:
    from penstock.shared.index_file import KeyBatch

_CHECK_HEAD = struct.Struct(">iIii20xi")  # totalSize, magic, bodyCRC, queueId, sysFlag
# totalSize, magic, queueId, two offsets, sysFlag, storeTimestamp where the hosts are IPv4
_WALK_HEAD = struct.Struct(">iI4xi4xqqi16xq")
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")
_OFFSETS = struct.Struct(">qq")  # queueOffset, physicalOffset
# storeTimestamp, storeHost
_STORED = {size: struct.Struct(f">q{size}s") for size in (HOST_V4_BYTES, HOST_V6_BYTES)}
_BLANK = struct.Struct(">iI")
_V6_EXTRA_BYTES = HOST_V6_BYTES - HOST_V4_BYTES

_ANY_V6 = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6
_NOT_THE_SENDERS = SYS_STORE_HOST_V6 | SYS_TRANSACTION_MASK


def check_frame(
    frame: bytes | bytearray,
    topic: bytes,
    queue_id: int,
    max_record_bytes: int,
    max_body_bytes: int = 1 << 31,
    shape: Shape = Shape(),  # noqa: B008 - a tuple
) -> list[int]:
    """Check every record of a produce frame; where each begins, and the frame's length last.

    Raises InvalidMessage for the first record that is not whole, too large, damaged, of another
    topic or queue, or has no room for the store host of `shape`. Nothing is changed.
    """
    starts: list[int] = []
    at, end = 0, len(frame)
    view = memoryview(frame)
    crc32, unpack = isal_zlib.crc32, _CHECK_HEAD.unpack_from
    length_at, short_at = _I32.unpack_from, _I16.unpack_from
    own_bits = SYS_STORE_HOST_V6 if shape.store_host_bytes == HOST_V6_BYTES else 0
    names = _names(topic)
    while at < end:
        if end - at < SMALLEST_RECORD_BYTES:
            raise _bad("a record is whole", f"{end - at} bytes are left", starts)
        size, magic, crc, queue, sys_flag = unpack(frame, at)
        if not SMALLEST_RECORD_BYTES <= size <= end - at:
            raise _bad("a record ends inside its frame", f"{size} bytes", starts)
        if size > max_record_bytes:
            raise _bad(f"a record has at most {max_record_bytes} bytes", size, starts)
        if queue != queue_id:
            raise _bad(f"all records of the frame are for queue {queue_id}", queue, starts)
        if sys_flag & _NOT_THE_SENDERS != own_bits:
            rule = "sysFlag has the broker's store host bit and no transaction bits"
            raise _bad(rule, hex(sys_flag), starts)
        body_at = at + AT_BODY_V4
        if sys_flag & _ANY_V6:
            body_at += _V6_EXTRA_BYTES * (sys_flag & _ANY_V6).bit_count()
            if body_at > at + size:
                raise _bad("a record holds the hosts its sysFlag names", f"{size} bytes", starts)
        body_end = body_at + length_at(frame, body_at - 4)[0]
        if body_end - body_at > max_body_bytes:
            rule = f"a body has at most {max_body_bytes} bytes"
            raise _bad(rule, body_end - body_at, starts)
        name = names.get(magic)
        if name is None:
            raise _bad("a record begins with a magic code", f"{magic:08x}", starts)
        topic_end, record_end = body_end + len(name), at + size
        properties_at = topic_end + 2
        if body_end < body_at or properties_at > record_end or frame[body_end:topic_end] != name:
            raise _bad("all records of the frame are for the topic named", topic.decode(), starts)
        if short_at(frame, topic_end)[0] != record_end - properties_at:
            if record_end - properties_at > MAX_PROPERTIES_BYTES:
                rule = f"properties have at most {MAX_PROPERTIES_BYTES} bytes"
                raise _bad(rule, record_end - properties_at, starts, PropertiesTooLarge)
            raise _bad("the lengths inside a record add up to its size", size, starts)
        if crc != (crc32(view[body_at:body_end]) & 0x7FFFFFFF if body_end > body_at else 0):
            raise _bad("the body CRC holds", crc, starts)
        starts.append(at)
        at = record_end
    starts.append(at)
    return starts


def _names(topic: bytes) -> dict[int, bytes]:
    """The topic behind its length, as each version has it."""
    names = {MAGIC_V2: len(topic).to_bytes(2, "big") + topic}
    if len(topic) <= MAX_TOPIC_BYTES:  # the length byte of the first version is signed
        names[MAGIC_V1] = len(topic).to_bytes(1, "big") + topic
    return names


def _bad(
    rule: str, value: object, starts: list[int], kind: type[InvalidMessage] = InvalidMessage
) -> InvalidMessage:
    return kind(rule, f"{value} in record {len(starts)} of the frame")


def stamp(
    frame: bytearray,
    starts: list[int],
    queue_offset: int,
    shift: int,
    stored_ms: int,
    host: bytes,
    prop_crc: bool = False,
) -> None:
    """Give the records at `starts` their queue offsets, physical offsets (index + shift), time.

    They have room for `host`, and at their ends for the checksum where `prop_crc` says so.
    """
    offsets, stored = _OFFSETS.pack_into, _STORED[len(host)].pack_into
    for number, at in enumerate(starts, queue_offset):
        offsets(frame, at + AT_QUEUE_OFFSET, number, at + shift)
        if frame[at + 39] & SYS_BORN_HOST_V6:
            stored(frame, at + AT_STORE_TIMESTAMP_V4 + _V6_EXTRA_BYTES, stored_ms, host)
        else:
            stored(frame, at + AT_STORE_TIMESTAMP_V4, stored_ms, host)
        if prop_crc:
            complete_prop_crc(frame, at, at + _I32.unpack_from(frame, at)[0])


class Dispatch(NamedTuple):
    """What one record says to the consume queue. `entry` is its 20 bytes; b"" when it has none."""

    topic: bytes
    queue_id: int
    queue_offset: int
    entry: bytes
    position: int
    size: int


def walk(
    view: memoryview,
    position: int,
    levels_ms: tuple[int, ...] = DELAY_LEVELS_MS,
    keys: KeyBatch | None = None,
) -> Iterator[Dispatch]:
    """Dispatch each whole record of a piece of the log that begins at `position`.

    `levels_ms` is what delay levels wait; `keys` gets what the records are to be indexed under.
    Ends at the first byte that does not begin a whole record, or behind a blank, which is not
    yielded: `blank_size` tells. CRCs are not compared: the writer has.
    """
    codes: dict[bytes, int] = {}
    at, end = 0, len(view)
    unpack, length_at, entry = _WALK_HEAD.unpack_from, _I32.unpack_from, ENTRY.pack
    lead_tags, lead_keys = _TAGS[1], _KEYS[1]
    make = tuple.__new__  # without the Python function that a named tuple's constructor is
    while end - at >= SMALLEST_RECORD_BYTES:
        size, magic, queue_id, queue_offset, physical, sys_flag, stored_ms = unpack(view, at)
        if magic != MAGIC_V1 and magic != MAGIC_V2 or size > end - at or physical != position + at:
            return
        if sys_flag & _ANY_V6:
            body_at, body_length = body_span(view, at)
            stored_ms = store_timestamp_ms(view, at)
        else:
            body_at = at + AT_BODY_V4
            (body_length,) = length_at(view, at + AT_BODY_LENGTH_V4)
        # topic and properties together are small; one copy makes the rest plain bytes work
        tail = bytes(view[body_at + body_length : at + size])
        if magic == MAGIC_V1:
            topic_end = 1 + tail[0]
            topic = tail[1:topic_end]
        else:
            topic_end = 2 + int.from_bytes(tail[:2], "big")
            topic = tail[2:topic_end]
        # rfind is several times as fast as `in`, and mostly there are no tags and no keys
        tags = _value(tail, topic_end + 2, _TAGS) if tail.rfind(lead_tags) > 0 else b""
        code = codes.get(tags)
        if code is None:
            code = codes[tags] = tags_code(tags.decode("utf-8", "replace"))
        if sys_flag & SYS_TRANSACTION_MASK in _NOT_QUEUED:
            made = b""
        else:
            if topic == _SCHEDULE_TOPIC:
                code = _due_ms(stored_ms, tail[topic_end + 2 :], code, levels_ms)
            made = entry(physical, size, code)
        if keys is not None and sys_flag & SYS_TRANSACTION_MASK != SYS_TRANSACTION_ROLLBACK:
            unique_key = _value(tail, topic_end + 2, _UNIQ_KEY)
            words = _value(tail, topic_end + 2, _KEYS) if tail.rfind(lead_keys) > 0 else b""
            keys.add(topic, unique_key, words, physical, stored_ms)
        yield make(Dispatch, (topic, queue_id, queue_offset, made, physical, size))
        at += size


def _value(tail: bytes, start: int, names: tuple[bytes, bytes]) -> bytes:
    """A property of a record, as `find_property` finds it, without cutting the properties out."""
    later, first = names
    at = tail.rfind(later, start)
    if at >= 0:
        at += len(later)
    elif tail.startswith(first, start):
        at = start + len(first)
    else:
        return b""
    stop = tail.find(b"\x02", at)
    if stop == at:  # an empty value does not count; an earlier one may
        return find_property(tail[start:], first[:-1])
    return tail[at:] if stop < 0 else tail[at:stop]


def _names_of(key: str) -> tuple[bytes, bytes]:
    """How a property begins behind another one, and as the first."""
    first = key.encode() + b"\x01"
    return b"\x02" + first, first


_TAGS, _KEYS, _UNIQ_KEY = (_names_of(key) for key in (TAGS, KEYS, UNIQ_KEY))
_NOT_QUEUED = (SYS_TRANSACTION_PREPARED, SYS_TRANSACTION_ROLLBACK)
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()


def _due_ms(stored_ms: int, properties: bytes, code: int, levels_ms: tuple[int, ...]) -> int:
    """The tags code in the delay topic: when the message is due, if it names a level."""
    level = find_property(properties, DELAY.encode())
    if level.isdigit() and len(level) < 10 and int(level) > 0:  # a Java int, as there
        return delay_due_ms(int(level), stored_ms, levels_ms)
    return code


def blank_size(view: memoryview, at: int = 0) -> int:
    """The size of the blank at `at`; 0 when there is none."""
    if len(view) - at < BLANK_HEADER_BYTES:
        return 0
    size, magic = _BLANK.unpack_from(view, at)
    return size if magic == MAGIC_BLANK else 0


def unique_key_at(view: memoryview, at: int, size: int) -> bytes:
    """The UNIQ_KEY of the record of `size` bytes at `at`; b"" when it has none."""
    return find_property(properties_at(view, at, size), UNIQ_KEY.encode())


def properties_at(view: memoryview, at: int, size: int) -> bytes:
    """The properties of the whole record of `size` bytes at `at`."""
    body_at, body_length = body_span(view, at)
    tail = bytes(view[body_at + body_length : at + size])
    length_bytes = 2 if view[at + 7] == MAGIC_V2 & 0xFF else 1
    return tail[length_bytes + int.from_bytes(tail[:length_bytes], "big") + 2 :]
