"""What operators' tools ask: topics with their queues, and how far groups are."""

from __future__ import annotations

from typing import Any

from penstock.actors.gateway.calls import Call, Reply, refusal
from penstock.actors.gateway.services import Services
from penstock.remoting.bodies import (
    ConsumeStats,
    QueueBody,
    QueueOffsets,
    TopicConfigBody,
    TopicOffset,
    TopicStats,
    queue_key,
    write_body,
)
from penstock.remoting.fields import ConsumeStatsFields, TopicFields, read_fields
from penstock.shared.errors import PenstockError
from penstock.shared.formats.record_layout import store_timestamp_ms
from penstock.shared.queue.found_records import piece_of


def consume_stats(services: Services, call: Call) -> None:
    """How far a group is in each queue."""
    fields = read_fields(call.command, ConsumeStatsFields)

    def described(answer: Any) -> None:
        if isinstance(answer, PenstockError):
            services.answer(call, refusal(answer))
            return
        name = services.config.broker_name
        table = {
            queue_key(QueueBody(name, each.queue_id, each.topic)): QueueOffsets(
                max(0, each.max_offset),
                each.offset,
                _stored_ms(services, each.topic, each.queue_id, each.offset - 1),
                each.offset,
            )
            for each in answer.queues
            if each.offset >= 0 and fields.topic in ("", each.topic)
        }
        services.answer(call, Reply(body=write_body(ConsumeStats(0.0, table))))

    services.groups.describe(fields.consumer_group, described)


def topic_stats(services: Services, call: Call) -> Reply:
    """What each queue of a topic holds. Raises TopicNotFound."""
    topic = read_fields(call.command, TopicFields).topic
    config, name = services.topics.known(topic), services.config.broker_name
    table = {}
    for queue_id in range(config.queues):
        slot = services.queues.queues(topic).get(queue_id)
        low, high = services.queues.range(slot) if slot is not None else (0, 0)
        stored_ms = _stored_ms(services, topic, queue_id, high - 1)
        table[queue_key(QueueBody(name, queue_id, topic))] = TopicOffset(stored_ms, high, low)
    return Reply(body=write_body(TopicStats(table)))


def topic_config(services: Services, call: Call) -> Reply:
    """All that is set of a topic. Raises TopicNotFound."""
    topic = read_fields(call.command, TopicFields).topic
    found = services.topics.known(topic)
    body = TopicConfigBody(
        found.attributes,
        found.order,
        found.perm,
        found.read_queues,
        found.filter_type,
        topic,
        found.sys_flag,
        found.write_queues,
    )
    return Reply(body=write_body(body))


def _stored_ms(services: Services, topic: str, queue_id: int, offset: int) -> int:
    """When a message was stored; 0 where it is not there any more, or was never."""
    slot = services.queues.queues(topic).get(queue_id)
    low, high = services.queues.range(slot) if slot is not None else (0, 0)
    if slot is None or not low <= offset < high:
        return 0
    try:
        found, _ = services.queues.read(slot, offset, 1, 1)
    except (OSError, PenstockError):
        return 0
    return store_timestamp_ms(piece_of([found]), 0) if found.size else 0
