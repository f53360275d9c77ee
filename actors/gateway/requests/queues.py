"""Requests that read a queue: pulls, offsets of a group, offsets of the queue itself."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.grouping.members import Member
from penstock.actors.gateway.services import Services
from penstock.remoting.codes import Response
from penstock.remoting.fields import (
    PULL_COMMITS,
    PULL_HAS_SUBSCRIPTION,
    OffsetAnswer,
    PullAnswer,
    PullFields,
    QueryFields,
    QueryOffsetFields,
    QueueFields,
    SearchOffsetFields,
    TimestampAnswer,
    UpdateOffsetFields,
    ViewFields,
    read_fields,
)
from penstock.shared.errors import ConfigError
from penstock.shared.filters.message_filter import SQL92, Filter
from penstock.shared.formats.record_check import record_at
from penstock.shared.names import is_stored_topic
from penstock.shared.queue.reader import unreadable
from penstock.shared.queue.young import is_young

# The boundary type that asks for the last offset stored by a time.
UPPER = "UPPER"


def pull(services: Services, call: Call) -> Reply | None:
    """Messages of a queue, at once or later. If the pull names no filter, the filter is that of the
    member's heartbeats; on a connection without a member, that of its group."""
    fields, said = read_fields(call.command, PullFields), None
    if fields.sys_flag & PULL_HAS_SUBSCRIPTION:
        said = fields.expression_type, fields.subscription
    # From here on the pull may be held, and no limit counts the bytes of held pulls. So what a
    # client can make as large as a frame, and the answer does not need, is dropped.
    fields = replace(fields, expression_type="TAG", subscription="")
    return _pull(services, call.without_content(), fields, said, may_wait=True)


def _pull(
    services: Services,
    call: Call,
    fields: PullFields,
    said: tuple[str, str] | None,
    may_wait: bool,
) -> Reply | None:
    """`said` is the filter that the pull names itself, as type and expression. `may_wait` says that
    the heartbeat it depends on may still be on its way."""
    services.group_settings.check_pull(fields.consumer_group)
    members = services.groups.members
    member = members.of(call.connection, fields.consumer_group)
    if said is not None:
        kind, expression = said
    else:
        # A client that has sent no heartbeat yet pulls by its group's subscription, as in RocketMQ.
        subscriber = member or members.subscriber(fields.consumer_group, fields.topic)
        known = subscriber.subscriptions.get(fields.topic) if subscriber is not None else None
        is_early = subscriber is None or known is None or known.version < fields.sub_version
        # a member's pulls show which queues it keeps, so the member must be known; unless the group
        # broadcasts, and each has all queues anyway
        is_unknown = member is None and subscriber is not None and subscriber.model == "clustering"
        # and a name that no topic can have is not kept
        if (is_early or is_unknown) and may_wait and is_stored_topic(fields.topic):
            later = partial(_pull, services, call, fields, None, may_wait=False)
            if services.early.hold(call, later):
                return None
        if subscriber is None or known is None:
            return Reply(
                code=Response.SUBSCRIPTION_NOT_EXIST,
                remark=f"this client has not said yet what it wants of {fields.topic}",
            )
        if known.version < fields.sub_version:
            remark = "this client's last heartbeat has an older subscription"
            return Reply(code=Response.SUBSCRIPTION_NOT_LATEST, remark=remark)
        services.group_settings.check_pull(fields.consumer_group, subscriber.model)
        kind, expression = known.expression_type, known.expression

    def serve() -> None:
        _pull_by(services, call, fields, member, filter_of(services, kind, expression))

    if services.filters.costs(kind, expression):
        services.long_requests.add(call, serve)
    else:
        serve()
    return None


def _pull_by(
    services: Services, call: Call, fields: PullFields, member: Member | None, chosen: Filter | None
) -> None:
    queue = fields.topic, fields.queue_id
    if member is not None:
        if queue in member.moved:
            _take_moved(services, call, fields, member)
            return
        services.groups.pulled(member, queue)
        if fields.sys_flag & PULL_COMMITS:
            services.groups.commit(member, queue, fields.commit_offset, None)
    services.pulls.take(call, fields, chosen)


