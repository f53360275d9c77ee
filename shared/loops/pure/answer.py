"""A broker's answer to a consumer: its messages, their bodies alone, or where they begin. Pure.

The twin of what `compiled` has under the same names, and the reference for both (see `active`).
"""

from __future__ import annotations

from array import array
from itertools import accumulate

from penstock.shared.formats.record_check import Kind, examine
from penstock.shared.formats.record_crc import Checksum, body_crc
from penstock.shared.formats.record_layout import (
    AT_BODY_CRC,
    AT_QUEUE_ID,
    AT_QUEUE_OFFSET,
    AT_TOTAL_SIZE,
    SMALLEST_RECORD_BYTES,
    SYS_COMPRESSED,
    fields_at,
)
from penstock.shared.loops.pure.message import Message

_PLACE = fields_at((AT_TOTAL_SIZE, "i"), (AT_QUEUE_ID, "i"), (AT_QUEUE_OFFSET, "q"))


def messages(
    payload: bytes | memoryview,
    place: tuple[int, int],
    queue_id: int | None,
    offsets: tuple[int, int],
    max_body_bytes: int,
    name: bytes,
) -> tuple[list[Message], int, bool]:
    """The messages of a part of a payload, where the last one ends, and whether one names `name`.

    With `queue_id` they are of that queue, and their offsets grow, from the first of `offsets` to
    below the second. Ends before the first record that does not fit or is not whole: the caller
    compares the end with that of the part, and has the words for what is wrong. Only properties of
    whole records are searched for `name`. Raises ValueError for a part that is not in the payload.

    `place` and the end are bytes of `payload`; `offsets` are queue offsets.
    """
    payload = memoryview(payload)
    (at, stop), (low, high) = place, offsets
    if not 0 <= at <= stop <= len(payload):
        raise ValueError(f"a part of {len(payload)} bytes is in them, {at} to {stop} is not")
    began, made = at, []
    while stop - at >= SMALLEST_RECORD_BYTES:
        size, of_queue, offset = _PLACE.unpack_from(payload, at)
        # Only the size is checked now: a message checks its other lengths when they are read.
        if not SMALLEST_RECORD_BYTES <= size <= stop - at:
            break
        if queue_id is not None:
            if of_queue != queue_id or not low <= offset < high:
                break
            # growing, but not dense: a filter leaves gaps
            low = offset + 1
        made.append(Message(payload[at : at + size], max_body_bytes))
        at += size
    # Nearly always one search through all bytes shows that no record has the name. Otherwise
    # each record is taken apart, because the name may be part of a body.
    named = name in bytes(payload[began:at]) and any(_names(each, name) for each in made)
    return made, at, named


def bodies(
    payload: bytes | memoryview,
    place: tuple[int, int],
    queue_id: int | None,
    offsets: tuple[int, int],
    max_body_bytes: int,
    name: bytes,
) -> tuple[list[bytes | Message], int, bool]:
    """The same, but only the bodies that were sent. Where a body is not stored as it was sent,
    because it is compressed or damaged, the message itself: its `body` decompresses, or raises."""
    made, at, named = messages(payload, place, queue_id, offsets, max_body_bytes, name)
    return [_plain_body(each) for each in made], at, named


def part_starts(
    payload: bytes | memoryview,
    place: tuple[int, int],
    queue_id: int | None,
    offsets: tuple[int, int],
    name: bytes,
) -> tuple[array[int], int, bool]:
    """The same, but only where each message begins in the payload; they are contiguous."""
    made, at, named = messages(payload, place, queue_id, offsets, 0, name)
    sizes = (len(each.record) for each in made)
    starts = array("q", accumulate(sizes, initial=place[0]))
    starts.pop()  # the end
    return starts, at, named


def _plain_body(message: Message) -> bytes | Message:
    record = message.record
    found, size, _ = examine(record, 0, len(record), checksum=Checksum.NONE)
    if found is not Kind.RECORD or size != len(record) or message.sys_flag & SYS_COMPRESSED:
        return message
    body = message.stored_body
    named = int.from_bytes(record[AT_BODY_CRC:AT_QUEUE_ID], "big")
    return body if body_crc(body) == named else message


def _names(message: Message, name: bytes) -> bool:
    """Whether the name is in the properties. No checksum is needed to find these."""
    record = message.record
    found, _, _ = examine(record, 0, len(record), checksum=Checksum.NONE)
    return found is Kind.RECORD and name in message._raw_properties
