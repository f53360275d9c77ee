"""What a member is asked by way of the broker: what it is doing, or to handle a message now."""

from __future__ import annotations

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.services import Services
from penstock.remoting.admin.words import ClientFields
from penstock.remoting.codes import Response
from penstock.remoting.command import Command
from penstock.remoting.fields import read_fields
from penstock.shared.errors import PenstockError
from penstock.shared.formats.message_id import parse_message_id
from penstock.shared.formats.record_check import record_at


def running_info(services: Services, call: Call) -> Reply | None:
    """A client's state: its threads, its queues, what they hold."""
    return _forward(services, call, read_fields(call.command, ClientFields), b"")


def consume_directly(services: Services, call: Call) -> Reply | None:
    """Have a member handle a message, whatever its offset is, and say how that went."""
    fields = read_fields(call.command, ClientFields)
    _, offset = parse_message_id(fields.msg_id)
    raw = record_at(services.log_at, offset)
    if raw is None:
        remark = f"no message begins at log offset {offset}"
        return Reply(code=Response.SYSTEM_ERROR, remark=remark)
    return _forward(services, call, fields, bytes(raw))


def _forward(services: Services, call: Call, fields: ClientFields, body: bytes) -> Reply | None:
    member = services.groups.members.get(fields.consumer_group, fields.client_id)
    to = member.connection if member is not None else None
    if to is None:
        remark = (
            f"no member {fields.client_id} of group {fields.consumer_group} is connected by "
            "RocketMQ's protocol"
        )
        return Reply(code=Response.SYSTEM_ERROR, remark=remark)

    def answered(answer: Command | PenstockError) -> None:
        if isinstance(answer, Command):
            reply = Reply(answer.fields, answer.body, Response.SUCCESS, answer.remark)
            services.answer(call, reply._replace(code=_code(answer.code)))
        else:
            services.answer(call, Reply(code=Response.CONSUME_MSG_TIMEOUT, remark=str(answer)))

    said = dict(call.command.fields) | {"brokerName": services.config.broker_name}
    services.requests.ask(to, call.command.code, said, body, answered, call.now_ms)
    return None


def _code(code: int) -> Response:
    try:
        return Response(code)
    except ValueError:
        return Response.SYSTEM_ERROR
