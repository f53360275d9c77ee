"""Members, producers and subscriptions, as operators ask for them, and how far groups are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.actors.gateway.calls import Call, Reply, refusal
from penstock.actors.gateway.requests.admin import stored_ms
from penstock.actors.gateway.services import Services
from penstock.remoting.admin.bodies import (
    BrokerConsumeStats,
    ConnectionBody,
    Connections,
    GroupConnections,
    GroupList,
    ProducerRow,
    Producers,
    SubscriptionOf,
    SubscriptionRow,
    TimeSpan,
    TimeSpans,
)
from penstock.remoting.admin.words import (
    ConsumerGroupName,
    GroupName,
    GroupTopicFields,
    InBrokerFields,
    ProducerGroupName,
    TopicName,
)
from penstock.remoting.bodies import (
    PASSIVELY,
    ConsumeStats,
    QueueBody,
    QueueOffsets,
    TopicList,
    queue_key,
    write_body,
)
from penstock.remoting.codes import VERSION, Response
from penstock.remoting.fields import ConsumeStatsFields, read_fields
from penstock.shared.errors import PenstockError
from penstock.shared.formats.java_hash import string_hash
from penstock.shared.wire import group_messages as words

_FROM = {
    "last": "CONSUME_FROM_LAST_OFFSET",
    "first": "CONSUME_FROM_FIRST_OFFSET",
    "timestamp": "CONSUME_FROM_TIMESTAMP",
    # RocketMQ's clients look up the time's offset themselves
    "member": "CONSUME_FROM_TIMESTAMP",
}


def _described(
    services: Services, call: Call, group: str, then: Callable[[words.GroupInfo], Reply]
) -> None:
    def described(answer: Any) -> None:
        failed = isinstance(answer, PenstockError)
        services.answer(call, refusal(answer) if failed else then(answer))

    services.groups.describe(group, described)


def _all_described(
    services: Services, call: Call, then: Callable[[dict[str, words.GroupInfo]], Reply]
) -> None:
    """Ask for all groups, and answer when all are known."""
    found: dict[str, words.GroupInfo] = {}

    def listed(answer: Any) -> None:
        if isinstance(answer, PenstockError):
            services.answer(call, refusal(answer))
            return
        left = set(answer.groups)
        if not left:
            services.answer(call, then(found))

        def described(group: str, answer: Any) -> None:
            if not left:
                return  # an error has been answered
            if isinstance(answer, PenstockError):
                left.clear()
                services.answer(call, refusal(answer))
                return
            left.discard(group)
            found[group] = answer
            if not left:
                services.answer(call, then(found))

        for group in sorted(left):
            services.groups.describe(group, partial(described, group))

    services.groups.ask_shared(
        "list", lambda number: words.ListGroups(number, services.run_id), listed
    )


# --- members and producers ---


def consumers(services: Services, call: Call) -> None:
    """The members of a group, of either protocol, and what they subscribe to."""
    group = read_fields(call.command, ConsumerGroupName).consumer_group

    def found(info: words.GroupInfo) -> Reply:
        if not info.members:
            return Reply(
                code=Response.CONSUMER_NOT_ONLINE, remark=f"group {group} has no members now"
            )
        rows = [row for each in info.members for row in _connections(services, group, each)]
        wanted = {row.topic: row for member in info.members for row in _rows(member)}
        first = info.members[0]
        there = services.groups.members.get(group, first.client_id)
        body = GroupConnections(
            rows,
            wanted,
            there.consume_type if there is not None else PASSIVELY,
            first.model.upper(),
            _FROM.get(first.start, _FROM["last"]),
        )
        return Reply(body=write_body(body))

    _described(services, call, group, found)


def _connections(services: Services, group: str, member: words.MemberInfo) -> list[ConnectionBody]:
    """One for each client that has the member's id; none while it is away."""
    there = services.groups.members.get(group, member.client_id)
    if there is None:  # one of Penstock's own
        return [ConnectionBody(member.client_id, member.address, "PYTHON", VERSION)]
    return [
        ConnectionBody(
            member.client_id, each.address, each.client.language.name, each.client.version
        )
        for each in there.connections
    ]


