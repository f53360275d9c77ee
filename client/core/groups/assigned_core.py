"""A consumer core whose queues come and go while it runs: those that a member has claims on.

It begins with no queues and does not ask the broker for any: offsets come from the coordinator. A
pull names its queues when it leaves, so one that the reader holds misses a queue that is added or
resumed later. Such a pull is replaced, but only after `STALE_MS`: by then the reader is known to
hold it, so no answer on its way is thrown away.

If a topic is gone or may not be read at the moment, the core waits, as it does for a group that is
switched off: an operator may withdraw a permission from running members and give it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.client.core import log
from penstock.client.core.consumer_core import ConsumerCore
from penstock.client.core.message import Message, Part
from penstock.client.core.reading.records_at_hand import DIRECT_PULL_BYTES
from penstock.client.core.selection import Selection
from penstock.client.core.start import StartAt
from penstock.client.core.timeouts import REPEAT_MS
from penstock.shared.errors import (
    NoPermission,
    PenstockError,
    QueueNotFound,
    StoreDamaged,
    TopicNotFound,
)
from penstock.shared.wire.messages import Pulled

STALE_MS = 20
# After a refusal that may be temporary, nothing is asked for this long.
REFUSED_MS = 500
# A pull within this time of the last one, if that one was at least half filled, asks for twice as
# much, up to the second number, which is the most that the reader gives.
SOON_MS, MAX_PULL_BYTES = 50, 8 << 20


class Taken(NamedTuple):
    """Messages that have come from one queue, in order, all with offsets below `stop`."""

    queue_id: int
    messages: list[Message]
    size: int
    stop: int


class AssignedCore(ConsumerCore):
    """Reads the queues that it is told to, each from the given offset."""

    def __init__(
        self,
        endpoint: str,
        topic: str,
        *,
        selection: Selection | None,
        timeout_ms: int,
        max_body_bytes: int,
        direct: bool,
        everything: StartAt | None = None,
    ) -> None:
        """With `everything` it reads all queues of the topic, from that start on."""
        super().__init__(
            endpoint,
            topic,
            0,
            start=everything or StartAt(),
            queues=None if everything else (),
            selection=selection,
            timeout_ms=timeout_ms,
            max_body_bytes=max_body_bytes,
            direct=direct,
            hears_losses=True,
        )
        self.described = everything is None
        self._paused: set[int] = set()
        # the queues that the pull in flight names
        self._named_queues: set[int] = set()
        self._stale_since_ms = -1
        # after a refusal: until when nothing is asked, and whether the log says so
        self._rests_until_ms, self._is_told = 0, False
        # how many bytes one pull asks for, when it left, and how many bytes came since
        self._pull_bytes, self._pulled_ms, self._came_bytes = DIRECT_PULL_BYTES, 0, 0

    @property
    def _active(self) -> set[int]:
        return self._readable - self._paused

    @property
    def _all_asked(self) -> bool:
        return not self._active

    def _asked_cursors(self) -> dict[int, int]:
        self._named_queues = self._active
        self._stale_since_ms = -1
        return {queue_id: self.cursors[queue_id] for queue_id in self._named_queues}

    def _most_bytes(self, direct: bool) -> int:
        """Ask for more while handlers are fast: each answer costs a switch between the member's
        thread and the handlers'. A slow group has no use for large answers."""
        if not direct:
            return super()._most_bytes(direct)
        is_soon = self._now_ms - self._pulled_ms <= SOON_MS
        if is_soon and 2 * self._came_bytes >= self._pull_bytes:
            self._pull_bytes = min(2 * self._pull_bytes, MAX_PULL_BYTES)
        else:
            self._pull_bytes = DIRECT_PULL_BYTES
        self._pulled_ms, self._came_bytes = self._now_ms, 0
        return self._pull_bytes

    def add(self, queue_id: int, offset: int) -> None:
        """Read a queue from this offset on; one that is being read already moves there."""
        self.remove(queue_id)
        self.cursors[queue_id] = offset

    def remove(self, queue_id: int) -> None:
        """Forget a queue and what has come from it."""
        if self.cursors.pop(queue_id, None) is None:
            return
        self._rests_until_ms = 0  # the refusal may have been about this queue only
        self._paused.discard(queue_id)
        self._aside.forget(queue_id)
        self._at_hand.drop(queue_id)
        if queue_id in self._named_queues:
            # The answer would move a cursor that no longer exists. The other queues lose nothing:
            # their cursors have not moved.
            self._asked.close()
            self._unread = None

    def begin_at(self, offsets: Mapping[int, int]) -> None:
        """With `everything`, before the first request: where the known queues go on."""
        self._given = dict(offsets)

    def pause(self, queue_id: int, paused: bool) -> None:
        """Stop asking for this queue, or resume."""
        if paused:
            self._paused.add(queue_id)
        else:
            self._paused.discard(queue_id)

    def is_paused(self, queue_id: int) -> bool:
        return queue_id in self._paused

    def outgoing(self, now_ms: int) -> list[tuple[bytes, ...]]:
        self._now_ms = now_ms
        if now_ms < self._rests_until_ms:
            return []
        if not self._asked.is_open or self._active <= self._named_queues:
            self._stale_since_ms = -1  # also if the missing queue is paused again
        elif self._stale_since_ms < 0:
            self._stale_since_ms = now_ms
        elif now_ms - self._stale_since_ms >= STALE_MS and not self.has_unread:
            self._asked.close()
        return super().outgoing(now_ms)

    def wait_ms(self, now_ms: int) -> int:
        if now_ms < self._rests_until_ms:
            return self._rests_until_ms - now_ms
        if not self._asked.is_open:
            idle = self._all_asked or self._at_hand.size_bytes > 0 or self.has_unread
            return REPEAT_MS if idle else 0
        waits = super().wait_ms(now_ms)
        return min(waits, STALE_MS) if self._stale_since_ms >= 0 else waits

    def fetched(self, records: memoryview | None) -> None:
        # another thread may meanwhile have removed a queue, and the answer with it
        if self.has_unread:
            super().fetched(records)

    def take_queue(self) -> Taken | None:
        """The next part that has come, or None. Raises what `take` raises."""
        while self._at_hand:
            part = self._at_hand.first
            try:
                found = self._messages(part)
            except StoreDamaged as error:
                self._put_aside(part, error)
                continue
            except PenstockError:
                self._go_back()
                raise
            self._at_hand.pop()
            self._came_bytes += part.size
            return Taken(part.queue_id, found, part.size, part.stop)
        self._wait_where_refused()
        self._raise_errors()
        return None

    def _wait_where_refused(self) -> None:
        # The coordinator is about to say as well that the topic is gone or has fewer queues, except
        # to a member that broadcasts.
        gone = () if self._queues is None else (QueueNotFound, TopicNotFound)
        error = self._refused
        if not isinstance(error, (NoPermission, *gone)):
            return
        self._refused, self._rests_until_ms = None, self._now_ms + REFUSED_MS
        if isinstance(error, NoPermission) and not self._is_told:
            self._is_told = True
            log().warning("topic %s is waited for: %s", self.topic, error)

    def _pulled(self, answer: Pulled, payload: bytes | memoryview) -> None:
        self._is_told = False
        ends = [
            (part.queue_id, part.next_offset)
            for part in answer.slices
            if self.cursors[part.queue_id] > part.next_offset
        ]
        super()._pulled(answer, payload)
        for queue_id, end in ends:
            # An empty part: an offset past the queue's end must not stay committed, or the next
            # owner would miss what is stored meanwhile.
            self._at_hand.put(Part(queue_id, end, end, end, b"", (0, 0)))

    def _skip(self, queue_id: int, cursor: int, min_offset: int) -> None:
        super()._skip(queue_id, cursor, min_offset)
        # An empty part, so that the committed offset moves past the missing messages too.
        self._at_hand.put(Part(queue_id, min_offset, min_offset, min_offset, b"", (0, 0)))
