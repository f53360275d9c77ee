"""Replies are pushed to the client that has asked, and stored like any message.

SEND_REPLY_MESSAGE -> PUSH_REPLY_MESSAGE_TO_CLIENT, to the client of REPLY_TO_CLIENT
                   -> stored in <cluster>_REPLY_TOPIC, where Penstock's own clients read it
both are done      -> answered
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import asdict

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.services import Services
from penstock.remoting.codes import Request, Response
from penstock.remoting.command import Command
from penstock.remoting.fields import PushReplyFields, SendFields, read_fields, write_fields
from penstock.shared.errors import PenstockError
from penstock.shared.formats.properties import decode_properties, encode_properties
from penstock.shared.messaging.request_reply import REPLY_TO_CLIENT

_PUSH_TIME = "PUSH_REPLY_TIME"


def reply(services: Services, call: Call) -> None:
    """Have a reply pushed and stored. If its client is not connected it is stored all the same, and
    its sender is told so."""
    fields = read_fields(call.command, SendFields)
    left: list[str | Reply] = []

    def done(what: str | Reply) -> None:
        """Take how the push failed, or "", or what the sender is told of the stored message."""
        left.append(what)
        if len(left) == 2:
            failed = next(each for each in left if isinstance(each, str))
            stored = next(each for each in left if isinstance(each, Reply))
            if failed and stored.code == Response.SUCCESS:
                stored = stored._replace(code=Response.SYSTEM_ERROR, remark=failed)
            services.answer(call, stored)

    services.sends.check(fields)
    services.sends.take(call._replace(then=done), fields, False)
    _push(services, call, fields, done)


def _push(services: Services, call: Call, fields: SendFields, done: Callable[[str], None]) -> None:
    properties = decode_properties(fields.properties.encode("utf-8", "replace"))
    client = properties.get(REPLY_TO_CLIENT, "")
    to = services.producers.client(client)
    if to is None:
        done(f"the reply is not pushed: its client is not here: {client[:80]}")
        return
    now_ms = services.now_ms()
    properties[_PUSH_TIME] = str(now_ms)
    pushed = PushReplyFields(
        **asdict(fields) | {"properties": encode_properties(properties).decode()},
        born_host=call.connection.address,
        store_host=services.address,
        store_timestamp=now_ms,
    )

    def answered(answer: Command | PenstockError) -> None:
        taken = isinstance(answer, Command) and answer.code == Response.SUCCESS
        done("" if taken else f"the reply was pushed, and its client has not taken it: {client}")

    services.requests.ask(
        to,
        Request.PUSH_REPLY_MESSAGE_TO_CLIENT,
        write_fields(pushed),
        call.command.body,
        answered,
        call.now_ms,
    )
