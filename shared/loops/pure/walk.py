"""Walks the log: what its records tell queues and index, and which are whole. Pure Python.

The twin of what `compiled` has under the same names, and the reference for both; `active` chooses
the one that a process uses. The log may have anything after a crash, so no length is used before it
has been checked. The rest of a record is read in slices, which Python cuts off at the end: then the
lengths do not add up to the record's size, and it is not whole.

`walk` and `record_starts` write out the rules that `examine` has in their plain form, because a
call for each of a million records costs more than the rules. So a new rule goes into three places
here, and into the compiled form.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.shared.formats.delay_levels import DELAY_LEVELS_MS, SCHEDULE_TOPIC_RAW, due_ms
from penstock.shared.formats.properties import KEYS, TAGS, UNIQ_KEY, find_property
from penstock.shared.formats.queue_entry import ENTRY, tags_code
from penstock.shared.formats.record_check import Kind, examine, names_queue
from penstock.shared.formats.record_crc import Checksum, crc32, has_prop_crc, prop_crc_holds
from penstock.shared.formats.record_layout import (
    AT_BODY_CRC,
    AT_BODY_LENGTH_V4,
    AT_BODY_V4,
    AT_MAGIC,
    AT_PHYSICAL_OFFSET,
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
    AT_STORE_TIMESTAMP_V4,
    AT_SYS_FLAG,
    AT_TOTAL_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    SMALLEST_RECORD_BYTES,
    SYS_ANY_HOST_V6,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
    TOPIC_LENGTH_BYTES,
    body_span,
    fields_at,
    store_timestamp_ms,
)
from penstock.shared.loops.forms import ROW, Dispatched
from penstock.shared.loops.pure.queues import QueueNumbers

if TYPE_CHECKING:
    from penstock.shared.formats.index_chains import Ints, KeyBatch, Slots

# for IPv4 hosts; with IPv6 hosts the last field of either is elsewhere
_WALK_HEAD = fields_at(
    (AT_TOTAL_SIZE, "i"),
    (AT_MAGIC, "I"),
    (AT_QUEUE_ID, "i"),
    (AT_QUEUE_OFFSET, "q"),
    (AT_PHYSICAL_OFFSET, "q"),
    (AT_SYS_FLAG, "i"),
    (AT_STORE_TIMESTAMP_V4, "q"),
)
_USUAL = fields_at(
    (AT_TOTAL_SIZE, "i"),
    (AT_MAGIC, "I"),
    (AT_BODY_CRC, "i"),
    (AT_QUEUE_ID, "i"),
    (AT_QUEUE_OFFSET, "q"),
    (AT_PHYSICAL_OFFSET, "q"),
    (AT_SYS_FLAG, "i"),
    (AT_BODY_LENGTH_V4, "i"),
)
_I32 = struct.Struct(">i")
_TOPIC_AT_V4 = AT_BODY_V4 + TOPIC_LENGTH_BYTES[MAGIC_V1]  # of a usual record without a body


class Dispatch(NamedTuple):
    """What one record tells the consume queue. `entry` is its 20 bytes; b"" if it has none.

    `position` is the record's log offset and `size` its length, both in bytes.
    """

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

    `levels_ms` are the delays of the levels; `keys` collects what to index the records under. Ends
    at the first byte that does not begin a whole record; `blank_size` tells whether that is a
    blank. CRCs are not compared: the writer has done so.
    """
    codes: dict[bytes, int] = {}  # records share tags, and Java's hash loops over characters
    at, end = 0, len(view)
    unpack, length_at, entry = _WALK_HEAD.unpack_from, _I32.unpack_from, ENTRY.pack
    lead_tags, lead_keys = _TAGS[1], _KEYS[1]
    make = tuple.__new__  # faster than a named tuple's constructor, which is a Python function
    while end - at >= SMALLEST_RECORD_BYTES:
        size, magic, queue_id, queue_offset, physical, sys_flag, stored_ms = unpack(view, at)
        # Only its own offset tells a record from a copy of one, which a body may contain.
        if magic != MAGIC_V1 and magic != MAGIC_V2 or physical != position + at:
            return
        if not SMALLEST_RECORD_BYTES <= size <= end - at:  # first: it bounds all that follows
            return
        if sys_flag & SYS_ANY_HOST_V6:
            body_at, body_length = body_span(view, at)
            stored_ms = store_timestamp_ms(view, at)
        else:
            body_at = at + AT_BODY_V4
            (body_length,) = length_at(view, at + AT_BODY_LENGTH_V4)
        if not 0 <= body_length <= at + size - body_at:  # IPv6 hosts may reach past the end
            return
        # topic and properties are short: one copy, and the rest uses methods of bytes
        tail = bytes(view[body_at + body_length : at + size])
        lead = TOPIC_LENGTH_BYTES[magic]
        topic_end = lead + int.from_bytes(tail[:lead], "big", signed=True)
        start = topic_end + PROPERTIES_LENGTH_BYTES
        properties_length = int.from_bytes(tail[topic_end:start], "big", signed=True)
        if topic_end < lead or properties_length < 0 or start + properties_length != len(tail):
            return
        topic = tail[lead:topic_end]
        if not names_queue(topic, queue_id, queue_offset):  # no checksum covers the topic
            return
        # rfind is several times faster than `in`, and mostly there are no tags and no keys
        tags = _value(tail, start, _TAGS) if tail.rfind(lead_tags) > 0 else b""
        code = codes.get(tags)
        if code is None:
            code = codes[tags] = tags_code(tags.decode("utf-8", "replace"))  # as Java does it
        if sys_flag & SYS_TRANSACTION_MASK in _NOT_QUEUED:
            made = b""
        else:
            if topic == SCHEDULE_TOPIC_RAW:  # RocketMQ's entries there say when a message is due
                code = due_ms(stored_ms, tail[start:], code, levels_ms)
            made = entry(physical, size, code)
        if keys is not None and sys_flag & SYS_TRANSACTION_MASK != SYS_TRANSACTION_ROLLBACK:
            unique_key = _value(tail, start, _UNIQ_KEY)
            words = _value(tail, start, _KEYS) if tail.rfind(lead_keys) > 0 else b""
            keys.add(topic, unique_key, words, physical, stored_ms)
        yield make(Dispatch, (topic, queue_id, queue_offset, made, physical, size))
        at += size


