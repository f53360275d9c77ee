"""Requests that make, change, delete and describe topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.actors.gateway.calls import Call, Reply, refusal
from penstock.actors.gateway.services import Services
from penstock.remoting.admin.bodies import NewTopic, NewTopics, TopicConfigs
from penstock.remoting.admin.words import TopicName
from penstock.remoting.bodies import (
    ConsumerBody,
    TopicConfigBody,
    TopicList,
    read_body,
    write_body,
)
from penstock.remoting.fields import CreateTopicFields, TopicFields, read_fields
from penstock.remoting.naming.words import DataVersion
from penstock.shared.errors import InvalidArgument, PenstockError
from penstock.shared.messaging.system_topics import is_system_topic, retry_topic
from penstock.shared.messaging.topic_rules import (
    UNIT_SUB,
    TopicConfig,
    check_changeable,
    check_queues,
    updated,
)
from penstock.shared.wire.messages import CreateTopic, DeleteTopic, UpdateTopic


def update(services: Services, call: Call) -> None:
    """Make a topic, or change its settings; it is answered when the file has them."""
    fields = read_fields(call.command, CreateTopicFields)
    wanted = NewTopic(
        fields.topic,
        fields.read_queue_nums,
        fields.write_queue_nums,
        fields.perm,
        fields.order,
        _changes(fields.attributes),
        fields.topic_filter_type,
        fields.topic_sys_flag,
    )
    _put(services, wanted, lambda answer: _done(services, call, answer))


def update_all(services: Services, call: Call) -> None:
    """The same for several, one after the other; the first that is refused ends it."""
    waiting = list(read_body(call.command.body, NewTopics).topic_config_list)

    def next_one(answer: Any) -> None:
        if isinstance(answer, PenstockError) or not waiting:
            _done(services, call, answer)
        else:
            _put(services, waiting.pop(0), next_one)

    next_one(None)


def _put(services: Services, wanted: NewTopic, then: Callable[[Any], None]) -> None:
    topic, run = wanted.topic_name, services.run_id

    def set_all(answer: Any) -> None:
        if isinstance(answer, PenstockError):
            then(answer)
            return
        services.sends.ask(
            lambda number: UpdateTopic(
                number,
                topic,
                wanted.read_queue_nums,
                wanted.write_queue_nums,
                wanted.perm,
                wanted.order,
                dict(wanted.attributes),
                run=run,
                filter_type=wanted.topic_filter_type,
                sys_flag=wanted.topic_sys_flag,
            ),
            then,
        )

    if services.topics.get(topic) is None:
        try:
            _check_new(wanted)
        except PenstockError as error:
            then(error)
            return
        queues = wanted.write_queue_nums
        services.sends.ask(lambda number: CreateTopic(number, topic, queues, run), set_all)
    else:
        set_all(None)


def _check_new(wanted: NewTopic) -> None:
    """Raise what setting it would raise: a refused request must leave no topic."""
    check_changeable(wanted.topic_name)
    queues = wanted.write_queue_nums
    changes = {"read_queues": wanted.read_queue_nums, "perm": wanted.perm}
    check_queues(
        updated(wanted.topic_name, TopicConfig(queues, queues), changes, wanted.attributes)
    )


def mark_retry_topic(services: Services, said: ConsumerBody) -> None:
    """Set the flags of a group's retry topic. In RocketMQ as here, each heartbeat makes it an
    ordered topic if the client subscribes to one, and marks it if the client is in unit mode.

    If the topic cannot be changed now, or does not exist yet, the next heartbeat does it.
    """
    topic = retry_topic(said.group_name)
    config = services.topics.get(topic)
    if config is None:
        return
    others = {each.topic for each in said.subscription_data_set} - {topic}
    order = any(known.order for each in others if (known := services.topics.get(each)))
    flag = config.sys_flag | (UNIT_SUB if said.unit_mode else 0)
    if (order, flag) != (config.order, config.sys_flag):
        services.sends.ask(
            lambda number: UpdateTopic(
                number, topic, order=order, run=services.run_id, sys_flag=flag
            ),
            lambda answer: None,
        )


def delete(services: Services, call: Call) -> None:
    """Delete a topic with its queues; one that does not exist is deleted already, as in
    RocketMQ."""
    topic = read_fields(call.command, TopicName).topic
    if not topic.strip():
        raise InvalidArgument("the topic's name is empty", repr(topic), "name a topic")
    if services.topics.get(topic) is None and not is_system_topic(topic):
        services.answer(call, Reply())
        return
    services.sends.ask(
        lambda number: DeleteTopic(number, topic, run=services.run_id),
        lambda answer: _done(services, call, answer),
    )


def _done(services: Services, call: Call, answer: Any) -> None:
    services.topics.look()
    failed = isinstance(answer, PenstockError)
    services.answer(call, refusal(answer) if failed else Reply())


def _changes(text: str) -> dict[str, str]:
    """Changes of attributes: +KEY=VALUE or -KEY, with commas. Raises InvalidArgument."""
    found: dict[str, str] = {}
    for each in filter(None, text.split(",")):
        key, _, value = each.partition("=")
        if key in found:
            raise InvalidArgument("an attribute is changed twice", key, "name it once")
        found[key] = value
    return found


def describe(services: Services, call: Call) -> Reply:
    """All settings of a topic. Raises TopicNotFound."""
    topic = read_fields(call.command, TopicFields).topic
    return Reply(body=write_body(_body(topic, services.topics.routed(topic))))


def describe_all(services: Services, call: Call) -> Reply:
    """All topics, in one answer."""
    topics = services.topics.all_routed()
    table = {topic: _body(topic, config) for topic, config in topics.items()}
    body = TopicConfigs(table, DataVersion(services.topics.version))
    return Reply({"totalTopicNum": str(len(topics))}, write_body(body))


def list_system(services: Services, call: Call) -> Reply:
    names = [topic for topic in services.topics.all_routed() if is_system_topic(topic)]
    return Reply(body=write_body(TopicList(names)))


def _body(topic: str, config: TopicConfig) -> TopicConfigBody:
    return TopicConfigBody(
        config.attributes,
        config.order,
        config.perm,
        config.read_queues,
        config.filter_type,
        topic,
        config.sys_flag,
        config.write_queues,
    )
