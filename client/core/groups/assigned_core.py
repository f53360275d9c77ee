"""A consumer core whose queues come and go while it runs: those that a member has claims on.

It begins without any queue and asks nobody what there is: offsets come from the coordinator. Which
queues a pull names is decided when it leaves, so a pull that the reader holds for some queues does
not see one that is added, or goes on. After `STALE_MS` it is replaced: by then it is known to be
held, and what an answer brings is not thrown away.

A topic that may not be read at the moment, or is gone, is waited for, as a group is that is
switched off: an operator may take a right away under members that run, and give it back.
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
# After a refusal that is waited for, nothing is asked for this long.
REFUSED_MS = 500
# A pull that follows the last one within this time, and that was answered with much, asks for more,
# up to the second number: the reader gives no more.
SOON_MS, MAX_PULL_BYTES = 50, 8 << 20


class Taken(NamedTuple):
    """What has come of one queue: messages in order, all with offsets below `stop`."""

    queue_id: int
    messages: list[Message]
    size: int
    stop: int


class AssignedCore(ConsumerCore):
    """Reads the queues that it is told to, each from where it is told."""

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
        """With `everything` it reads all queues of the topic, from there on."""
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
        # what the pull that is on its way names
        self._named_queues: set[int] = set()
        self._stale_since_ms = -1
        # after a refusal; and whether the log says that it waits
        self._rests_until_ms, self._is_told = 0, False
        # what one pull asks for, when it left, and what has come since
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
        """The more at once the sooner the handlers are done: each answer costs the member's thread
        and the handlers' a change of places, and a slow group has no use for much."""
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
        """Read a queue from there on; a queue that is read already goes there."""
        self.remove(queue_id)
        self.cursors[queue_id] = offset

    def remove(self, queue_id: int) -> None:
        """Forget a queue, and what has come of it."""
        if self.cursors.pop(queue_id, None) is None:
            return
        self._rests_until_ms = 0  # the others were not meant
        self._paused.discard(queue_id)
        self._aside.forget(queue_id)
        self._at_hand.drop(queue_id)
        if queue_id in self._named_queues:
            # Its answer would move a cursor that is not there. The others' cursors have not moved.
            self._asked.close()
            self._unread = None

    def begin_at(self, offsets: Mapping[int, int]) -> None:
        """With `everything`, before the first request: where queues that are known go on."""
        self._given = dict(offsets)

    def pause(self, queue_id: int, paused: bool) -> None:
        """Ask for nothing more of this queue, or go on."""
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
            self._stale_since_ms = -1  # also where what was missing is paused again
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
        # meanwhile another thread may have removed a queue, and with it the answer
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
        # that the topic is gone, or has fewer queues, the coordinator is about to say as well; of
        # one that broadcasts it says nothing
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
            # without messages, but an offset past the queue's end is not to stay committed: whoever
            # comes next would not be given what is stored meanwhile
            self._at_hand.put(Part(queue_id, end, end, end, b"", (0, 0)))

    def _skip(self, queue_id: int, cursor: int, min_offset: int) -> None:
        super()._skip(queue_id, cursor, min_offset)
        # without messages, but what is committed has to pass them too
        self._at_hand.put(Part(queue_id, min_offset, min_offset, min_offset, b"", (0, 0)))
