"""What clients say of themselves: heartbeats, leaving, and who else is in a group."""

from __future__ import annotations

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.services import Services
from penstock.remoting.bodies import Heartbeat, LockBody, read_body
from penstock.remoting.fields import GroupFields, UnregisterFields, read_fields


def heartbeat(services: Services, call: Call) -> Reply | None:
    return services.groups.heartbeat(call, read_body(call.command.body, Heartbeat))


def unregister(services: Services, call: Call) -> Reply:
    fields = read_fields(call.command, UnregisterFields)
    member = services.groups.members.of(call.connection, fields.consumer_group)
    if member is not None and member.client_id == fields.client_id:
        services.groups.part(member)
    return Reply()


def list_members(services: Services, call: Call) -> None:
    services.groups.list_members(call, read_fields(call.command, GroupFields).consumer_group)


def lock(services: Services, call: Call) -> Reply | None:
    return services.groups.lock(call, read_body(call.command.body, LockBody))


def unlock(services: Services, call: Call) -> Reply:
    services.groups.unlock(read_body(call.command.body, LockBody))
    return Reply()
