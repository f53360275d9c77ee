"""The scheduler's loops: records of the wheel topic to timers, and what is due to copies.

The twin of what `compiled` has under the same names, and the reference for both; `active` chooses
the one that a process uses. `messaging` defines timers and their copies; here many are made at
once. Neither loop trusts an offset or a size: they must lead to a whole record of that size, which
names that offset as its own.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.shared.formats.queue_entry import BLANK_SIZE, ENTRY
from penstock.shared.formats.record_check import Kind, examine
from penstock.shared.formats.record_crc import Checksum
from penstock.shared.formats.record_layout import Shape, store_timestamp_ms
from penstock.shared.formats.record_outline import raw_properties
from penstock.shared.loops.forms import MESSAGE, RECALL, TIMER
from penstock.shared.messaging.delayed import (
    real_place,
    recall_key,
    recalled_key,
    timer_due_ms,
)
from penstock.shared.messaging.delivered import Copy, Waiting, delivered, taken_apart


def timer_entries(
    raw: bytes, segment: memoryview, base: int, known: int, delivered_ms: int
) -> bytes:
    """A TIMER for each timer that these queue entries lead to.

    `segment` has the bytes of the log from `base` on; entries that lead elsewhere get none. Records
    that say no time are left out, and so are those of the first `known` entries that are due up to
    `delivered_ms`.
    """
    found = []
    for number, (place, size, _) in enumerate(ENTRY.iter_unpack(raw)):
        if size == BLANK_SIZE or not base <= place < base + len(segment):
            continue
        record = _record(segment, place - base, size, place)
        if record is None:
            continue
        properties = raw_properties(record)
        due_ms = timer_due_ms(properties, store_timestamp_ms(record, 0))
        if due_ms >= 0 and (number >= known or due_ms > delivered_ms):
            kind = RECALL if recalled_key(properties) else MESSAGE
            found.append(TIMER.pack(due_ms, place, size, kind))
    return b"".join(found)


def delayed_copies(
    timers: bytes,
    segment: memoryview,
    base: int,
    shape: Shape,
    timed: bool,
    recalled: Collection[bytes],
) -> list[Copy | None]:
    """The copy to deliver for each TIMER's record; None where there is nothing to deliver.

    That is so if there is no such record, or it names no destination. For records of the wheel
    topic, which are `timed`, also if one says another time, takes a message back, or is taken back
    itself: its key (see `recall_key`) is in `recalled`.
    """
    return [
        _copy(segment, base, timer, shape, timed, recalled) for timer in TIMER.iter_unpack(timers)
    ]


def _copy(
    segment: memoryview,
    base: int,
    timer: tuple[int, int, int, int],
    shape: Shape,
    timed: bool,
    recalled: Collection[bytes],
) -> Copy | None:
    due_ms, place, size, _ = timer
    if not base <= place < base + len(segment):
        return None
    record = _record(segment, place - base, size, place)
    if record is None:
        return None
    waiting = taken_apart(record)
    if timed:
        if waiting.due_ms != due_ms or recalled_key(waiting.properties):
            return None
        if recalled and _is_recalled(waiting, recalled):
            return None
    return delivered(waiting, shape, timed)


def _is_recalled(waiting: Waiting, recalled: Collection[bytes]) -> bool:
    place = real_place(waiting.properties)
    if place is None:
        return False
    own = waiting.unique_key.decode("utf-8", "replace")
    return recall_key(place[0].decode("utf-8", "replace"), own).encode() in recalled


def _record(segment: memoryview, at: int, size: int, place: int) -> memoryview | None:
    """The whole record of this size there, if it names its own place in the log."""
    end = at + size
    if end > len(segment):
        return None
    kind, found, _ = examine(segment, at, end, position=place, checksum=Checksum.NONE)
    return segment[at:end] if kind is Kind.RECORD and found == size else None
