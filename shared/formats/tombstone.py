"""What a repair puts in the place of damage: records that RocketMQ's scan accepts.

    tombstone   in the queue of a lost message, with its queue offset: the queue stays dense, and
                its consumers learn of the loss from the property PENSTOCK_LOST
    filler      for bytes that no queue misses: a rolled-back half message, which is in no queue

Both have bodies of zeros, just long enough for the record to end where it has to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.shared.errors import StoreDamaged
from penstock.shared.formats.delay_levels import SCHEDULE_TOPIC
from penstock.shared.formats.properties import (
    DELAY,
    LOST,
    LOST_MARK,
    REAL_QID,
    REAL_TOPIC,
    encode_properties,
)
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_layout import (
    BLANK,
    MAGIC_BLANK,
    SMALLEST_RECORD_BYTES,
    SYS_TRANSACTION_ROLLBACK,
)
from penstock.shared.layout import BLANK_HEADER_BYTES

# RocketMQ's default for its largest message, so that no reader of records refuses a filler.
MOST_FILLER_BYTES = 4 << 20
# A record without a topic counts as damaged, so a filler's topic has at least one character.
_LEAST_FILLER_BYTES = SMALLEST_RECORD_BYTES + 1


class LostMessage(NamedTuple):
    """A slot of a queue whose message the log no longer has."""

    topic: str
    queue_id: int
    queue_offset: int


def is_replacement(record: Record) -> bool:
    """Whether a repair has put this record there, as far as that can be told."""
    is_filler = record.sys_flag == SYS_TRANSACTION_ROLLBACK and LOST.startswith(record.topic)
    return LOST_MARK in record.properties or is_filler and not any(record.body)


def smallest_tombstone_bytes(lost: LostMessage) -> int:
    """The size of its smallest possible tombstone, in bytes: without a body or any property.

    Its hosts are IPv4 and blank: those of the message are lost with it.
    """
    return len(encode_record(Record(lost.topic, b"")))


def lay_out(
    position: int, size: int, to_segment_end: bool, lost: Sequence[LostMessage], stored_ms: int
) -> list[bytes]:
    """Pieces for the log from `position` on, `size` bytes in all. Raises StoreDamaged if none fit.

    The tombstones of `lost` come first, in this order, then what fills the rest. `to_segment_end`
    says that the damage ends where its segment does. Only there may a blank stand, since a scan
    goes on from it in the next segment; and there one has to stand, since RocketMQ cuts the log
    after a segment without a blank. Each segment had one, so there is room for its header.
    `stored_ms` is the store time of all records.
    """
    least = [smallest_tombstone_bytes(each) for each in lost]
    spare = size - sum(least)
    has_blank = to_segment_end and spare >= BLANK_HEADER_BYTES
    if spare < 0 or not lost and size < _LEAST_FILLER_BYTES and not has_blank:
        raise StoreDamaged(
            "the damage is too small for the records that should replace it",
            f"{size} bytes at {position} for {len(lost)} messages",
            "restore the segment from a copy",
        )
    # Properties use what the smallest forms of all tombstones leave over: a tombstone without one
    # is better than a gap in a queue, which RocketMQ does not accept.
    pieces, at = list[bytes](), position
    spare -= BLANK_HEADER_BYTES if has_blank else 0
    for number, each in enumerate(lost):
        properties = _properties(each)
        taken = least[number] + (len(properties) if len(properties) <= spare else 0)
        left = spare - (taken - least[number])
        last = number == len(lost) - 1
        if last and left <= MOST_FILLER_BYTES and not has_blank:
            # The last one takes what is left as its body: so a message that is lost alone keeps its
            # size, and no filler is needed.
            taken, left = taken + left, 0
        spare = left
        pieces.append(_tombstone(each, at, taken, stored_ms))
        at += taken
    if has_blank:
        # The rest is zeroed, so that a search for records does not find remains of the damage.
        spare += BLANK_HEADER_BYTES
        return [*pieces, BLANK.pack(spare, MAGIC_BLANK).ljust(spare, b"\0")]
    while spare:
        taken = spare
        if spare > MOST_FILLER_BYTES:  # the last one must not be too small for a record
            taken = min(MOST_FILLER_BYTES, spare - _LEAST_FILLER_BYTES)
        pieces.append(_filler(at, taken, stored_ms))
        at, spare = at + taken, spare - taken
    return pieces


def _properties(lost: LostMessage) -> bytes:
    words = {LOST: "true"}
    if lost.topic == SCHEDULE_TOPIC:  # RocketMQ delivers it to REAL_TOPIC when it is due
        words |= {DELAY: str(lost.queue_id + 1), REAL_TOPIC: LOST, REAL_QID: "0"}
    return encode_properties(words)


def _tombstone(lost: LostMessage, position: int, size: int, stored_ms: int) -> bytes:
    least, properties = smallest_tombstone_bytes(lost), _properties(lost)
    # Then lay_out had no room for the property: the body was given less than it takes.
    if least + len(properties) > size:
        properties = b""
    return encode_record(
        Record(
            lost.topic,
            bytes(size - least - len(properties)),
            properties,
            queue_id=lost.queue_id,
            queue_offset=lost.queue_offset,
            physical_offset=position,
            store_timestamp_ms=stored_ms,
            born_timestamp_ms=stored_ms,
        )
    )


def _filler(position: int, size: int, stored_ms: int) -> bytes:
    """A record of exactly this size that is in no queue: rolled back, so it is not dispatched."""
    topic = LOST[: min(len(LOST), size - SMALLEST_RECORD_BYTES)]
    return encode_record(
        Record(
            topic,
            bytes(size - SMALLEST_RECORD_BYTES - len(topic)),
            physical_offset=position,
            sys_flag=SYS_TRANSACTION_ROLLBACK,
            store_timestamp_ms=stored_ms,
            born_timestamp_ms=stored_ms,
        )
    )
