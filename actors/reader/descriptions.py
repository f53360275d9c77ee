"""What queues hold: the answers to clients that ask before they read."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from penstock.shared.names import MAX_QUEUES_PER_TOPIC
from penstock.shared.next_steps import topic_hint
from penstock.shared.queue.reader import QueueDeleted, QueueReader, unreadable
from penstock.shared.store.topics import Topics
from penstock.shared.wire.messages import (
    Describe,
    Described,
    ListQueues,
    QueueList,
    QueueRange,
)


def describe(
    request: Describe, queues: QueueReader, topics: Topics, store: Path, queued: int
) -> Described:
    """Each queue's first and next offset, and the offset at `at_ms` if that is asked for.
    `queued` was read before.

    Raises PenstockError.
    """
    found = _queues(request.topic, request.at_ms, queues, topics)
    hint = "" if found else topic_hint(request.topic, topics.names() | queues.topics, store)
    return Described(request.request, request.topic, bool(found), found, hint, queued)


def list_queues(request: ListQueues, queues: QueueReader, topics: Topics) -> QueueList:
    """The queues of several topics, until they are as many as one topic may have: so no request
    keeps other clients waiting for longer than one for that topic does. Raises as `describe`."""
    listed, count = [], 0
    for topic in request.topics:
        listed.append(_queues(topic, -1, queues, topics))
        count += len(listed[-1])
        if count >= MAX_QUEUES_PER_TOPIC:
            break
    return QueueList(request.request, tuple(listed))


def _queues(topic: str, at_ms: int, queues: QueueReader, topics: Topics) -> tuple[QueueRange, ...]:
    slots = queues.queues(topic)
    found = []
    try:
        for queue_id in sorted(slots.keys() | set(range(topics.read_queues(topic)))):
            with suppress(QueueDeleted):  # then it is not listed
                found.append(_range(queues, queue_id, slots.get(queue_id), at_ms))
    except OSError as error:
        raise unreadable(topic, error) from error
    return tuple(found)


def _range(queues: QueueReader, queue_id: int, slot: int | None, at_ms: int) -> QueueRange:
    low, high = (0, 0) if slot is None else queues.range(slot)
    at = high
    if slot is not None and at_ms >= 0:
        at = queues.offset_at(slot, at_ms)
    return QueueRange(queue_id, low, high, at)
