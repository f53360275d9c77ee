"""Whether a queue is young. By RocketMQ's rule, no group skips a young queue's first messages."""

from __future__ import annotations

import os

from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.memory.positions import Positions
from penstock.shared.queue.reader import QueueReader

# What lies this near to the log's end counts as in memory, in percent of the machine's memory.
# RocketMQ calls it accessMessageInMemoryMaxRatio.
IN_MEMORY_PERCENT = 40
_NEAR_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * IN_MEMORY_PERCENT // 100


def is_young(queues: QueueReader, positions: Positions, slot: int) -> bool:
    """Whether a queue's very first message is still there, and lies in memory. Raises OSError."""
    first, end = queues.range(slot)
    if first or not end:
        return False
    position, _, _ = ENTRY.unpack(queues.entries(slot, 0, 1))
    return bool(positions["wrote"] - position <= _NEAR_BYTES)
