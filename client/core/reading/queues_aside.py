"""Queues of a consumer that cannot be read: left out for a while, while the others go on.

Each time a queue cannot be read, its error is raised once, when the others have nothing more. The
queue's cursor does not move: it is tried again at the same offset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from penstock.client.core import log
from penstock.shared.errors import QueueUnreadable, StoreDamaged

# Long enough that a loop which goes on after each error does not spin, and short enough that a file
# which is put back is found soon.
ASIDE_MS = 5000


class QueuesAside:
    """The unreadable queues of one consumer."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        # when each queue is tried again; and its error, until that is raised
        self._until_ms: dict[int, int] = {}
        self._why: dict[int, QueueUnreadable] = {}

    def __bool__(self) -> bool:
        return bool(self._until_ms)

    def put(
        self, queue_id: int, now_ms: int, words: Iterable[object], queue_offset: int | None = None
    ) -> None:
        """Leave this queue out for ASIDE_MS. `words` are what, value and hint of its error, and
        `queue_offset` the message that could not be read, if known."""
        what, value, hint = words
        error = QueueUnreadable(str(what), value, str(hint))
        error.queue_offset = queue_offset
        log().warning("queue %d of %s waits, the others go on: %s", queue_id, self._topic, error)
        self._until_ms[queue_id] = now_ms + ASIDE_MS
        self._why[queue_id] = error

    def put_error(self, queue_id: int, now_ms: int, error: StoreDamaged) -> None:
        """Like `put`, for an error that the consumer has met itself."""
        words = error.what, error.value, error.hint
        self.put(queue_id, now_ms, words, error.queue_offset)

    def forget(self, queue_id: int) -> None:
        """The queue is no longer read, or read from elsewhere."""
        self._until_ms.pop(queue_id, None)
        self._why.pop(queue_id, None)

    def others(self, queues: Collection[int], now_ms: int) -> set[int]:
        """Those of these queues that are not left out now."""
        self._until_ms = {at: until for at, until in self._until_ms.items() if until > now_ms}
        return set(queues) - self._until_ms.keys()

    def wait_ms(self, now_ms: int) -> int:
        """For how many ms no queue is tried again; at least one is aside."""
        return max(0, min(self._until_ms.values()) - now_ms)

    def raise_next(self) -> None:
        """Raises QueueUnreadable, once for each time that a queue could not be read."""
        if self._why:
            raise self._why.pop(next(iter(self._why)))
