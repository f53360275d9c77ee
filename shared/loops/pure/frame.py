"""Frames of produced records: check them, and put them into the log, stamped. In pure Python.

The twin of what `compiled` has under the same names, and the reference for both; `active` chooses
the one that a process uses. Frames come from outside, so no length is used before it has been
checked; the time and the offsets to stamp are arguments.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from isal import isal_zlib

from penstock.shared.errors import InvalidMessage, PropertiesTooLarge
from penstock.shared.formats.delay_levels import is_no_level
from penstock.shared.formats.properties import DELAY, REAL_TOPIC, find_property
from penstock.shared.formats.record_crc import (
    PROP_CRC_BYTES,
    PROP_CRC_LEAD,
    complete_prop_crc,
    has_prop_crc,
)
from penstock.shared.formats.record_layout import (
    AT_BODY_CRC,
    AT_BODY_V4,
    AT_MAGIC,
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
    AT_STORE_TIMESTAMP_V4,
    AT_SYS_FLAG,
    AT_SYS_FLAG_LOW,
    AT_TOTAL_SIZE,
    BODY_LENGTH_BYTES,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    SMALLEST_RECORD_BYTES,
    SYS_ANY_HOST_V6,
    SYS_BORN_HOST_V6,
    SYS_INNER_BATCH,
    SYS_STORE_HOST_V6,
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
    V6_EXTRA_BYTES,
    Shape,
    fields_at,
    v6_extra_bytes,
)
from penstock.shared.formats.record_outline import raw_properties
from penstock.shared.loops.forms import RunOf, Stamp
from penstock.shared.names import MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES
from penstock.shared.wire.produce_rules import delay_refused

_CHECK_HEAD = fields_at(
    (AT_TOTAL_SIZE, "i"),
    (AT_MAGIC, "I"),
    (AT_BODY_CRC, "i"),
    (AT_QUEUE_ID, "i"),
    (AT_SYS_FLAG, "i"),
)
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")
_OFFSETS = struct.Struct(">qq")  # queueOffset, physicalOffset
# storeTimestamp, storeHost
_STORED = {size: struct.Struct(f">q{size}s") for size in (HOST_V4_BYTES, HOST_V6_BYTES)}
_DELAY, _REAL_TOPIC = DELAY.encode(), REAL_TOPIC.encode()

# In a record from a producer, these bits of sysFlag have to be as the broker wants them.
_NOT_THE_SENDERS = SYS_STORE_HOST_V6 | SYS_TRANSACTION_MASK | SYS_INNER_BATCH
_NOT_THEIRS = (
    "sysFlag lacks the broker's store host bit, or is of a half or rolled-back message or of a "
    "batch in one record"
)


def check_frame(
    frame: bytes | bytearray | memoryview,
    runs: Sequence[RunOf],
    max_record_bytes: int,
    max_body_bytes: int = 1 << 31,
    shape: Shape = Shape(),  # noqa: B008 - a tuple
) -> list[int]:
    """Check every record of a produce frame. Returns where each begins, and the frame's length.

    Raises InvalidMessage for the first record that is not whole, too large, damaged, of another
    topic or queue than its run, or has no room for the store host of `shape`, and for a frame with
    more or fewer records than its runs name. Changes nothing. All limits are in bytes.

    Only this form has the words for a refusal: the compiled one passes a frame that it would refuse
    to this one, whose decision counts. Fields that the broker stamps are not checked.
    """
    starts: list[int] = []
    at, end = 0, len(frame)
    view = memoryview(frame)
    own_bits = SYS_STORE_HOST_V6 if shape.store_host_bytes == HOST_V6_BYTES else 0
    # The sender may not choose three parts of sysFlag. The store host's bit: the broker stamps the
    # host, and the room must fit. Two of the three transaction types: no consumer would ever see
    # the record; the type of a committed message has no effect. And the bit of a batch in one
    # record: the queues here have no entries for such.
    kinds = own_bits, own_bits | SYS_TRANSACTION_COMMIT
    limits = _Limits(max_record_bytes, max_body_bytes, kinds)
    for topic, queue_id, count in runs:
        # Encoded once for a run: then each record costs one look-up and one comparison of bytes.
        names, last = _names(topic), len(starts) + count
        while len(starts) < last:
            record_end = _check_record(view, at, queue_id, names, limits, starts)
            starts.append(at)
            at = record_end
    if at < end:
        what = f"the frame goes on behind the {len(starts)} records that its runs name"
        raise InvalidMessage(what, f"{end - at} bytes more")
    starts.append(at)
    return starts


class _Limits(NamedTuple):
    """What a broker accepts: sizes in bytes, and the two values of the bits that a sender may not
    choose, for an ordinary message and for a committed one."""

    max_record_bytes: int
    max_body_bytes: int
    own_bits: tuple[int, int]


def _check_record(
    view: memoryview,
    at: int,
    queue_id: int,
    names: dict[int, bytes],
    limits: _Limits,
    starts: list[int],
) -> int:
    """Check one record of a frame. Returns where it ends. `starts` are those before it.

    Each length is compared with what is known to be there before anything is read by it. The
    checksum comes last, because it costs a pass through the body.
    """
    left = len(view) - at
    if left < SMALLEST_RECORD_BYTES:
        raise _bad("a record is cut off", f"{left} bytes are left", starts)
    size: int
    size, magic, crc, queue, sys_flag = _CHECK_HEAD.unpack_from(view, at)
    # signed, so a negative size fails here too; from here on [at, at + size) is in the frame
    if not SMALLEST_RECORD_BYTES <= size <= left:
        raise _bad("a record does not end inside its frame", f"{size} bytes", starts)
    if size > limits.max_record_bytes:
        raise _bad(f"a record is larger than {limits.max_record_bytes} bytes", size, starts)
    if queue != queue_id:
        raise _bad(f"a record is not for queue {queue_id}, as its run says", queue, starts)
    if sys_flag & _NOT_THE_SENDERS not in limits.own_bits:
        raise _bad(_NOT_THEIRS, hex(sys_flag), starts)
    body_at, record_end = at + AT_BODY_V4, at + size
    if sys_flag & SYS_ANY_HOST_V6:
        # The smallest record has room only for IPv4 hosts. The body's length stands just before the
        # body, so this has to be checked before that is read.
        body_at += v6_extra_bytes(sys_flag)
        if body_at > record_end:
            raise _bad(
                "a record is too short for the hosts its sysFlag names", f"{size} bytes", starts
            )
    body_end = body_at + _I32.unpack_from(view, body_at - BODY_LENGTH_BYTES)[0]
    if body_end - body_at > limits.max_body_bytes:
        what = f"a body is larger than {limits.max_body_bytes} bytes"
        raise _bad(what, body_end - body_at, starts)
    name = names.get(magic)
    if name is None:
        raise _bad("a record does not begin with a magic code", f"{magic:08x}", starts)
    topic_end = body_end + len(name)
    properties_at = topic_end + PROPERTIES_LENGTH_BYTES
    # The run says what the topic is. So the record's own topic length is compared as a part of the
    # name, and never used. A negative length of the body fails the first of these comparisons.
    if body_end < body_at or properties_at > record_end or view[body_end:topic_end] != name:
        raise _bad("a record is not for the topic of its run", names[MAGIC_V2][2:].decode(), starts)
    if _I16.unpack_from(view, topic_end)[0] != record_end - properties_at:
        # no signed 16 bits can have this length, so most likely the sender has put in too much
        if record_end - properties_at > MAX_PROPERTIES_BYTES:
            what = f"properties take more than {MAX_PROPERTIES_BYTES} bytes"
            raise _bad(what, record_end - properties_at, starts, PropertiesTooLarge)
        raise _bad("the lengths inside a record do not add up to its size", size, starts)
    body = view[body_at:body_end]
    if crc != (isal_zlib.crc32(body) & 0x7FFFFFFF if len(body) else 0):
        raise _bad("a body has another CRC than its record says", crc, starts)
    return record_end


def _names(topic: bytes) -> dict[int, bytes]:
    """The topic after its length, as in each version of a record."""
    names = {MAGIC_V2: len(topic).to_bytes(2, "big") + topic}
    if len(topic) <= MAX_TOPIC_BYTES:  # the length byte of version 1 is signed
        names[MAGIC_V1] = len(topic).to_bytes(1, "big") + topic
    return names


def _bad(
    what: str, value: object, starts: list[int], kind: type[InvalidMessage] = InvalidMessage
) -> InvalidMessage:
    # by its number, because the sender knows its records by their order and not by their bytes
    return kind(what, f"{value} in record {len(starts)} of the frame")


def check_properties(frame: bytes | memoryview, starts: list[int], prop_crc: bool) -> None:
    """Raise InvalidMessage for a message with a DELAY in an ordinary record, for a checksum that is
    missing or that the sender has given, and for properties whose end would look torn.

    `starts` are the records' places, the frame's length last; `prop_crc` says whether each has to
    end in the room for a checksum. Most frames have none of the names that are searched for, so
    usually one search through a frame's bytes is enough. Where a name occurs, perhaps in a body,
    records are taken apart.
    """
    # a memoryview can neither search nor count
    frame = bytes(frame)
    if prop_crc and not all(has_prop_crc(frame, end) for end in starts[1:]):
        raise InvalidMessage(
            "a record does not end in 20 bytes for its checksum",
            "the broker has enabled_append_prop_crc",
            "leave the room that the broker's Welcome asks for",
        )
    # A record without properties ends in a zero, too, that of their length: only a closer look
    # tells the two apart.
    if not all(frame[end - 1] for end in starts[1:]):
        _check_ends(frame, starts)
    # the room at each end has the name once; any further one is a sender's
    own = len(starts) - 1 if prop_crc else 0
    if _DELAY + b"\x01" not in frame and frame.count(PROP_CRC_LEAD) == own:
        return
    view = memoryview(frame)
    for at, end in zip(starts, starts[1:], strict=False):
        properties = raw_properties(view[at:end])
        level = find_property(properties, _DELAY)
        # A message that was delivered keeps its DELAY: if it is sent on to its own topic, it must
        # not count as one that asks for a delay.
        if level and not is_no_level(level) and not find_property(properties, _REAL_TOPIC):
            raise delay_refused(level.decode("utf-8", "replace"))
        if PROP_CRC_LEAD in b"\x02" + properties[: -PROP_CRC_BYTES if prop_crc else None]:
            raise InvalidMessage(
                "the sender has given a checksum of the record, which the broker makes",
                "property __CRC32#",
                "leave the property out",
            )


def _check_ends(frame: bytes, starts: list[int]) -> None:
    """Raise for properties that end in a zero byte: after a power failure they would look like a
    record whose end never reached the disk."""
    view = memoryview(frame)
    for at, end in zip(starts, starts[1:], strict=False):
        if raw_properties(view[at:end]).endswith(b"\0"):
            raise InvalidMessage(
                "the properties end in a zero byte", None, "end each property with 0x02"
            )


def put_stamped(
    target: memoryview | bytearray,
    frame: bytes | memoryview,
    starts: list[int],
    queue_offsets: list[int],
    position: int,
    stamp: Stamp,
) -> None:
    """Put the records [starts[0], starts[-1]) at the beginning of `target`, stamped.

    Each gets its queue offset; `position` is the log offset of the first one. At no time is there
    an unstamped record in `target`: it may be the log itself, and this process may die at any
    instruction. Raises ValueError where `target` is too short, or where there are not as many queue
    offsets as records.
    """
    # Both checks come before the first byte is written, so an error leaves the log as it was.
    first, stop = starts[0], starts[-1]
    if len(queue_offsets) != len(starts) - 1:
        raise ValueError(f"{len(starts) - 1} records have {len(queue_offsets)} queue offsets")
    if stop - first > len(target):
        raise ValueError(f"{stop - first} bytes of records do not fit in {len(target)}")
    # Everything is stamped in a buffer of this process and copied at once. If a writer stamped in
    # the log itself and was killed between two stores, records there would look whole and not be.
    stamped = bytearray(frame[first:stop])
    offsets, stored = _OFFSETS.pack_into, _STORED[len(stamp.host)].pack_into
    for number, queue_offset in enumerate(queue_offsets):
        at = starts[number] - first
        offsets(stamped, at + AT_QUEUE_OFFSET, queue_offset, position + at)
        # the born host comes before the store time; the room for the store host was checked before
        if stamped[at + AT_SYS_FLAG_LOW] & SYS_BORN_HOST_V6:
            at += V6_EXTRA_BYTES
        stored(stamped, at + AT_STORE_TIMESTAMP_V4, stamp.stored_ms, stamp.host)
        # last, because it covers what was stamped
        if stamp.prop_crc:
            complete_prop_crc(stamped, starts[number] - first, starts[number + 1] - first)
    target[: len(stamped)] = stamped
