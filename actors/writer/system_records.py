"""Records that clients and actors send into RocketMQ's own topics: those that have the right form.

The topics are open because a half message is made by its producer, and its marks by an actor that
is a producer like any other. What stands in them decides over messages, so nothing else gets in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from penstock.actors.writer.topic_admin import RESERVED_TOPICS, TopicAdmin
from penstock.shared.errors import InvalidMessage
from penstock.shared.formats.record_layout import body_span
from penstock.shared.formats.record_outline import raw_properties
from penstock.shared.messaging.half import MAX_OP_CHARACTERS, check_half, parse_op, read_half
from penstock.shared.messaging.system_topics import (
    HALF_TOPIC,
    OP_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
)


def check_system_records(
    topic: str, payload: bytes | memoryview, starts: Sequence[int], topics: TopicAdmin
) -> None:
    """Raise InvalidMessage, TopicNotFound or QueueNotFound for records of one of these topics that
    have not its form. They are whole; `starts` are their places and the end of the last."""
    view = memoryview(payload)
    check = _RULES[topic]
    for at, end in pairwise(starts):
        check(view[at:end], topics)


def _half(record: memoryview, topics: TopicAdmin) -> None:
    half = check_half(raw_properties(record))
    queues = 0 if half.topic in RESERVED_TOPICS else topics.queues(half.topic)
    if not queues:
        raise topics.not_found(half.topic)
    if half.queue_id >= queues:
        raise topics.no_such_queue(half.topic, half.queue_id, queues)


def _op(record: memoryview, topics: TopicAdmin) -> None:
    at, length = body_span(record, 0)
    body = bytes(record[at : at + length])
    numbers = parse_op(body)
    if length > MAX_OP_CHARACTERS or not numbers or len(numbers) != body.count(b","):
        raise InvalidMessage(
            f"a record for {OP_TOPIC} is no list of half messages that are done",
            repr(body[:40]),
            "end the transaction, and the broker writes it",
        )


def _discarded(record: memoryview, topics: TopicAdmin) -> None:
    read_half(raw_properties(record))


_RULES: dict[str, Callable[[memoryview, TopicAdmin], None]] = {
    HALF_TOPIC: _half,
    OP_TOPIC: _op,
    TRANS_CHECK_MAX_TIME_TOPIC: _discarded,
}