def _value(tail: bytes, start: int, names: tuple[bytes, bytes]) -> bytes:
    """A property of a record, as `find_property` finds it, without cutting out the properties.

    They begin at `start` in `tail`, and `names` comes from `_names_of`; b"" if it is absent.
    """
    later, first = names
    # from the end, because the last of several duplicates counts
    at = tail.rfind(later, start)
    if at >= 0:
        at += len(later)
    elif tail.startswith(first, start):
        at = start + len(first)
    else:
        return b""
    stop = tail.find(b"\x02", at)
    value = tail[at:] if stop < 0 else tail[at:stop]
    # an empty value does not count; an earlier one may
    return value or find_property(tail[start:], first[:-1])


def _names_of(key: str) -> tuple[bytes, bytes]:
    """The beginning of a property that follows another one, and of the first one."""
    first = key.encode() + b"\x01"
    return b"\x02" + first, first


_TAGS, _KEYS, _UNIQ_KEY = (_names_of(key) for key in (TAGS, KEYS, UNIQ_KEY))
# RocketMQ's rule: half messages and rolled-back ones are in no queue, and their queue offset is 0.
# The index has all but rolled-back ones.
_NOT_QUEUED = (SYS_TRANSACTION_PREPARED, SYS_TRANSACTION_ROLLBACK)