def _rows(member: words.MemberInfo) -> list[SubscriptionRow]:
    return [_row(each) for each in member.subscriptions]


def subscription_row(services: Services, group: str, topic: str) -> SubscriptionRow | None:
    """What a member that is connected here wants of a topic."""
    member = services.groups.members.subscriber(group, topic)
    return _row(member.subscriptions[topic]) if member is not None else None


def _row(said: words.SubscriptionData) -> SubscriptionRow:
    is_tags = said.expression_type == "TAG" and said.expression not in ("*", "")
    tags = [each.strip() for each in said.expression.split("||")] if is_tags else []
    return SubscriptionRow(
        said.topic, said.expression, said.version, said.expression_type, tags,
        [string_hash(each) for each in tags],
    )  # fmt: skip


def producers(services: Services, call: Call) -> Reply:
    """The clients that RocketMQ heartbeats name as producers of a group."""
    group = read_fields(call.command, ProducerGroupName).producer_group
    found = services.producers.groups().get(group)
    if not found:
        remark = f"producer group {group} has no clients now"
        return Reply(code=Response.SYSTEM_ERROR, remark=remark)
    rows = [
        ConnectionBody(
            each.client.client_id, each.address, each.client.language.name, each.client.version
        )
        for each in found
    ]
    return Reply(body=write_body(Connections(rows)))


def all_producers(services: Services, call: Call) -> Reply:
    """The same for all groups."""
    now_ms = services.now_ms() - call.now_ms
    table = {
        group: [
            ProducerRow(
                each.client.client_id,
                f"/{each.address}",  # as Java writes the address of a socket without a name
                each.client.language.name,
                each.client.version,
                now_ms + each.client.heard_ms,
            )
            for each in found
        ]
        for group, found in services.producers.groups().items()
    }
    return Reply(body=write_body(Producers(table)))


# --- topics and groups ---


def groups_of_topic(services: Services, call: Call) -> None:
    """Groups that have an offset in a topic, or subscribe to it."""
    topic = read_fields(call.command, TopicName).topic

    def found(infos: dict[str, words.GroupInfo]) -> Reply:
        return Reply(
            body=write_body(GroupList([name for name in infos if topic in _topics(infos[name])]))
        )

    _all_described(services, call, found)


def topics_of_group(services: Services, call: Call) -> None:
    """Topics that a group has an offset in."""

    def found(info: words.GroupInfo) -> Reply:
        return Reply(body=write_body(TopicList(sorted(_read_topics(info)), services.address)))

    _described(services, call, read_fields(call.command, GroupName).group, found)


def subscription(services: Services, call: Call) -> None:
    """What a group's members want of a topic."""
    fields = read_fields(call.command, GroupTopicFields)

    def found(info: words.GroupInfo) -> Reply:
        rows = {row.topic: row for member in info.members for row in _rows(member)}
        body = SubscriptionOf(fields.group, fields.topic, rows.get(fields.topic))
        return Reply(body=write_body(body))

    _described(services, call, fields.group, found)


def _read_topics(info: words.GroupInfo) -> set[str]:
    return {each.topic for each in info.queues if each.offset >= 0}


def _subscribed(info: words.GroupInfo) -> set[str]:
    return {said.topic for each in info.members for said in each.subscriptions}


def _topics(info: words.GroupInfo) -> set[str]:
    return _read_topics(info) | _subscribed(info)


def _wanted(topics: set[str], info: words.GroupInfo) -> set[str]:
    """The topics that the group's members still subscribe to: nobody reads what is left in others.
    For a group without members that is not known, and all topics count."""
    subscribed = _subscribed(info)
    return topics & subscribed if subscribed else topics


# --- how far they are ---


