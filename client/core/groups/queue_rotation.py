"""Which of a member's queues hands out messages next.

Owns the order of the queues, and when the first one's turn ends. A turn lasts until a whole lot is
handed out: a lot is in the processor's cache, and a queue that is done early is fetched while
others are handled. A turn never lasts longer than `TURN_MS`, so that a queue with much to do and a
slow handler does not hold the others up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container

from penstock.client.core.groups.membership import Queue
from penstock.client.core.groups.process_queue import Handful, ProcessQueue

TURN_MS = 5
_NOT_BEGUN = 1 << 62


class QueueRotation:
    """Queues that take turns. Those in `paused` are passed over."""

    def __init__(self) -> None:
        self._queues: deque[ProcessQueue] = deque()
        self._ends_ms = _NOT_BEGUN

    def add(self, queue: ProcessQueue) -> None:
        self._queues.append(queue)

    def remove(self, queue: ProcessQueue) -> None:
        if queue is self._queues[0]:
            self._ends_ms = _NOT_BEGUN
        self._queues.remove(queue)

    def take(self, most: int, now_ms: int, paused: Container[Queue]) -> Handful | None:
        """Up to `most` messages of the queue whose turn it is; None if there is nothing to do."""
        if now_ms >= self._ends_ms:
            self._next()
        for _ in range(len(self._queues)):
            queue = self._queues[0]
            is_paused = (queue.topic, queue.queue_id) in paused
            if not is_paused and (handful := queue.take(most, now_ms)) is not None:
                self._ends_ms = min(self._ends_ms, now_ms + TURN_MS)
                if handful.stop == len(handful.lot.messages):
                    self._next()
                return handful
            self._next()
        return None

    def _next(self) -> None:
        self._queues.rotate(-1)
        self._ends_ms = _NOT_BEGUN

    def has_work(self, now_ms: int, paused: Container[Queue]) -> bool:
        """Whether `take` would give something."""
        return any(
            queue.has_work(now_ms) and (queue.topic, queue.queue_id) not in paused
            for queue in self._queues
        )
