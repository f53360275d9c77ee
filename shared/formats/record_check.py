"""What stands at a place of the log: a whole record, filler, nothing, or damage. Pure functions.

`examine` decides it for one place, with all the rules in their plain form. The loops that walk over
millions of records have the same rules written out (`loops/pure/walk.py` and its compiled twin),
and ask here about whatever looks unusual to them.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable

from penstock.shared.errors import OffsetOutOfRange, StoreDamaged
from penstock.shared.formats.record_crc import Checksum, body_crc, has_prop_crc, prop_crc_holds
from penstock.shared.formats.record_layout import (
    AT_BODY_CRC,
    AT_PHYSICAL_OFFSET,
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
    AT_SYS_FLAG,
    BLANK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    SMALLEST_RECORD_BYTES,
    TOPIC_LENGTH_BYTES,
    body_span,
    fields_at,
)
from penstock.shared.formats.record_outline import raw_properties
from penstock.shared.layout import MAX_QUEUE_OFFSET
from penstock.shared.names import MAX_RETRY_TOPIC_BYTES, STORED_TOPIC_CHARACTERS

# The reason for a record that may be whole: it was written without the checksum that is required.
NO_RECORD_CRC = "record without a CRC of its own"

# Reads this many bytes of the log from an offset on; fewer where its segment or the visible part
# ends; where there is nothing, it returns no bytes or raises.
LogAt = Callable[[int, int], memoryview | bytes]

_QUEUE = fields_at((AT_QUEUE_ID, "i"), (AT_QUEUE_OFFSET, "q"))
_I16 = struct.Struct(">h")
_TOPIC_BYTES = "".join(sorted(STORED_TOPIC_CHARACTERS)).encode()
_NO_TOPICS = (b"", b".", b"..")


class Kind(enum.Enum):
    """What stands at a place in the log."""

    RECORD = "record"  # one whole record
    BLANK = "blank"  # filler up to the segment's end
    END = "end"  # zeros: nothing was written here
    DAMAGED = "damaged"  # something else, or a record that is cut off


def examine(
    buffer: bytes | memoryview,
    at: int,
    end: int,
    *,
    position: int | None = None,
    checksum: Checksum = Checksum.BODY,
) -> tuple[Kind, int, str]:
    """What stands at `at`, its size in bytes, and the reason if it is DAMAGED.

    `end` is the first index that is not readable; `position` is the log offset that the record must
    name as its own, where that is known. No length is used before it has been checked.
    """
    left = end - at
    if left < BLANK.size:
        return Kind.END if not any(buffer[at:end]) else Kind.DAMAGED, 0, "no room for a header"
    size, magic = BLANK.unpack_from(buffer, at)
    if magic == MAGIC_BLANK:
        if BLANK.size <= size <= left:
            return Kind.BLANK, size, ""
        return Kind.DAMAGED, 0, f"blank of {size} bytes where {left} are left"
    if magic not in (MAGIC_V1, MAGIC_V2):
        # Eight zero bytes are the end, whatever follows: no record or blank begins so, and looking
        # further would read the rest of a sparse segment.
        if size == 0 and magic == 0:
            return Kind.END, 0, ""
        return Kind.DAMAGED, 0, f"magic {magic:08x}"
    if not SMALLEST_RECORD_BYTES <= size <= left:
        return Kind.DAMAGED, 0, f"record of {size} bytes where {left} are left"
    # Checked before what needs the whole record, so that a caller that has only its beginning gets
    # the same answer.
    if position is not None:
        # A copy of a record in another place (in a body, or in a segment that was restored under
        # another name) is whole in every other respect; only this tells it apart.
        named = int.from_bytes(buffer[at + AT_PHYSICAL_OFFSET : at + AT_SYS_FLAG], "big")
        if named != position:
            return Kind.DAMAGED, 0, f"record names {named} as its own offset"
    # The lengths come before the checksums, which cover what the lengths span.
    reason = _contradiction(buffer, at, size, magic)
    if reason:
        return Kind.DAMAGED, 0, reason
    if checksum in (Checksum.BODY, Checksum.BOTH) and not _crc_holds(buffer, at):
        return Kind.DAMAGED, 0, "body CRC differs"
    if checksum is Checksum.BOTH and has_prop_crc(buffer, at + size):
        checksum = Checksum.RECORD
    if checksum is Checksum.RECORD and not prop_crc_holds(buffer, at, at + size):
        # Zeros where properties should end are what a torn write leaves of the checksum. Without
        # zeros and without a checksum, the record is from before the checksum was switched on.
        ends_in_zeros = raw_properties(memoryview(buffer)[at : at + size]).endswith(b"\0")
        torn = ends_in_zeros or has_prop_crc(buffer, at + size)
        return Kind.DAMAGED, 0, "record CRC differs" if torn else NO_RECORD_CRC
    return Kind.RECORD, size, ""


def names_queue(topic: bytes, queue_id: int, queue_offset: int) -> bool:
    """Whether a record can be in this queue, which has the topic's name in the path of its files.

    RocketMQ's rule for users' topics is narrower, but it names topics of its own after clusters.
    """
    if not 0 <= queue_offset < MAX_QUEUE_OFFSET or queue_id < 0 or topic in _NO_TOPICS:
        return False
    return len(topic) <= MAX_RETRY_TOPIC_BYTES and not topic.translate(None, _TOPIC_BYTES)


def jumps(queue_offset: int, end: int, position: int, log_start: int) -> bool:
    """Whether a record at `position` cannot have this queue offset, where `end` was expected: the
    log has no room for the messages in between. No checksum covers that number."""
    return queue_offset - end > (position - log_start) // SMALLEST_RECORD_BYTES


def _contradiction(buffer: bytes | memoryview, at: int, size: int, magic: int) -> str:
    """Why the lengths inside do not add up to `size`, or no queue is named; "" if all is well."""
    record_end = at + size
    body_at, body_length = body_span(buffer, at)
    length_bytes = TOPIC_LENGTH_BYTES[magic]
    topic_at = body_at + body_length + length_bytes
    if body_length < 0 or topic_at + PROPERTIES_LENGTH_BYTES > record_end:
        return f"body of {body_length} bytes in a record of {size}"
    # signed, like every other length: RocketMQ reads a V1 topic of 128 bytes as one of -128
    topic_length = int.from_bytes(buffer[topic_at - length_bytes : topic_at], "big", signed=True)
    topic_end = topic_at + topic_length
    properties_at = topic_end + PROPERTIES_LENGTH_BYTES
    if topic_length < 0 or properties_at > record_end:
        return f"topic of {topic_length} bytes in a record of {size}"
    (properties_length,) = _I16.unpack_from(buffer, topic_end)
    if properties_length < 0 or properties_at + properties_length != record_end:
        return f"lengths inside do not add up to the record's {size} bytes"
    topic = bytes(buffer[topic_at:topic_end])
    queue_id, queue_offset = _QUEUE.unpack_from(buffer, at)
    if not names_queue(topic, queue_id, queue_offset):
        return f"no record is of queue {queue_id} of {ascii(topic)}, offset {queue_offset}"
    return ""


def _crc_holds(buffer: bytes | memoryview, at: int) -> bool:
    body_at, body_length = body_span(buffer, at)
    stored = int.from_bytes(buffer[at + AT_BODY_CRC : at + AT_QUEUE_ID], "big", signed=True)
    body = memoryview(buffer)[body_at : body_at + body_length]
    # RocketMQ stores 0 for an empty body, and never checks it
    return body_length == 0 or body_crc(body) == stored


def record_at(log_at: LogAt, offset: int) -> memoryview | None:
    """The whole record that begins at a log offset, its checksum compared; None if there is none.

    The offset may come from anywhere: nothing that is read is trusted before it is checked.
    """
    try:
        head = log_at(offset, 4)
        size = int.from_bytes(head, "big", signed=True)
        raw = memoryview(log_at(offset, size)) if len(head) == 4 and size > 0 else memoryview(b"")
    except (FileNotFoundError, OffsetOutOfRange, StoreDamaged):
        return None
    found, size, _ = examine(raw, 0, len(raw), position=offset)
    return raw[:size] if found is Kind.RECORD else None
