"""Requests of clients that leave it to the broker how they consume: assignments, filters, modes.

Queues are divided by RocketMQ's strategies, among all members of the group, of either protocol.
Messages can only be pulled, and clients that want POP are told so.
"""

from __future__ import annotations

from typing import Any

from penstock.actors.gateway.calls import Call, Reply, refusal
from penstock.actors.gateway.requests.queues import filter_of
from penstock.actors.gateway.services import Services
from penstock.client.core.groups.strategies import QueueName, divide, strategy_of
from penstock.remoting.bodies import (
    Assignment,
    AssignmentBody,
    Assignments,
    ClientConfigBody,
    QueueBody,
    RequestModeBody,
    read_body,
    write_body,
)
from penstock.remoting.codes import Response
from penstock.shared.errors import InvalidArgument, NoPermission, PenstockError
from penstock.shared.names import RETRY_PREFIX


def check_config(services: Services, call: Call) -> Reply | None:
    """Whether a subscription can be served. Raises FilterError."""
    wanted = read_body(call.command.body, ClientConfigBody).subscription_data
    if wanted is None:
        return Reply()
    kind, expression = wanted.expression_type or "TAG", wanted.sub_string

    def serve() -> Reply:
        filter_of(services, kind, expression)
        return Reply()

    if services.filters.costs(kind, expression):
        services.long_requests.add(call, serve)
        return None
    return serve()


def assign(services: Services, call: Call) -> Reply | None:
    """A member's part of a topic's queues; all of them, where it broadcasts."""
    body = read_body(call.command.body, AssignmentBody)
    config = services.topics.get(body.topic)
    name, count = services.config.broker_name, config.read_queues if config is not None else 0
    queues = [QueueName(body.topic, name, number) for number in range(count)]
    if body.message_model in ("BROADCASTING", 0):
        return _assigned(queues)
    try:
        strategy = strategy_of(body.strategy_name)
    except InvalidArgument:
        return _assigned([])  # as RocketMQ does for a strategy that it does not have

    def listed(members: Any) -> None:
        if isinstance(members, PenstockError):
            services.answer(call, refusal(members))
        else:
            services.answer(call, _assigned(divide(strategy, queues, members, body.client_id)))

    services.groups.list_members(call.connection, body.consumer_group, listed)
    return None


def set_mode(services: Services, call: Call) -> Reply:
    """Accept PULL, the mode of all groups; refuse any other. Raises NoPermission."""
    body = read_body(call.command.body, RequestModeBody)
    if body.topic.startswith(RETRY_PREFIX):
        raise NoPermission("the mode of a topic of retries is not to be set", body.topic)
    return Reply() if body.mode == "PULL" else not_by(body.mode)


def not_by(mode: str) -> Reply:
    """The answer to clients that want another mode than to pull."""
    return Reply(
        code=Response.REQUEST_CODE_NOT_SUPPORTED,
        remark=f"messages are had by PULL only, and not yet by {mode[:40]}",
    )


def _assigned(queues: list[QueueName]) -> Reply:
    found = [Assignment(QueueBody(name, number, topic)) for topic, name, number in queues]
    return Reply(body=write_body(Assignments(found)))
