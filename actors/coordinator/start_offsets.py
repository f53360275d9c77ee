"""Where a group begins in a queue in which it has no offset: RocketMQ's rules, decided once.

    the queue's first message is there, and lies in memory     0: nothing of a young queue is lost
    otherwise by the member's rule: last                       the end; 0 in a topic of retries
                                    first                      the first message that is there
                                    timestamp                  the first one stored at or after it;
                                                               the end in a topic of retries
                                    member                     none: the member decides, and its
                                                               first commit says it

In RocketMQ the broker has the first rule, and members the others. They ask again at each start
until they have committed, so that "last" skips what came in between. Here the answer is written
down with the first claim. RocketMQ's clients do not send their time, and so are members that
decide themselves.
"""

from __future__ import annotations

from penstock.actors.coordinator.claim_spans import NONE
from penstock.shared.memory.positions import Positions
from penstock.shared.names import RETRY_PREFIX
from penstock.shared.progress.group_journal import MemberRow
from penstock.shared.queue.reader import QueueReader
from penstock.shared.queue.young import is_young


class StartOffsets:
    """Looks at queues; keeps nothing."""

    def __init__(self, queues: QueueReader, positions: Positions) -> None:
        self._queues, self._positions = queues, positions

    def decide(self, member: MemberRow, topic: str, queue_id: int) -> int:
        """The offset, or NONE. Raises StoreDamaged, or OSError if the queue cannot be read.

        A search by time reads some 20 messages; the other rules read one entry of the queue.
        """
        slot = self._queues.queues(topic).get(queue_id)
        if slot is None:
            return 0
        first, end = self._queues.range(slot)
        if is_young(self._queues, self._positions, slot):
            return 0
        if member.start == "member":
            return NONE
        is_retry = topic.startswith(RETRY_PREFIX)
        if member.start == "first":
            return first
        if member.start == "timestamp":
            return end if is_retry else self._queues.offset_at(slot, member.start_timestamp_ms)
        return first if is_retry else end
