"""What a topic's queues hold: the answer to clients that ask before they read."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from penstock.shared.next_steps import topic_hint
from penstock.shared.queue.reader import QueueReader
from penstock.shared.store.topics import Topics, load_topics
from penstock.shared.wire.messages import Describe, Described, QueueRange


def describe(request: Describe, queues: QueueReader, topics: Path) -> Described:
    """Each queue's first and next offset, and that of the time which is asked for.

    Raises PenstockError, or OSError where the store cannot be read.
    """
    slots = queues.queues(request.topic)
    known = _topics(topics)
    count = known.read_queues(request.topic)
    found = []
    for queue_id in sorted(slots.keys() | set(range(count))):
        slot = slots.get(queue_id)
        low, high = (0, 0) if slot is None else queues.range(slot)
        at = high
        if slot is not None and request.at_ms >= 0:
            at = queues.offset_at(slot, request.at_ms)
        found.append(QueueRange(queue_id, low, high, at))
    names = () if found else known.names() | queues.topics
    hint = "" if found else topic_hint(request.topic, names, topics.parent.parent)
    return Described(request.request, request.topic, bool(found), tuple(found), hint)


def _topics(file: Path) -> Topics:
    """The topics as the file has them now: it is replaced as a whole."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return load_topics(file)
    return _read(file, found.st_ino, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=1)
def _read(file: Path, *version: int) -> Topics:
    return load_topics(file)
