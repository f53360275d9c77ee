"""What a name server is asked: it is one state, with a table of its own."""

from __future__ import annotations

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.services import Services


def ask(services: Services, call: Call) -> Reply:
    return services.names.server.answer(call.command, call.connection, call.now_ms)
