"""Records that clients and actors send into RocketMQ's own topics: only the right form gets in.

The topics are open to produce because a producer makes a half message itself, and the actor that
marks it is a producer like any other. Such records decide what happens to messages, so each is
checked.

The writer and the scheduler agree by two positions until when a timed message may be recalled:

    writer                                   scheduler
    `recalled` = RECALL_COMING               `delay_sent` = the time at hand
    reads `delay_sent` and the clock         reads `recalled`
    refuses what is due by then, or          takes what is due by then, once it has read its queue
    stores it, and `recalled` = log's end    up to there

Each announces what it is about to do before it reads the other's position. So where a recall meets
its message, either the scheduler waits until it has read the recall, or the recall is refused. A
writer that dies in between leaves RECALL_COMING. Its successor publishes the log's end instead, and
whatever the dead writer stored is below that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from penstock.actors.writer.topic_admin import RESERVED_TOPICS, TopicAdmin
from penstock.shared.clock import Clock
from penstock.shared.errors import InvalidMessage
from penstock.shared.faults import crash_point
from penstock.shared.formats.delay_levels import SCHEDULE_TOPIC
from penstock.shared.formats.record_layout import AT_QUEUE_ID, body_span
from penstock.shared.formats.record_outline import raw_properties
from penstock.shared.memory.positions import Positions
from penstock.shared.messaging.delayed import (
    RECALL_COMING,
    check_level,
    check_timer,
    recalled_key,
    timer_due_ms,
)
from penstock.shared.messaging.half import MAX_OP_CHARACTERS, check_half, parse_op, read_half
from penstock.shared.messaging.system_topics import (
    HALF_TOPIC,
    OP_TOPIC,
    TIMER_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
)
from penstock.shared.names import RETRY_PREFIX, is_stored_topic
from penstock.shared.wire.messages import QueueRun


def check_system_records(
    run: QueueRun,
    payload: bytes | memoryview,
    starts: Sequence[int],
    topics: TopicAdmin,
    now_ms: int,
) -> None:
    """Raise InvalidMessage, TopicNotFound or QueueNotFound for records without their topic's form.
    The records are whole; `starts` are their offsets and the end of the last."""
    if run.batch:
        raise InvalidMessage(
            "a batch is for one of RocketMQ's own topics", run.topic, "send single messages"
        )
    view = memoryview(payload)
    check = _RULES[run.topic]
    for at, end in pairwise(starts):
        check(view[at:end], topics, now_ms)


def _by_level(record: memoryview, topics: TopicAdmin, now_ms: int) -> None:
    queue_id = int.from_bytes(record[AT_QUEUE_ID : AT_QUEUE_ID + 4], "big")
    _check_place(*check_level(raw_properties(record), queue_id), topics)


def _at_any_time(record: memoryview, topics: TopicAdmin, now_ms: int) -> None:
    _check_place(*check_timer(raw_properties(record), now_ms), topics)


def _check_place(raw_topic: bytes, queue_id: int, topics: TopicAdmin) -> None:
    """Check a message's destination now: when it is due, nobody is left to hear of an error."""
    topic = raw_topic.decode("utf-8", "replace")
    queues = 0 if topic in RESERVED_TOPICS else topics.queues(topic)
    if not queues and topic.startswith(RETRY_PREFIX) and is_stored_topic(topic):
        queues = 1  # it is made when the first message comes to it, as in RocketMQ
    if not queues:
        raise topics.not_found(topic)
    if queue_id >= queues:
        raise topics.no_such_queue(topic, queue_id, queues)


def _half(record: memoryview, topics: TopicAdmin, now_ms: int) -> None:
    half = check_half(raw_properties(record))
    queues = 0 if half.topic in RESERVED_TOPICS else topics.queues(half.topic)
    if not queues:
        raise topics.not_found(half.topic)
    if half.queue_id >= queues:
        raise topics.no_such_queue(half.topic, half.queue_id, queues)


def _op(record: memoryview, topics: TopicAdmin, now_ms: int) -> None:
    at, length = body_span(record, 0)
    body = bytes(record[at : at + length])
    numbers = parse_op(body)
    if length > MAX_OP_CHARACTERS or not numbers or len(numbers) != body.count(b","):
        raise InvalidMessage(
            f"a record for {OP_TOPIC} is no list of half messages that are done",
            repr(body[:40]),
            "end the transaction, and the broker writes it",
        )


def _discarded(record: memoryview, topics: TopicAdmin, now_ms: int) -> None:
    read_half(raw_properties(record))


_RULES: dict[str, Callable[[memoryview, TopicAdmin, int], None]] = {
    SCHEDULE_TOPIC: _by_level,
    TIMER_TOPIC: _at_any_time,
    HALF_TOPIC: _half,
    OP_TOPIC: _op,
    TRANS_CHECK_MAX_TIME_TOPIC: _discarded,
}


class Recalls:
    """One writer's side of the agreement at the head of this file."""

    def __init__(self, positions: Positions, clock: Clock, wrote: int) -> None:
        self._positions, self._clock = positions, clock
        positions.publish("recalled", wrote)

    def prepare(self, due_ms: int, wrote: int) -> None:
        """A frame will be stored that recalls a message due at `due_ms`.

        Raises InvalidMessage once that time has come.
        """
        self._positions.publish_before_loads("recalled", RECALL_COMING)
        now_ms = max(self._clock.now_ms(), self._positions["delay_sent"])
        if due_ms <= now_ms:
            self._positions.publish("recalled", wrote)
            raise InvalidMessage(
                "the message cannot be recalled: its time has come",
                f"due {now_ms - due_ms} ms ago",
                "it is delivered",
            )
        crash_point("write.recall_checked")

    def stored(self, wrote: int) -> None:
        """The frame is stored, and the log ends at `wrote`."""
        crash_point("write.recall_stored")
        self._positions.publish("recalled", wrote)


def first_recalled_ms(
    runs: Sequence[QueueRun], payload: memoryview, starts: Sequence[int], now_ms: int
) -> int:
    """When the first message that a checked frame recalls is due; -1 if it recalls none."""
    first = 0
    found = []
    for run in runs:
        if run.topic == TIMER_TOPIC:
            for at, end in pairwise(starts[first : first + run.count + 1]):
                properties = raw_properties(payload[at:end])
                if recalled_key(properties):
                    found.append(timer_due_ms(properties, now_ms))
        first += run.count
    return min(found, default=-1)
