"""Heartbeats of clients, and their leave."""

from __future__ import annotations

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.services import Services
from penstock.remoting.bodies import Heartbeat, read_body
from penstock.remoting.fields import UnregisterFields, read_fields
from penstock.shared.errors import GroupNotFound

# What a client may leave out of its next heartbeats: nothing, but all the same it asks.
_ANSWER = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}


def heartbeat(services: Services, call: Call) -> Reply:
    """A client is there. Raises GroupNotFound for one that consumes: groups are not served yet."""
    found = read_body(call.command.body, Heartbeat)
    if found.consumer_data_set:
        raise GroupNotFound(
            "consumer groups are not served by the gateway yet",
            found.consumer_data_set[0].group_name,
            "consume with Penstock's own client: penstock consume TOPIC --group GROUP",
        )
    return Reply(_ANSWER)


def unregister(services: Services, call: Call) -> Reply:
    read_fields(call.command, UnregisterFields)
    return Reply()
