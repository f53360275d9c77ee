"""How transactions ended, as their producers say at once or when they are asked."""

from __future__ import annotations

from typing import Any

from penstock.actors.gateway.calls import Call, Reply, refusal
from penstock.actors.gateway.services import Services
from penstock.remoting.codes import Response
from penstock.remoting.fields import EndTransactionFields, read_fields
from penstock.shared.errors import InvalidArgument, PenstockError, TransactionEnded
from penstock.shared.formats.record_layout import (
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_ROLLBACK,
)
from penstock.shared.wire.transaction_messages import Outcome

_UNKNOWN = 0
_OUTCOMES: dict[int, Outcome] = {
    SYS_TRANSACTION_COMMIT: "commit",
    SYS_TRANSACTION_ROLLBACK: "rollback",
}


def end(services: Services, call: Call) -> None:
    """Commit or roll back; answered when that is durable. Where the producer does not know yet
    nothing is done, and as in RocketMQ nothing is answered."""
    fields = read_fields(call.command, EndTransactionFields)
    outcome = _OUTCOMES.get(fields.commit_or_rollback)
    if outcome is None:
        if fields.commit_or_rollback != _UNKNOWN:
            remark = f"commitOrRollback has no such value: {fields.commit_or_rollback}"
            services.answer(call, Reply(code=Response.SYSTEM_ERROR, remark=remark))
        return

    def ended(answer: Any) -> None:
        if not isinstance(answer, PenstockError) and answer.outcome != outcome:
            answer = TransactionEnded(
                f"the transaction had ended already, with a {answer.outcome}",
                f"asked for: {outcome}",
                "the first outcome counts",
            )
        if isinstance(answer, InvalidArgument):
            # what names no half message is no invalid parameter to RocketMQ
            services.answer(call, Reply(code=Response.SYSTEM_ERROR, remark=str(answer)))
        elif isinstance(answer, PenstockError):
            services.answer(call, refusal(answer))
        else:
            services.answer(call, Reply())

    services.producers.end(fields, outcome, ended, call.now_ms)
