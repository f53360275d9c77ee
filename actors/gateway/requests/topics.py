"""Requests that make and change topics."""

from __future__ import annotations

from typing import Any

from penstock.actors.gateway.calls import Call, Reply, refusal
from penstock.actors.gateway.services import Services
from penstock.remoting.fields import CreateTopicFields, read_fields
from penstock.shared.errors import PenstockError
from penstock.shared.wire.messages import CreateTopic, UpdateTopic


def update(services: Services, call: Call) -> None:
    """Make a topic, or set what it has; it is answered when the file says so."""
    fields = read_fields(call.command, CreateTopicFields)
    run = services.run_id

    def done(answer: Any) -> None:
        services.topics.look()
        failed = isinstance(answer, PenstockError)
        services.answer(call, refusal(answer) if failed else Reply())

    def set_all(answer: Any) -> None:
        if isinstance(answer, PenstockError):
            done(answer)
            return
        services.sends.ask(
            lambda number: UpdateTopic(
                number,
                fields.topic,
                fields.read_queue_nums,
                fields.write_queue_nums,
                fields.perm,
                fields.order,
                run=run,
            ),
            done,
        )

    if services.topics.get(fields.topic) is None:
        queues = fields.write_queue_nums
        services.sends.ask(lambda number: CreateTopic(number, fields.topic, queues, run), set_all)
    else:
        set_all(None)
