"""Requests that have something stored: messages, batches, and what a group gives back."""

from __future__ import annotations

from typing import Any

from penstock.actors.gateway.calls import Call, Reply, refusal
from penstock.actors.gateway.services import Services
from penstock.remoting.codes import Request, Response
from penstock.remoting.fields import SendBackFields, SendFields, read_fields
from penstock.remoting.sends import as_dead_letter
from penstock.shared.errors import GroupNotFound, NoPermission, PenstockError
from penstock.shared.formats.properties import decode_properties
from penstock.shared.formats.record import decode_record
from penstock.shared.formats.record_check import record_at
from penstock.shared.messaging.retried import RETRY_TOPIC, retried
from penstock.shared.names import RETRY_PREFIX


def send(services: Services, call: Call) -> None:
    """Have a message stored; it is answered when it is. C++ marks batches in an ordinary
    request."""
    fields = read_fields(call.command, SendFields)
    is_batch = fields.batch or call.command.code == Request.SEND_BATCH_MESSAGE
    services.sends.check(fields)
    if fields.topic.startswith(RETRY_PREFIX) and _is_spent(services, fields, call.now_ms):
        fields = as_dead_letter(fields)
    services.sends.take(call, fields, is_batch)


def _is_spent(services: Services, fields: SendFields, now_ms: int) -> bool:
    """Whether a message that a client gives back by an ordinary send is a dead letter by now.
    Raises GroupNotFound."""
    group, most = fields.topic.removeprefix(RETRY_PREFIX), fields.max_reconsume_times
    if most is None:
        most = services.group_settings.of(group)["retryMaxTimes"]
    # A member that consumes in order retries in place, and only gives back what it has given up.
    return fields.reconsume_times > most or services.groups.members.has_locks(group, now_ms)


def send_back(services: Services, call: Call) -> None:
    """Have a message delivered to its group again, or make it a dead letter. As in RocketMQ, the
    group need not be the client's."""
    fields = read_fields(call.command, SendBackFields)
    member = services.groups.members.of(call.connection, fields.group)
    if member is not None:
        most, queues = member.retry_max_times, member.retry_queue_nums
        _put_back(services, call, fields, most, queues)
        return

    def described(answer: Any) -> None:
        try:
            if isinstance(answer, PenstockError):
                raise answer
            if not answer.exists:
                raise GroupNotFound("there is no consumer group of this name", fields.group)
            most, queues = answer.settings["retryMaxTimes"], answer.settings["retryQueueNums"]
            _put_back(services, call, fields, most, queues)
        except PenstockError as error:
            services.answer(call, refusal(error))

    services.groups.describe(fields.group, described)


def _put_back(
    services: Services, call: Call, fields: SendBackFields, most: int, queues: int
) -> None:
    """`most` and `queues` are what the group has set. Raises PenstockError."""
    if queues <= 0:
        services.answer(call, Reply())  # without retry queues the message is lost, as in RocketMQ
        return
    raw = record_at(services.log_at, fields.offset)
    if raw is None:
        remark = f"no message begins at log offset {fields.offset}"
        services.answer(call, Reply(code=Response.SYSTEM_ERROR, remark=remark))
        return
    if fields.max_reconsume_times is not None:
        most = fields.max_reconsume_times
    again = retried(
        decode_record(raw),
        fields.group,
        max_times=most,
        level=fields.delay_level,
        retry_queues=queues,
        # no `member`: it would be a property that a consumer of RocketMQ's does not have there
    )
    services.sends.put_back(call, again, fields.unit_mode)
    topic = decode_properties(again.properties)[RETRY_TOPIC]
    services.group_counts.gave_back(topic, fields.group, call.now_ms)


def recall(services: Services, call: Call) -> Reply:
    """Take a timed message back. By default RocketMQ's broker refuses it, too, and answers to sends
    have no handle for it."""
    raise NoPermission("messages are not recalled by RocketMQ's protocol here", None)