def time_spans(services: Services, call: Call) -> None:
    """For each queue of a topic, when its messages were stored, and how late a group is with
    them."""
    fields = read_fields(call.command, GroupTopicFields)
    config, name = services.topics.known(fields.topic), services.config.broker_name
    topic = fields.topic

    def found(info: words.GroupInfo) -> Reply:
        offsets = {each.queue_id: each.offset for each in info.queues if each.topic == topic}
        spans = []
        for queue_id in range(config.write_queues):
            slot = services.queues.queues(topic).get(queue_id)
            low, high = services.queues.range(slot) if slot is not None else (0, 0)
            first_ms = stored_ms(services, topic, queue_id, low) or -1
            last_ms = stored_ms(services, topic, queue_id, high - 1) or -1
            offset = offsets.get(queue_id, -1)
            done_ms = stored_ms(services, topic, queue_id, offset - 1) or -1
            read_ms = done_ms if offset > 0 else first_ms
            next_ms = stored_ms(services, topic, queue_id, offset) if 0 <= offset < high else 0
            late_ms = services.now_ms() - next_ms if next_ms > 0 else 0
            queue = QueueBody(name, queue_id, topic)
            spans.append(TimeSpan(queue, first_ms, last_ms, read_ms, late_ms))
        return Reply(body=write_body(TimeSpans(spans)))

    _described(services, call, fields.group, found)


def stats(services: Services, call: Call) -> None:
    """How far a group is in each queue of its topics, or of some of them: 0 where it has not
    begun."""
    fields = read_fields(call.command, ConsumeStatsFields)
    named, listed = fields.topic.strip(), set(fields.topic_list.split(";")) - {""}

    def found(info: words.GroupInfo) -> Reply:
        # listed topics are told in any case, as in RocketMQ
        topics = listed or _wanted({named} if named else _read_topics(info), info)
        offsets = by_topic(info)
        table: dict[str, QueueOffsets] = {}
        for topic in sorted(topics):
            table |= table_of(services, fields.consumer_group, offsets, topic)
        tps = sum(services.group_counts.tps(topic, fields.consumer_group) for topic in topics)
        return Reply(body=write_body(ConsumeStats(tps, table)))

    _described(services, call, fields.consumer_group, found)


def stats_of_all(services: Services, call: Call) -> None:
    """How far all groups are in all their topics."""
    is_order = read_fields(call.command, InBrokerFields).is_order

    def found(infos: dict[str, words.GroupInfo]) -> Reply:
        rows, lag, in_hand = [], 0, 0
        for group, info in infos.items():
            offsets, stats = by_topic(info), list[ConsumeStats]()
            for topic in sorted(_wanted(_read_topics(info), info)):
                known = services.topics.get(topic)
                if is_order and (known is None or not known.order):
                    continue
                if table := table_of(services, group, offsets, topic):
                    stats.append(ConsumeStats(services.group_counts.tps(topic, group), table))
                    lag += sum(q.broker_offset - q.consumer_offset for q in table.values())
                    in_hand += sum(q.pull_offset - q.consumer_offset for q in table.values())
            rows.append({group: stats})
        body = BrokerConsumeStats(rows, services.address, lag, in_hand)
        return Reply(body=write_body(body))

    _all_described(services, call, found)


Offsets = dict[str, dict[int, int]]


def by_topic(info: words.GroupInfo) -> Offsets:
    """topic -> queue -> the group's offset, or -1."""
    found: Offsets = {}
    for each in info.queues:
        found.setdefault(each.topic, {})[each.queue_id] = each.offset
    return found


def table_of(
    services: Services, group: str, offsets: Offsets, topic: str
) -> dict[str, QueueOffsets]:
    """How far a group is in each readable queue of a topic, 0 where nothing is known; and how far
    it has pulled: the messages in between are in its hands."""
    config, known, found = services.topics.get(topic), offsets.get(topic, {}), {}
    for queue_id in range(config.read_queues if config is not None else 0):
        _, high = services.range_of(topic, queue_id)
        offset = max(0, known.get(queue_id, 0))
        queue = QueueBody(services.config.broker_name, queue_id, topic)
        at_ms = stored_ms(services, topic, queue_id, offset - 1)
        pulled = max(offset, services.group_counts.pull_offset(topic, group, queue_id))
        found[queue_key(queue)] = QueueOffsets(high, offset, at_ms, pulled)
    return found
