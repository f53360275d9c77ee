"""What the monitor reads: a run's shared memory, and the files of its store. Writes nothing.

It opens what there is to read, and caches what would be expensive to read for each view. The views
are in the files next to this: overview, topics, groups, messages, disk.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from penstock.shared.clock import Clock
from penstock.shared.config import Config
from penstock.shared.errors import PenstockError
from penstock.shared.layout import StorePaths
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.run_directory import Run
from penstock.shared.messaging.system_topics import SYSTEM_GROUP_PREFIX
from penstock.shared.progress.group_rows import Rows, load_group_rows
from penstock.shared.progress.subscription_groups import SubscriptionGroups
from penstock.shared.queue.lag import Lag
from penstock.shared.queue.reader import QueueReader
from penstock.shared.store.rocketmq_json import load_document
from penstock.shared.store.topics import Topics

# A file that changes all the time is read again no sooner than after this.
_AGAIN_MS = 1000

# shows that a file is another one, or has changed
_Mark = tuple[object, ...]
# group -> (topic, queue) -> offset
GroupOffsets = dict[str, dict[tuple[str, int], int]]
# The steps of a view that may take long: at each pause others may have their turn.
Steps = Generator[None, None, dict[str, Any]]
_Value = TypeVar("_Value")


def at_once(steps: Generator[None, None, _Value]) -> _Value:
    """Run the steps for a caller that has nothing else to do meanwhile."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: _Value = end.value
            return found


class _Kept(NamedTuple):
    mark: _Mark
    at_ms: int
    value: Any  # what the caller has loaded under this name


class Reading:
    """A run and its store, opened for reading."""

    def __init__(self, config: Config, run: Run, positions: Positions, clock: Clock) -> None:
        self.config = config
        self.run = run
        self.positions = positions
        self.clock = clock
        self.paths = StorePaths(config.store)
        self.queues = QueueReader(config, run, positions)
        self.lag = Lag(self.queues)
        self._kept: dict[str, _Kept] = {}
        self._grouped: GroupOffsets = {}
        self._by_topic: dict[str, list[str]] = {}

    def topics_with_queues(self) -> set[str]:
        """The topics that have had a message."""
        self.queues.queues("")  # to find new queues
        return set(self.queues.topics)

    def topic_names(self) -> list[str] | None:
        """All topics, of the file and of the queues, in order; None if the file cannot be read."""
        try:
            return self._topics()[0]
        except (PenstockError, OSError):
            return None

    def topic_settings(self) -> Topics:
        """The settings of the topics. Raises StoreDamaged, OSError."""
        return self._topics()[1]

    def _topics(self) -> tuple[list[str], Topics]:
        words = ("topic_changes", "queue_count", "deleted_queues")
        mark = *(self.positions[word] for word in words), *_mark(self.paths.topics)

        def load() -> tuple[list[str], Topics]:
            found = load_document(self.paths.topics, Topics)
            return sorted(self.topics_with_queues() | found.names()), found

        return self._keep("topics", mark, load)

    def group_offsets(self) -> GroupOffsets | None:
        """How far each group is, by the coordinator's files; None if these cannot be read."""
        mark = *_mark(self.paths.consumer_offsets), *_mark(self.paths.group_journal)
        try:
            return self._keep("offsets", mark, lambda: _by_group(load_group_rows(self.paths)))
        except (PenstockError, OSError):
            return None

    def groups_of(self, topic: str) -> list[str] | None:
        """Groups that have an offset in it, in order; None if the files cannot be read."""
        offsets = self.group_offsets()
        if offsets is None:
            return None
        if offsets is not self._grouped:
            self._grouped, self._by_topic = offsets, _by_topic(offsets)
        return self._by_topic.get(topic, [])

    def group_names(self) -> list[str] | None:
        """Groups that have settings or offsets, in order; None if the files cannot be read."""
        file, offsets = self.paths.subscription_groups, self.group_offsets()
        try:
            groups = self._keep(
                "groups", _mark(file), lambda: set(load_document(file, SubscriptionGroups).names())
            )
        except (PenstockError, OSError):
            return None
        if offsets is None:
            return None
        return sorted(g for g in groups | offsets.keys() if not g.startswith(SYSTEM_GROUP_PREFIX))

    def _keep(self, name: str, mark: _Mark, load: Callable[[], _Value]) -> _Value:
        """The loaded value, loaded again when the mark changes, but once a second at most."""
        kept, now_ms = self._kept.get(name), self.clock.monotonic_ms()
        if kept is None or (kept.mark != mark and now_ms - kept.at_ms >= _AGAIN_MS):
            kept = self._kept[name] = _Kept(mark, now_ms, load())
        value: _Value = kept.value
        return value

    def release_deleted(self) -> None:
        """Close deleted files, and free pages."""
        now_ms = self.clock.monotonic_ms()
        self.queues.release_deleted(now_ms)
        self.queues.rest(now_ms)

    def close(self) -> None:
        self.queues.close()


def _mark(file: Path) -> _Mark:
    try:
        found = file.stat()
    except OSError:
        return (None,)
    return found.st_ino, found.st_mtime_ns, found.st_size


def _by_group(rows: Rows) -> GroupOffsets:
    found: GroupOffsets = {}
    for (group, topic, queue_id), offset in rows.items():
        found.setdefault(group, {})[topic, queue_id] = offset
    return found


def _by_topic(offsets: GroupOffsets) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for group in sorted(offsets):
        for topic in {topic for topic, _ in offsets[group]}:
            found.setdefault(topic, []).append(group)
    return found
