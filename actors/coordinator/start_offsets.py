"""Where a group begins in a queue of which it has no offset: RocketMQ's rules, decided once.

    the queue's first message is there, and lies in memory     0: nothing of a young queue is lost
    otherwise by the member's rule: last                       the end; 0 in a topic of retries
                                    first                      the first message that is there
                                    timestamp                  the first one stored at or after it;
                                                               the end in a topic of retries

In RocketMQ the broker has the first rule, and members the others; they ask again at each start
until they have committed, so that "last" passes over what came in between. Here the answer is
written down with the first claim.
"""

from __future__ import annotations

import os

from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.memory.positions import Positions
from penstock.shared.names import RETRY_PREFIX
from penstock.shared.progress.group_journal import MemberRow
from penstock.shared.queue.reader import QueueReader

# Of the machine's memory: what lies this near to the log's end counts as in memory. RocketMQ's
# accessMessageInMemoryMaxRatio.
IN_MEMORY_PERCENT = 40


class StartOffsets:
    """Looks at queues; keeps nothing."""

    def __init__(self, queues: QueueReader, positions: Positions) -> None:
        self._queues, self._positions = queues, positions
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._near_bytes = memory * IN_MEMORY_PERCENT // 100

    def decide(self, member: MemberRow, topic: str, queue_id: int) -> int:
        """The offset. Raises StoreDamaged, or OSError where the queue cannot be read.

        A search by time reads some 20 messages; the other rules read one entry of the queue.
        """
        slot = self._queues.queues(topic).get(queue_id)
        if slot is None:
            return 0
        first, end = self._queues.range(slot)
        if not first and end and self._is_near(slot):
            return 0
        is_retry = topic.startswith(RETRY_PREFIX)
        if member.start == "first":
            return first
        if member.start == "timestamp":
            return end if is_retry else self._queues.offset_at(slot, member.start_timestamp_ms)
        return first if is_retry else end

    def _is_near(self, slot: int) -> bool:
        position, _, _ = ENTRY.unpack(self._queues.entries(slot, 0, 1))
        return bool(self._positions["wrote"] - position <= self._near_bytes)