def dispatch(
    view: memoryview,
    position: int,
    queues: QueueNumbers,
    levels_ms: tuple[int, ...] = DELAY_LEVELS_MS,
    keyed: bool = False,
) -> Dispatched:
    """`walk`, all at once: entries as rows of `queues`, and, if `keyed`, the index's as arrays.

    New queues get their numbers in `queues`, and keep them even if the caller then fails and asks
    for the same piece again.
    """
    rows = []
    end, count, last = 0, 0, -1
    keys = _key_batch() if keyed else None
    number, row = queues.number, ROW.pack
    for topic, queue_id, queue_offset, entry, record, size in walk(view, position, levels_ms, keys):
        end += size
        count += 1
        last = record
        # A record without an entry counts, too: the caller goes on after it.
        if entry:
            rows.append(row(number(topic, queue_id), queue_offset, entry))
    return Dispatched(end, count, last, b"".join(rows), None if keys is None else keys.entries())


def _key_batch() -> KeyBatch:
    # imported here because it brings numpy, for which an actor's start must not wait
    from penstock.shared.formats.index_chains import KeyBatch

    return KeyBatch()


def link_entries(slots: Slots, *entries: Any) -> tuple[bytes, int]:
    """`index_chains.link_entries`, imported only here because it imports numpy."""
    from penstock.shared.formats import index_chains

    return index_chains.link_entries(slots, *entries)


def move_slots(slots: Slots, hashes: Ints, first: int) -> None:
    from penstock.shared.formats import index_chains

    index_chains.move_slots(slots, hashes, first)


def record_starts(buffer: bytes | memoryview, position: int, checksum: Checksum) -> list[int]:
    """Where the whole records at the buffer's beginning start, and where the last one ends.

    Usual records are checked in place, with the rules of `examine` written out: for a million
    records, a call for each costs more than the checksum. Anything unusual goes to `examine`. So a
    rule that is too narrow here costs only time, but one that is too wide would take damage for a
    record.

    `position` is the log offset of the buffer's first byte. A buffer that begins with no whole
    record gives [0].
    """
    view, end, at, starts = memoryview(buffer), len(buffer), 0, [0]
    unpack = _USUAL.unpack_from
    check_both, check_record = checksum is Checksum.BOTH, checksum is Checksum.RECORD
    check_body = check_both or checksum is Checksum.BODY
    while end - at >= SMALLEST_RECORD_BYTES:
        size, magic, crc, queue_id, queue_offset, physical, sys_flag, body_length = unpack(
            buffer, at
        )
        next_at = at + size
        # The order matters: once the body's length is bounded by the size, and the size by the
        # buffer, the bytes of both other lengths can be read.
        if (
            magic == MAGIC_V1
            and physical == position + at
            and not sys_flag & SYS_ANY_HOST_V6
            and 0 <= body_length <= size - SMALLEST_RECORD_BYTES
            and next_at <= end
        ):
            topic_at = at + _TOPIC_AT_V4 + body_length
            topic_end = topic_at + buffer[topic_at - 1]
            properties_at = topic_end + PROPERTIES_LENGTH_BYTES
            if (
                properties_at <= next_at
                # both lengths are signed, so a high bit means a negative one
                and buffer[topic_at - 1] <= 0x7F
                and buffer[topic_end] <= 0x7F
                and properties_at + (buffer[topic_end] << 8 | buffer[topic_end + 1]) == next_at
                and names_queue(bytes(view[topic_at:topic_end]), queue_id, queue_offset)
                and (
                    not check_body
                    or body_length == 0  # RocketMQ stores 0 for it, and does not compare
                    or crc32(view[at + AT_BODY_V4 : topic_at - 1]) & 0x7FFFFFFF == crc
                )
                and (not check_record or prop_crc_holds(view, at, next_at))
                and not (check_both and has_prop_crc(view, next_at))  # examine compares it
            ):
                starts.append(next_at)
                at = next_at
                continue
        found, size, _ = examine(buffer, at, end, position=position + at, checksum=checksum)
        if found is not Kind.RECORD:
            break
        at += size
        starts.append(at)
    return starts
