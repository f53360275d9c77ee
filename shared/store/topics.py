"""config/topics.json: the topics of a store, in RocketMQ's form. Pure functions, and two with I/O.

    {"dataVersion": {"counter", "stateVersion", "timestamp"},
     "topicConfigTable": {topic: {"topicName", "perm", "readQueueNums", "writeQueueNums", ...}}}

Whatever else stands in a topic's entry is kept as it was.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Any

import msgspec

from penstock.shared.messaging.topic_rules import PERM_DEFAULT, TopicConfig
from penstock.shared.names import check_topic
from penstock.shared.store.rocketmq_json import (
    count_change,
    encode_document,
    load_document,
    save_document,
)


class Topics:
    """The topics, in memory. The writer owns the file; others only load it.

    It keeps the document that it was made from, and `put` changes that.
    """

    def __init__(self, document: dict[str, Any] | None = None) -> None:
        """Raises ValueError for a document of another form."""
        self._document = document or {
            "dataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0},
            "topicConfigTable": {},
        }
        table = self._document.setdefault("topicConfigTable", {})
        if not isinstance(table, dict) or not all(isinstance(e, dict) for e in table.values()):
            raise ValueError("topicConfigTable is not an object of objects")
        self._table: dict[str, dict[str, Any]] = table
        # Kept up to date: each of a thousand topics that are made together asks for the sum.
        self._queue_count = sum(map(self._queues_of, table))

    def queues(self, topic: str) -> int:
        """The number of queues that can be written; 0 where there is no such topic."""
        return self._number(topic, "writeQueueNums")

    def read_queues(self, topic: str) -> int:
        """The number of queues that can be read, more while a topic shrinks; 0 without a topic."""
        return self._number(topic, "readQueueNums")

    def _number(self, topic: str, key: str, default: int = 0) -> int:
        # Anything but a number counts as 0, and does not break the file: other topics are good.
        found = self._table.get(topic, {}).get(key, default)
        return found if isinstance(found, int) else default

    def get(self, topic: str) -> TopicConfig | None:
        """A topic's settings, with defaults for what is missing; None without such a topic."""
        entry = self._table.get(topic)
        if entry is None:
            return None
        attributes = entry.get("attributes")
        return TopicConfig(
            self.read_queues(topic),
            self.queues(topic),
            self._number(topic, "perm", PERM_DEFAULT),
            entry.get("order") is True,
            # RocketMQ has only texts here; anything else stays in the file
            {str(key): str(value) for key, value in attributes.items()}
            if isinstance(attributes, dict)
            else {},
            str(entry.get("topicFilterType", "SINGLE_TAG")),
            self._number(topic, "topicSysFlag"),
        )

    def names(self) -> Set[str]:
        """All topics, in no order."""
        return self._table.keys()

    def all(self) -> dict[str, int]:
        """Each topic, by name, with its number of queues that can be written."""
        return {topic: self.queues(topic) for topic in sorted(self._table)}

    def configs(self) -> dict[str, TopicConfig]:
        """Each topic, by name, with all of its settings."""
        return {topic: self.get(topic) or TopicConfig(0, 0) for topic in sorted(self._table)}

    def others(self) -> dict[str, tuple[int, int]]:
        """Read queues and permission of the topics in which one of these is not the usual."""
        return {
            topic: (config.read_queues, config.perm)
            for topic, config in self.configs().items()
            if config.read_queues != config.write_queues or config.perm != PERM_DEFAULT
        }

    @property
    def queue_count(self) -> int:
        """The number of queues of all topics together."""
        return self._queue_count

    def _queues_of(self, topic: str) -> int:
        return max(self.queues(topic), self.read_queues(topic))

    def put(self, topic: str, queues: int, now_ms: int) -> None:
        """Add a topic, or change how many queues it has; `now_ms` is wall time.

        In memory only: `save_topics` makes it durable, and nobody may be told before that. Raises
        InvalidArgument for a name that no topic can have, and then changes nothing.
        """
        found = self.get(check_topic(topic)) or TopicConfig(0, 0)
        # RocketMQ shrinks a topic by its write queues first: what can be read can still be read
        read_queues = max(queues, found.read_queues)
        self.set(
            topic,
            msgspec.structs.replace(found, read_queues=read_queues, write_queues=queues),
            now_ms,
        )

    def set(self, topic: str, config: TopicConfig, now_ms: int) -> None:
        """Set all that `config` says; otherwise like `put`."""
        before = self._queues_of(check_topic(topic))
        # setdefault: in an existing entry, what this class does not know stays as RocketMQ wrote it
        entry = self._table.setdefault(topic, {"topicName": topic})
        entry |= {
            "attributes": config.attributes,
            "order": config.order,
            "perm": config.perm,
            "readQueueNums": config.read_queues,
            "topicFilterType": config.filter_type,
            "topicSysFlag": config.sys_flag,
            "writeQueueNums": config.write_queues,
        }
        self._queue_count += self._queues_of(topic) - before
        count_change(self._document, now_ms)

    def remove(self, topic: str, now_ms: int) -> None:
        """Remove a topic. In memory only, like `put`. Raises KeyError where there is none."""
        queues = self._queues_of(topic)
        del self._table[topic]
        self._queue_count -= queues
        count_change(self._document, now_ms)

    def encode(self) -> bytes:
        """The file's content, including what this class does not know in the document."""
        return encode_document(self._document)


def load_topics(file: Path) -> Topics:
    """The topics of a store; none without a file. Raises StoreDamaged: see load_document."""
    return load_document(file, Topics)


def save_topics(file: Path, topics: Topics) -> None:
    """Durable on return; the previous version is kept as topics.json.bak. Raises OSError.

    For the writer alone, which owns the file.
    """
    save_document(file, topics.encode())
