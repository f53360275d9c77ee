"""How many queues topics have to read, as config/topics.json says; the writer changes it.

Looked at now and then, by the file's inode and time: it is replaced as a whole. A file of many
topics takes a while to read, so while it changes all the time a pause follows that is many times
as long.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.shared.errors import StoreDamaged
from penstock.shared.store.topics import Topics, load_topics

LOOK_MS = 100
# The pause after reading the file, in lengths of that.
PAUSE = 19


class TopicWatch:
    """The topics as they were at the last look."""

    def __init__(self, file: Path, monotonic_ms: Callable[[], int]) -> None:
        self._file = file
        self._monotonic_ms = monotonic_ms
        self._version: tuple[int, int, int] | None = None
        self._queues: dict[str, int] = {}
        self._look_ms = 0

    def queues(self, topic: str) -> int:
        """Queues that can be read; 0 where there is no such topic."""
        return self._queues.get(topic, 0)

    def has(self, topic: str) -> bool:
        return topic in self._queues

    def expire(self) -> None:
        """Have the next look come at once: somebody speaks of a topic that may be new."""
        self._look_ms = 0

    def changed(self, now_ms: int) -> set[str]:
        """Topics that are new, gone, or have another number of queues since the last look.

        Raises OSError.
        """
        if now_ms < self._look_ms:
            return set()
        self._look_ms = now_ms + LOOK_MS
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
            return set()  # the writer says so: it cannot start with it
        self._version = version
        before, self._queues = (
            self._queues,
            {name: topics.read_queues(name) for name in topics.names()},
        )
        took_ms = self._monotonic_ms() - began_ms
        self._look_ms = now_ms + max(LOOK_MS, PAUSE * took_ms)
        either = before.keys() | self._queues.keys()
        return {name for name in either if before.get(name) != self._queues.get(name)}
