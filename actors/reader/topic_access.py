"""Which topics and queues may be read, by config/topics.json as it is now.

Used by the reader alone. The writer owns the file and counts its changes in `topic_changes`; the
reader loads it again only when that has moved. A topic that has queues but is in no file may still
be read: RocketMQ's store without its configuration still has its messages.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from penstock.shared.errors import NoPermission, PenstockError, StoreDamaged
from penstock.shared.layout import StorePaths
from penstock.shared.memory.positions import Positions
from penstock.shared.next_steps import no_such_queue, no_such_topic, topic_hint
from penstock.shared.queue.deleted_topics import load_deleted_topics
from penstock.shared.queue.reader import QueueReader
from penstock.shared.store.topics import Topics, load_topics
from penstock.shared.wire.messages import Pull

_log = logging.getLogger(__name__)


class TopicAccess:
    """The topics of one reader."""

    def __init__(self, paths: StorePaths, positions: Positions, queues: QueueReader) -> None:
        self._paths = paths
        self._positions = positions
        self._queues = queues
        self._changes = self._forgotten = -1
        self.topics = Topics()
        self._deleted: Collection[str] = ()

    def has_changed(self) -> bool:
        """Whether topics have changed, or queues of deleted ones have gone, since the last call;
        `topics` is then up to date."""
        # read before the files: a change in between is seen at the next look
        changes = self._positions["topic_changes"]
        forgotten = self._positions["forgotten_topics"]
        if (changes, forgotten) == (self._changes, self._forgotten):
            return False
        if changes != self._changes:
            try:
                self.topics = load_topics(self._paths.topics)
                self._deleted = load_deleted_topics(self._paths.deleted_topics).ends()
            except (StoreDamaged, OSError) as error:
                # what was read before still holds; the writer reports what is wrong
                _log.warning("topics stay as they were: %s", error)
            names = self.topics.names()
            self._queues.limit({each: self.topics.read_queues(each) for each in names})
        self._changes, self._forgotten = changes, forgotten
        return True

    def error(self, pull: Pull) -> PenstockError | None:
        """Why a pull cannot be answered; None if it can. Raises nothing."""
        config, store = self.topics.get(pull.topic), self._paths.root
        if config is None:
            # At 0 it may wait for a topic to be created. Past 0 it has read the deleted one.
            if pull.topic in self._deleted and any(pull.cursors.values()):
                return no_such_topic(pull.topic, topic_hint(pull.topic, self.topics.names(), store))
            return None
        if not config.is_readable:
            return NoPermission(
                "the topic cannot be read",
                f"{pull.topic} has permission {config.perm}, without the bit 4, to read",
                f"allow it: penstock topics update {pull.topic} --perm rw",
            )
        last = max(pull.cursors, default=-1)
        if last >= config.read_queues:
            return no_such_queue(pull.topic, last, config.read_queues, store)
        return None