def filter_of(services: Services, kind: str, expression: str) -> Filter | None:
    """The filter of a subscription. Raises FilterError, and ConfigError for one that is switched
    off."""
    if kind == SQL92 and not services.config.enable_property_filter:
        raise ConfigError("this broker does not filter by SQL92", "enable_property_filter is false")
    return services.filters.get(kind, expression)


def _take_moved(services: Services, call: Call, fields: PullFields, member: Member) -> None:
    """An operator has set the group's offset: tell the client, which goes on from there."""
    low, high = services.range_of(fields.topic, fields.queue_id)

    def found(offset: int) -> None:
        reply = Reply(
            PullAnswer(offset, low, high), code=Response.PULL_OFFSET_MOVED, remark="OFFSET_RESET"
        )
        services.answer(call, reply)

    services.groups.take_moved(call, member, (fields.topic, fields.queue_id), found)


def query_offset(services: Services, call: Call) -> None:
    """Where a group goes on. If it has not begun, RocketMQ says 0 for a young queue."""
    fields = read_fields(call.command, QueryOffsetFields)

    def start() -> int:
        slot = services.queues.queues(fields.topic).get(fields.queue_id)
        if slot is None or not fields.set_zero_if_not_found:
            return -1
        try:
            return 0 if is_young(services.queues, services.positions, slot) else -1
        except OSError:
            return -1  # the client decides, and its pull is told what is wrong

    services.groups.query(call, fields, start)


def update_offset(services: Services, call: Call) -> None:
    services.groups.update(call, read_fields(call.command, UpdateOffsetFields))


def max_offset(services: Services, call: Call) -> Reply:
    fields = read_fields(call.command, QueueFields)
    return Reply(OffsetAnswer(services.range_of(fields.topic, fields.queue_id)[1]))


def min_offset(services: Services, call: Call) -> Reply:
    fields = read_fields(call.command, QueueFields)
    return Reply(OffsetAnswer(services.range_of(fields.topic, fields.queue_id)[0]))


def offset_by_time(services: Services, call: Call) -> Reply:
    """The first offset stored at or after a time; for UPPER the last one stored by then."""
    fields = read_fields(call.command, SearchOffsetFields)
    slot = services.queues.queues(fields.topic).get(fields.queue_id)
    if slot is None:
        return Reply(OffsetAnswer(services.range_of(fields.topic, fields.queue_id)[0]))
    try:
        if fields.boundary_type.upper() != UPPER:
            return Reply(OffsetAnswer(services.queues.offset_at(slot, fields.timestamp)))
        low, _ = services.queues.range(slot)
        return Reply(
            OffsetAnswer(max(low, services.queues.offset_at(slot, fields.timestamp + 1) - 1))
        )
    except OSError as error:
        raise unreadable(fields.topic, error) from None


def earliest_time(services: Services, call: Call) -> Reply:
    """When the first message of a queue was stored; -1 where it has none that can be read."""
    fields = read_fields(call.command, QueueFields)
    slot = services.queues.queues(fields.topic).get(fields.queue_id)
    try:
        stored_ms = services.queues.first_stored_ms(slot) if slot is not None else -1
    except OSError as error:
        raise unreadable(fields.topic, error) from None
    return Reply(TimestampAnswer(stored_ms))


def view(services: Services, call: Call) -> Reply:
    """The message at a log offset, which its id contains."""
    fields = read_fields(call.command, ViewFields)
    raw = record_at(services.log_at, fields.offset)
    if raw is None:
        remark = f"no message begins at log offset {fields.offset}"
        return Reply(code=Response.SYSTEM_ERROR, remark=remark)
    return Reply(body=bytes(raw))


def query(services: Services, call: Call) -> Reply | None:
    """Messages by their keys; answered when the index has been looked through."""
    return services.queries.take(call, read_fields(call.command, QueryFields))
