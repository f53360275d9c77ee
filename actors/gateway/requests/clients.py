"""What clients say about themselves: heartbeats, leaving, and who else is in a group."""

from __future__ import annotations

from functools import partial
from typing import Any

from penstock.actors.gateway.calls import Call, Reply, refusal
from penstock.actors.gateway.connecting.connection import Client
from penstock.actors.gateway.grouping.members import check_client_id
from penstock.actors.gateway.requests.topics import mark_retry_topic
from penstock.actors.gateway.services import Services
from penstock.remoting.bodies import (
    ConsumerList,
    Heartbeat,
    LockBody,
    Locked,
    QueueBody,
    read_body,
    write_body,
)
from penstock.remoting.codes import Response
from penstock.remoting.fields import GroupFields, UnregisterFields, read_fields
from penstock.shared.errors import InvalidArgument, PenstockError
from penstock.shared.wire.group_messages import MAX_CLAIMS, Claimed

# For one client. Each of its groups, and each topic of the queues that it locks, is a question to
# the coordinator, and all other clients wait while these are asked.
MOST_GROUPS = 1000
# For a lock request that waits for its client's heartbeat, as no limit counts their bytes.
MOST_EARLY_BYTES = 16 << 10


def heartbeat(services: Services, call: Call) -> Reply | None:
    body, command = read_body(call.command.body, Heartbeat), call.command
    if (count := len(body.consumer_data_set or [])) > MOST_GROUPS:
        what = f"a client is a member of more than {MOST_GROUPS} groups"
        raise InvalidArgument(what, count, "run more clients")
    # the id is kept as long as the connection, whether the client consumes or not
    check_client_id(body.client_id)
    call.connection.client = Client(body.client_id, command.language, command.version, call.now_ms)
    groups = [each.group_name for each in body.producer_data_set or []]
    services.producers.heard(call.connection, body.client_id, groups)
    reply = services.groups.heartbeat(call, body)
    for each in body.consumer_data_set or []:
        mark_retry_topic(services, each)
    services.early.heard(call.connection)
    return reply


def unregister(services: Services, call: Call) -> Reply:
    fields = read_fields(call.command, UnregisterFields)
    member = services.groups.members.of(call.connection, fields.consumer_group)
    if member is not None and member.client_id == fields.client_id:
        services.groups.part(call.connection, member)
    services.producers.left(call.connection, fields.producer_group)
    return Reply()


def list_members(services: Services, call: Call) -> None:
    group = read_fields(call.command, GroupFields).consumer_group

    def listed(members: Any) -> None:
        if isinstance(members, PenstockError):
            services.answer(call, refusal(members))
        elif members:
            services.answer(call, Reply(body=write_body(ConsumerList(members))))
        else:
            remark = f"there are no members of group {group}"
            services.answer(call, Reply(code=Response.SYSTEM_ERROR, remark=remark))

    services.groups.list_members(call.connection, group, listed)


def lock(services: Services, call: Call) -> Reply | None:
    """Lock queues; the answer says which of them the member has now. The others are somebody
    else's."""
    body = read_body(call.command.body, LockBody)
    if len(body.mq_set) > MAX_CLAIMS:
        what = f"more than {MAX_CLAIMS} queues are to be locked at once"
        raise InvalidArgument(what, len(body.mq_set), "lock fewer at a time")
    # After a reconnect the lock may be renewed before the heartbeat, and a refusal stops the member
    # for 20 s. RocketMQ's broker needs no heartbeat for that; but here only members have queues.
    is_known = services.groups.members.get(body.consumer_group, body.client_id) is not None
    if not is_known and len(call.command.body) <= MOST_EARLY_BYTES:
        call = call.without_content()
        if services.early.hold(call, partial(_lock, services, call, body)):
            return None
    return _lock(services, call, body)


def _lock(services: Services, call: Call, body: LockBody) -> Reply | None:
    member = services.groups.members.get(body.consumer_group, body.client_id)
    if member is None or not body.mq_set:
        return Reply(body=write_body(Locked([])))
    services.groups.keep_order(member)
    by_topic: dict[str, list[QueueBody]] = {}
    for each in body.mq_set:
        by_topic.setdefault(each.topic, []).append(each)
    left, locked = [len(by_topic)], list[QueueBody]()

    def claimed(wanted: list[QueueBody], answer: Any) -> None:
        left[0] -= 1
        if isinstance(answer, Claimed):
            given = {each.queue_id for each in answer.queues}
            locked.extend(each for each in wanted if each.queue_id in given)
        if not left[0]:
            services.answer(call, Reply(body=write_body(Locked(locked))))

    for topic, wanted in by_topic.items():
        ids = [each.queue_id for each in wanted]
        services.groups.claim(member, topic, ids, partial(claimed, wanted))
    return None


def unlock(services: Services, call: Call) -> Reply:
    body = read_body(call.command.body, LockBody)
    member = services.groups.members.get(body.consumer_group, body.client_id)
    if member is not None:
        queues = [(each.topic, each.queue_id) for each in body.mq_set]
        services.groups.release(member, queues)
    return Reply()
