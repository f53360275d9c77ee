"""Requests that have something stored: messages, batches, and what a group gives back."""

from __future__ import annotations

import random

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.services import Services
from penstock.remoting.codes import Request, Response
from penstock.remoting.fields import SendBackFields, SendFields, read_fields
from penstock.shared.errors import GroupNotFound
from penstock.shared.formats.record import decode_record
from penstock.shared.index.lookup import record_at
from penstock.shared.messaging.retried import retried


def send(services: Services, call: Call) -> None:
    """Have it stored; it is answered when it is. C++ marks batches in an ordinary request."""
    fields = read_fields(call.command, SendFields)
    is_batch = fields.batch or call.command.code == Request.SEND_BATCH_MESSAGE
    services.sends.take(call, fields, is_batch)


def send_back(services: Services, call: Call) -> Reply | None:
    """Have a message come to its group again, or go to the dead letters."""
    fields = read_fields(call.command, SendBackFields)
    member = services.groups.members.of(call.connection, fields.group)
    if member is None:
        raise GroupNotFound("this client is no member of the group", fields.group)
    if member.retry_queue_nums <= 0:
        return Reply()  # a group without a topic for them loses them, in RocketMQ as well
    raw = record_at(services.log_at, fields.offset)
    if raw is None:
        remark = f"no message begins at log offset {fields.offset}"
        return Reply(code=Response.SYSTEM_ERROR, remark=remark)
    most = fields.max_reconsume_times
    again = retried(
        decode_record(raw),
        fields.group,
        max_times=member.retry_max_times if most is None else most,
        level=fields.delay_level,
        retry_queue=random.randrange(member.retry_queue_nums),
    )
    services.sends.put_back(call, again)
    return None
