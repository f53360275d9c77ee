"""What a topic's queues hold: the answer to clients that ask before they read."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from penstock.shared.next_steps import topic_hint
from penstock.shared.queue.reader import QueueDeleted, QueueReader
from penstock.shared.store.topics import Topics
from penstock.shared.wire.messages import Describe, Described, QueueRange


def describe(
    request: Describe, queues: QueueReader, topics: Topics, store: Path, queued: int
) -> Described:
    """Each queue's first and next offset, and that of the time which is asked for; `queued` is
    from before the look.

    Raises PenstockError, or OSError where the store cannot be read.
    """
    slots = queues.queues(request.topic)
    found = []
    for queue_id in sorted(slots.keys() | set(range(topics.read_queues(request.topic)))):
        with suppress(QueueDeleted):  # it is not there, then
            found.append(_range(request, queues, queue_id, slots.get(queue_id)))
    hint = "" if found else topic_hint(request.topic, topics.names() | queues.topics, store)
    return Described(request.request, request.topic, bool(found), tuple(found), hint, queued)


def _range(request: Describe, queues: QueueReader, queue_id: int, slot: int | None) -> QueueRange:
    low, high = (0, 0) if slot is None else queues.range(slot)
    at = high
    if slot is not None and request.at_ms >= 0:
        at = queues.offset_at(slot, request.at_ms)
    return QueueRange(queue_id, low, high, at)
