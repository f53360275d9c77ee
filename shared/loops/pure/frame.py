"""Frames of produced records: check them, and put them into the log, stamped. In pure Python.

The twin of what `compiled` has under the same names, and the reference for both; `active` chooses
the one that a process uses. Frames come from outside, so no length is trusted before it has been
bounded; the time and the offsets to stamp are arguments.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from isal import isal_zlib

from penstock.shared.errors import InvalidMessage, PropertiesTooLarge
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

# In a record that a producer sends these bits of sysFlag have to be as the broker wants them.
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
    """Check every record of a produce frame; where each begins, and the frame's length last.

    Raises InvalidMessage for the first record that is not whole, too large, damaged, of another
    topic or queue than its run, or has no room for the store host of `shape`, and for a frame that
    has more records than its runs, or fewer. Nothing is changed. All limits are in bytes.

    This is the form that has the words for a refusal: the compiled one gives a frame that it does
    not like to this one, and goes by what is decided here. Fields that the broker stamps are not
    looked at.
    """
    starts: list[int] = []
    at, end = 0, len(frame)
    view = memoryview(frame)
    own_bits = SYS_STORE_HOST_V6 if shape.store_host_bytes == HOST_V6_BYTES else 0
    # Three parts of sysFlag are not the sender's. The store host's bit, because the broker stamps
    # the host and the room for it must fit. Two of the three transaction types, as no consumer
    # would ever see the record; that of a committed message is as good as none. And that of a
    # batch in one record, as the queues here have no entries for such.
    kinds = own_bits, own_bits | SYS_TRANSACTION_COMMIT
    limits = _Limits(max_record_bytes, max_body_bytes, kinds)
    for topic, queue_id, count in runs:
        # Encoded once for a run: each record is then one look-up and one comparison of bytes.
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
    """What a broker takes: sizes in bytes, and the two values of the bits that are not a sender's,
    of an ordinary message and of a committed one."""

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
    """Check one record of a frame; where it ends. `starts` are those before it.

    The order is that of trust: each length is compared with what is known to be there before
    anything is read by it. The checksum comes last, because it costs a pass through the body.
    """
    left = len(view) - at
    if left < SMALLEST_RECORD_BYTES:
        raise _bad("a record is cut off", f"{left} bytes are left", starts)
    size: int
    size, magic, crc, queue, sys_flag = _CHECK_HEAD.unpack_from(view, at)
    # signed, so what is negative fails here too; from here on [at, at + size) is in the frame
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
        # The smallest record has room for IPv4 hosts only. The body's length stands in front of the
        # body, so this has to be known before that is read.
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
    # The run says what the topic is, so the record's own length of it is compared as a part of the
    # name, and never used. A negative length of the body is the first of these.
    if body_end < body_at or properties_at > record_end or view[body_end:topic_end] != name:
        raise _bad("a record is not for the topic of its run", names[MAGIC_V2][2:].decode(), starts)
    if _I16.unpack_from(view, topic_end)[0] != record_end - properties_at:
        # no signed 16 bits can say this length, so the sender has most likely put in too much
        if record_end - properties_at > MAX_PROPERTIES_BYTES:
            what = f"properties take more than {MAX_PROPERTIES_BYTES} bytes"
            raise _bad(what, record_end - properties_at, starts, PropertiesTooLarge)
        raise _bad("the lengths inside a record do not add up to its size", size, starts)
    body = view[body_at:body_end]
    if crc != (isal_zlib.crc32(body) & 0x7FFFFFFF if len(body) else 0):
        raise _bad("a body has another CRC than its record says", crc, starts)
    return record_end


def _names(topic: bytes) -> dict[int, bytes]:
    """The topic after its length, as each version of a record has it."""
    names = {MAGIC_V2: len(topic).to_bytes(2, "big") + topic}
    if len(topic) <= MAX_TOPIC_BYTES:  # the length byte of the first version is signed
        names[MAGIC_V1] = len(topic).to_bytes(1, "big") + topic
    return names


def _bad(
    what: str, value: object, starts: list[int], kind: type[InvalidMessage] = InvalidMessage
) -> InvalidMessage:
    # by its number, because the sender knows its records by their order and not by their bytes
    return kind(what, f"{value} in record {len(starts)} of the frame")


def check_properties(frame: bytes | memoryview, starts: list[int], prop_crc: bool) -> None:
    """Raise InvalidMessage for a message with a DELAY that is not in its form, a checksum where
    none belongs or is missing, and properties whose end could not be told from one that is torn.

    `starts` are the records' places, the frame's length last; `prop_crc` says whether each has to
    end in the room for a checksum. Most frames hold none of the names looked for, so one search
    through a frame's bytes usually does; where one occurs, in a body perhaps, records are taken
    apart.
    """
    # a memoryview can neither search nor count
    frame = bytes(frame)
    if prop_crc and not all(has_prop_crc(frame, end) for end in starts[1:]):
        raise InvalidMessage(
            "a record does not end in 20 bytes for its checksum",
            "the broker has enabled_append_prop_crc",
            "leave the room that the broker's Welcome asks for",
        )
    # A record without properties ends in a zero as well, that of their length: only a closer look
    # tells the two apart.
    if not all(frame[end - 1] for end in starts[1:]):
        _check_ends(frame, starts)
    # the room at each end has the name once; any more of it is a sender's
    own = len(starts) - 1 if prop_crc else 0
    if _DELAY + b"\x01" not in frame and frame.count(PROP_CRC_LEAD) == own:
        return
    view = memoryview(frame)
    for at, end in zip(starts, starts[1:], strict=False):
        properties = raw_properties(view[at:end])
        level = find_property(properties, _DELAY)
        # To RocketMQ level 0 is no delay; and one that has come keeps its DELAY, so that whoever
        # sends a delayed record to its own topic must not have it taken for one.
        if level and level != b"0" and not find_property(properties, _REAL_TOPIC):
            raise delay_refused(level.decode("utf-8", "replace"))
        if PROP_CRC_LEAD in b"\x02" + properties[: -PROP_CRC_BYTES if prop_crc else None]:
            raise InvalidMessage(
                "the sender has given a checksum of the record, which the broker makes",
                "property __CRC32#",
                "leave the property out",
            )


def _check_ends(frame: bytes, starts: list[int]) -> None:
    """Raise for properties that end in a zero byte: after a power failure they could not be told
    from a record whose end never reached the disk."""
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
    """Put the records [starts[0], starts[-1]) to the beginning of `target`, stamped.

    Each has its queue offset; `position` is the log offset of the first one. No record stands in
    `target` unstamped at any time: `target` may be the log itself, and this process may die at any
    instruction. Raises ValueError where `target` is too short, or where there are not as many queue
    offsets as records.
    """
    # Both checks come before the first byte is written, so an error leaves the log as it was.
    first, stop = starts[0], starts[-1]
    if len(queue_offsets) != len(starts) - 1:
        raise ValueError(f"{len(starts) - 1} records have {len(queue_offsets)} queue offsets")
    if stop - first > len(target):
        raise ValueError(f"{stop - first} bytes of records do not fit in {len(target)}")
    # All is stamped in a buffer of this process and copied at once. Stamping in the log itself, a
    # writer that is killed between two stores would leave records that look whole and are not.
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
