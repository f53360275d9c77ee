"""config/topics.json: the topics of a store, in RocketMQ's form. Pure functions, and two with I/O.

    {"dataVersion": {"counter", "stateVersion", "timestamp"},
     "topicConfigTable": {topic: {"topicName", "perm", "readQueueNums", "writeQueueNums", ...}}}

What we do not know in a topic's entry is kept as it was.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Any

from penstock.shared.names import check_topic
from penstock.shared.store.rocketmq_json import encode_document, load_document, save_document

PERM_READ, PERM_WRITE = 4, 2


class Topics:
    """The topics, in memory. The writer owns the file; others load it to look.

    It keeps the document that it was made of, and `put` changes that.
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

    def queues(self, topic: str) -> int:
        """How many queues can be written; 0 when there is no such topic."""
        return self._number(topic, "writeQueueNums")

    def read_queues(self, topic: str) -> int:
        """How many queues can be read, which is more while a topic shrinks; 0 without a topic."""
        return self._number(topic, "readQueueNums")

    def _number(self, topic: str, key: str) -> int:
        # No number counts as no queue, and does not break the file: other topics are still good.
        found = self._table.get(topic, {}).get(key, 0)
        return found if isinstance(found, int) else 0

    def names(self) -> Set[str]:
        """All topics, in no order."""
        return self._table.keys()

    def all(self) -> dict[str, int]:
        """Each topic, by name, with its number of queues that can be written."""
        return {topic: self.queues(topic) for topic in sorted(self._table)}

    def put(self, topic: str, queues: int, now_ms: int) -> None:
        """Add a topic, or change how many queues it has; `now_ms` is wall time.

        In memory only: `save_topics` makes it durable, and nobody may be told before. Raises
        InvalidArgument for a name that no topic can have, and then nothing has changed.
        """
        # setdefault: of a topic that is there, what RocketMQ wrote stays (`perm`, `attributes`)
        entry = self._table.setdefault(
            check_topic(topic),
            {
                "attributes": {},
                "order": False,
                "perm": PERM_READ | PERM_WRITE,
                "topicFilterType": "SINGLE_TAG",
                "topicName": topic,
                "topicSysFlag": 0,
            },
        )
        # RocketMQ shrinks a topic by its write queues first: what can be read stays so
        entry["readQueueNums"] = max(queues, self.read_queues(topic))
        entry["writeQueueNums"] = queues
        # RocketMQ counts each change. The version is made where it is missing or something else.
        found = self._document.get("dataVersion")
        version = found if isinstance(found, dict) else {}
        counter = version.get("counter", 0)
        version["counter"] = counter + 1 if isinstance(counter, int) else 1
        version["timestamp"] = now_ms
        self._document["dataVersion"] = version

    def encode(self) -> bytes:
        """The file's content, with all that the document had and this class does not know."""
        return encode_document(self._document)


def load_topics(file: Path) -> Topics:
    """The topics of a store; none when there is no file. Raises StoreDamaged: see load_document."""
    return load_document(file, Topics)


def save_topics(file: Path, topics: Topics) -> None:
    """Durable on return; the version before it is kept as topics.json.bak. Raises OSError.

    For the writer alone, which owns the file.
    """
    save_document(file, topics.encode())
