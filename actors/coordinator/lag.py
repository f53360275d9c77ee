"""How far a group is from the end of a queue: in messages, in bytes, in time.

The time is that since the oldest message was stored that is not done. Bytes are counted by the
entries of the queue, up to MAX_ENTRIES of them; what is beyond that is not known.
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
        low, high = self.range(topic, queue_id)
        return max(0, high - max(low, offset))

    def of(self, topic: str, queue_id: int, offset: int, now_ms: int) -> tuple[int, int]:
        """(age in ms, bytes); UNKNOWN where the files do not say it."""
        slot = self._queues.queues(topic).get(queue_id)
        if slot is None:
            return 0, 0
        low, high = self._queues.range(slot)
        first = max(low, offset)
        if first >= high:
            return 0, 0
        try:
            raw = self._queues.entries(slot, first, min(high, first + MAX_ENTRIES))
            sizes = [size for _, size, _ in ENTRY.iter_unpack(raw) if size != BLANK_SIZE]
            position, size, _ = ENTRY.unpack_from(raw)
            is_lost = size == BLANK_SIZE or self._queues.is_damaged(position, size)
            age_ms = UNKNOWN
            if not is_lost:
                stored_ms = store_timestamp_ms(self._queues.view(position, position + size), 0)
                age_ms = max(0, now_ms - stored_ms)
        except (OSError, StoreDamaged) as error:
            if isinstance(error, OSError) and error.errno in RESOURCE_EXHAUSTED:
                raise
            return UNKNOWN, UNKNOWN
        return age_ms, sum(sizes) if high - first <= MAX_ENTRIES else UNKNOWN
