"""How far a group is from the end of a queue: in messages, in bytes, in time.

The time is the age of the oldest message that is not done. Bytes are summed over the queue's
entries; with more than MAX_ENTRIES of them the number is not known.
"""

from __future__ import annotations

import struct

from penstock.shared.errors import RESOURCE_EXHAUSTED, StoreDamaged
from penstock.shared.formats.queue_entry import BLANK_SIZE, ENTRY
from penstock.shared.formats.record_layout import store_timestamp_ms
from penstock.shared.queue.reader import QueueReader

MAX_ENTRIES = 65_536
UNKNOWN = -1
assert struct.calcsize("q") == 8, "entries are read as they are packed"


class Lag:
    """Looks at queues; keeps nothing."""

    def __init__(self, queues: QueueReader) -> None:
        self._queues = queues

    def range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """A queue's first offset, and its next one."""
        slot = self._queues.queues(topic).get(queue_id)
        return (0, 0) if slot is None else self._queues.range(slot)

    def messages(self, topic: str, queue_id: int, offset: int) -> int:
        """How many messages are there and not done; what has expired is not counted."""
        _, first, high = self._undone(topic, queue_id, offset)
        return max(0, high - first)

    def of(self, topic: str, queue_id: int, offset: int, now_ms: int) -> tuple[int, int]:
        """(age in ms, bytes); UNKNOWN where the files do not say it."""
        return self.age_ms(topic, queue_id, offset, now_ms), self.size(topic, queue_id, offset)

    def size(self, topic: str, queue_id: int, offset: int) -> int:
        """Bytes of the log that are not done; UNKNOWN as above, and for too many messages."""
        slot, first, high = self._undone(topic, queue_id, offset)
        if high - first > MAX_ENTRIES:
            return UNKNOWN
        total = 0
        try:
            while first < high:
                # a read ends where a segment of the queue does
                raw = self._queues.entries(slot, first, high)
                total += sum(size for _, size, _ in ENTRY.iter_unpack(raw) if size != BLANK_SIZE)
                first += len(raw) // ENTRY.size
        except (OSError, StoreDamaged) as error:
            return _unknown(error)
        return total

    def age_ms(self, topic: str, queue_id: int, offset: int, now_ms: int) -> int:
        """The age alone, which takes one entry and not thousands; UNKNOWN as above."""
        slot, first, high = self._undone(topic, queue_id, offset)
        if first >= high:
            return 0
        try:
            return self._age_ms(self._queues.entries(slot, first, first + 1), now_ms)
        except (OSError, StoreDamaged) as error:
            return _unknown(error)

    def _undone(self, topic: str, queue_id: int, offset: int) -> tuple[int, int, int]:
        """A queue's slot, and the range of offsets in it that are not done."""
        slot = self._queues.queues(topic).get(queue_id)
        if slot is None:
            return 0, 0, 0
        low, high = self._queues.range(slot)
        return slot, max(low, offset), high

    def _age_ms(self, raw: bytes, now_ms: int) -> int:
        """The age of the message that the first of these entries leads to."""
        position, size, _ = ENTRY.unpack_from(raw)
        if size == BLANK_SIZE or self._queues.is_damaged(position, size):
            return UNKNOWN
        stored_ms = store_timestamp_ms(self._queues.view(position, position + size), 0)
        return max(0, now_ms - stored_ms)


def _unknown(error: OSError | StoreDamaged) -> int:
    """Raises the error if this process lacks a resource: that is no fault of the queue."""
    if isinstance(error, OSError) and error.errno in RESOURCE_EXHAUSTED:
        raise error
    return UNKNOWN
