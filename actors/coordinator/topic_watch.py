"""How many read queues topics have, and which topics were deleted, by the writer's two files.

It checks config/topics.json now and then, by inode and time, since the writer replaces the whole
file. A file of many topics takes a while to read, so each read is followed by a pause of many times
its length, even while the file changes all the time. So a topic may be deleted and created again
between two looks, or while no coordinator runs, and only penstock/deleted-topics.json shows that it
is another one. Up to which deletion groups have forgotten their offsets is itself an offset, of a
group of the broker's own: it is saved in the journal, and in RocketMQ's file, with the changes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.actors.coordinator.claims import Claims
from penstock.shared.errors import StoreDamaged
from penstock.shared.memory.positions import Positions
from penstock.shared.messaging.system_topics import DELETIONS_GROUP, DELETIONS_TOPIC
from penstock.shared.queue.deleted_topics import load_deleted_topics
from penstock.shared.store.topics import Topics, load_topics

LOOK_MS = 100
# The pause after reading the file, in lengths of the reading.
PAUSE = 19
# The longest that a request waits for such a pause: RocketMQ's clients wait a second for a lock.
NEW_TOPIC_MS = 500
_PLACE = DELETIONS_TOPIC, 0


class TopicWatch:
    """The topics as they were at the last look."""

    def __init__(self, file: Path, monotonic_ms: Callable[[], int]) -> None:
        self._file = file
        self._monotonic_ms = monotonic_ms
        self._version: tuple[int, int, int] | None = None
        self._queues: dict[str, int] = {}
        self._looks = 0
        # when to look next, and the earliest time that this may be
        self._look_ms = self._rested_ms = 0.0

    def queues(self, topic: str) -> int:
        """How many queues can be read; 0 if there is no such topic."""
        return self._queues.get(topic, 0)

    def has(self, topic: str) -> bool:
        return topic in self._queues

    def expire(self) -> None:
        """Have the next look come at once: a request names a topic that may be new."""
        self._look_ms = 0

    def look_soon(self) -> Callable[[], bool]:
        """The same for members, of whom there are many: the pause after a long file stays. Returns
        what says whether the look has come, or has not come within NEW_TOPIC_MS."""
        looks, until_ms = self._looks, self._monotonic_ms() + NEW_TOPIC_MS
        self._look_ms = min(self._look_ms, self._rested_ms)
        return lambda: self._looks > looks or self._monotonic_ms() >= until_ms

    def changed(self, now_ms: int) -> set[str]:
        """Topics that are new, gone, or have another number of queues since the last look.

        Raises OSError.
        """
        if now_ms < self._look_ms:
            return set()
        self._look_ms = now_ms + LOOK_MS
        self._looks += 1
        try:
            found = self._file.stat()
        except FileNotFoundError:
            return set()
        version = found.st_ino, found.st_mtime_ns, found.st_size
        if version == self._version:
            return set()
        began_ms = self._monotonic_ms()
        try:
            topics: Topics = load_topics(self._file)
        except StoreDamaged:
            return set()  # the writer reports it: it cannot start with such a file
        self._version = version
        before, self._queues = (
            self._queues,
            {name: topics.read_queues(name) for name in topics.names()},
        )
        self._rested_ms = now_ms + PAUSE * (self._monotonic_ms() - began_ms)
        self._look_ms = max(now_ms + LOOK_MS, self._rested_ms)
        either = before.keys() | self._queues.keys()
        return {name for name in either if before.get(name) != self._queues.get(name)}


class Deletions:
    """Has groups forget what they have of deleted topics: each deletion once, across restarts."""

    def __init__(self, file: Path, positions: Positions, claims: Claims) -> None:
        """`claims` are those that the previous coordinator left."""
        self._file, self._positions, self._claims = file, positions, claims
        seat = claims.seat(DELETIONS_GROUP, _PLACE)
        self._done = seat.offset if seat is not None else 0
        if positions["deleted_topics"] < self._done:
            self._done = 0  # the list was lost, and its numbers begin again

    def look(self) -> None:
        """Raises StoreDamaged, OSError."""
        last = self._positions["deleted_topics"]
        if last <= self._done:
            return
        rows = [row for row in load_deleted_topics(self._file).rows if row.is_done]
        for row in rows:
            if row.number > self._done:
                self._claims.forget_topic(row.topic)
        # the file may be ahead of the position
        self._done = max([last, *(row.number for row in rows)])
        self._claims.move(DELETIONS_GROUP, _PLACE, self._done)
