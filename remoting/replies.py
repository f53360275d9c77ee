"""The answer to a request: a code, fields, a body, and a remark if it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from penstock.remoting.codes import Response, response_of
from penstock.remoting.command import RESPONSE_FLAG, Command
from penstock.remoting.fields import write_fields
from penstock.shared.errors import PenstockError

# A remark about a name of 16 MiB would not fit a frame.
MOST_REMARK_CHARACTERS = 4096


class Reply(NamedTuple):
    """An answer: a code, fields as a struct or as texts, a body, and a remark if it is refused."""

    fields: msgspec.Struct | Mapping[str, str] | None = None
    body: bytes | memoryview = b""
    code: Response = Response.SUCCESS
    remark: str = ""


def refusal(error: PenstockError) -> Reply:
    """An error as a reply, with RocketMQ's code and Penstock's words."""
    return Reply(code=response_of(error), remark=str(error))


def response(request: Command, reply: Reply) -> Command:
    """The reply as a command, in the form of its request."""
    fields = reply.fields
    return Command(
        reply.code,
        request.opaque,
        write_fields(fields) if isinstance(fields, msgspec.Struct) else dict(fields or {}),
        reply.body,
        RESPONSE_FLAG,
        reply.remark[:MOST_REMARK_CHARACTERS],
        is_binary=request.is_binary,
    )
