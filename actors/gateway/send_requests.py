"""Requests that send a message or a batch."""

from __future__ import annotations

from penstock.actors.gateway.calls import Call
from penstock.actors.gateway.services import Services
from penstock.remoting.codes import Request
from penstock.remoting.fields import SendFields, read_fields


def send(services: Services, call: Call) -> None:
    """Have it stored; it is answered when it is. C++ marks batches in an ordinary request."""
    fields = read_fields(call.command, SendFields)
    is_batch = fields.batch or call.command.code == Request.SEND_BATCH_MESSAGE
    services.sends.take(call, fields, is_batch)
