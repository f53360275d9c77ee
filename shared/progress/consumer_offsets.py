"""config/consumerOffset.json: how far each group has come, in RocketMQ's form.

    {"dataVersion": {...}, "groupTopicMap": {group: [topic]},
     "offsetTable": {"topic@group": {queue: next offset}}}

Rows of another form, such as proxies write for broadcasting groups (topic@group@more), stay as they
are, and so does whatever else the document has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.shared.store.rocketmq_json import count_change, encode_document

# group -> topic -> queue -> offset
GroupOffsets = Mapping[str, Mapping[str, Mapping[int, int]]]


class ConsumerOffsets:
    """The document. The file's owner keeps the offsets elsewhere, and puts them in to save them."""

    def __init__(self, document: dict[str, Any] | None = None) -> None:
        """Raises ValueError for a document of another form."""
        self._document = document or {}
        self.digest = digest_of(encode_document(self._document)) if self._document else ""
        table = self._document.setdefault("offsetTable", {})
        if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
            raise ValueError("offsetTable is not an object of objects")
        self._table: dict[str, dict[str, Any]] = table

    def rows(self) -> Iterator[tuple[str, str, int, int]]:
        """(group, topic, queue, offset) of the rows in the usual form."""
        for key, queues in self._table.items():
            topic, group = _names(key)
            for queue_id, offset in queues.items() if group else ():
                if (queue := _number(queue_id)) >= 0 and isinstance(offset, int) and offset >= 0:
                    yield group, topic, queue, offset

    def replace(self, offsets: GroupOffsets, now_ms: int) -> None:
        """Replace all offsets; rows of another form stay. `now_ms` is wall time."""
        table = {key: row for key, row in self._table.items() if not _names(key)[1]}
        for group, topics in offsets.items():
            for topic, queues in topics.items():
                if queues:
                    table[f"{topic}@{group}"] = {str(queue): at for queue, at in queues.items()}
        self._table = self._document["offsetTable"] = table
        self._document["groupTopicMap"] = {
            group: sorted(topics) for group, topics in offsets.items() if topics
        }
        count_change(self._document, now_ms)

    def encode(self) -> bytes:
        """The file's content, of which `digest` is the digest from now on."""
        content = encode_document(self._document)
        self.digest = digest_of(content)
        return content


def digest_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _names(key: str) -> tuple[str, str]:
    """(topic, group) of a row's key; ("", "") for one of another form."""
    topic, at, group = key.partition("@")
    return (topic, group) if topic and at and group and "@" not in group else ("", "")


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
