"""What operators' tools ask: topics with their queues, and how far groups are."""

from __future__ import annotations

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.requests.topic_sums import topic_sums
from penstock.actors.gateway.services import Services
from penstock.remoting.bodies import (
    QueueBody,
    TopicOffset,
    TopicStats,
    queue_key,
    write_body,
)
from penstock.remoting.fields import TopicFields, read_fields
from penstock.shared.errors import PenstockError
from penstock.shared.formats.record_layout import store_timestamp_ms
from penstock.shared.log.found_records import piece_of

# The time over which RocketMQ averages what a topic gets.
_TPS_S = 60


def topic_stats(services: Services, call: Call) -> Reply:
    """What each queue of a topic holds, and messages per second. Raises TopicNotFound."""
    topic = read_fields(call.command, TopicFields).topic
    config, name = services.topics.routed(topic), services.config.broker_name
    table = {}
    for queue_id in range(config.queues):
        slot = services.queues.queues(topic).get(queue_id)
        low, high = services.queues.range(slot) if slot is not None else (0, 0)
        last_ms = stored_ms(services, topic, queue_id, high - 1)
        table[queue_key(QueueBody(name, queue_id, topic))] = TopicOffset(last_ms, high, low)
    return Reply(body=write_body(TopicStats(table, _put_tps(services, topic))))


def _put_tps(services: Services, topic: str) -> float:
    """Of the last minute; 0 if a queue cannot be read, as the rest of the answer is still of
    use."""
    try:
        return topic_sums(services, topic, [_TPS_S], of_bytes=False)[0] / _TPS_S
    except PenstockError:
        return 0.0


def stored_ms(services: Services, topic: str, queue_id: int, offset: int) -> int:
    """When a message was stored; 0 if it is gone, or never was there."""
    slot = services.queues.queues(topic).get(queue_id)
    low, high = services.queues.range(slot) if slot is not None else (0, 0)
    if slot is None or not low <= offset < high:
        return 0
    try:
        found, _ = services.queues.read(slot, offset, 1, 1)
    except (OSError, PenstockError):
        return 0
    return store_timestamp_ms(piece_of([found]), 0) if found.size else 0
