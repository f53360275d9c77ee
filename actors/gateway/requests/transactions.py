"""How transactions ended, as their producers say at once or when they are asked."""

from __future__ import annotations

from typing import Any

from penstock.actors.gateway.calls import Call, Reply, refusal
from penstock.actors.gateway.services import Services
from penstock.remoting.codes import Response
from penstock.remoting.fields import EndTransactionFields, read_fields
from penstock.shared.errors import InvalidArgument, PenstockError, TransactionEnded
from penstock.shared.formats.properties import whole_number
from penstock.shared.formats.record_check import record_at
from penstock.shared.formats.record_layout import (
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_ROLLBACK,
)
from penstock.shared.loops.active import Message
from penstock.shared.messaging.half import CHECK_IMMUNITY
from penstock.shared.wire.transaction_messages import Outcome

_UNKNOWN = 0
_OUTCOMES: dict[int, Outcome] = {
    SYS_TRANSACTION_COMMIT: "commit",
    SYS_TRANSACTION_ROLLBACK: "rollback",
}


def end(services: Services, call: Call) -> None:
    """Commit or roll back; answered when that is durable. If the producer does not know yet,
    nothing is done and, as in RocketMQ, nothing is answered."""
    fields = read_fields(call.command, EndTransactionFields)
    outcome = _OUTCOMES.get(fields.commit_or_rollback)
    if outcome is None:
        if fields.commit_or_rollback != _UNKNOWN:
            remark = f"commitOrRollback has no such value: {fields.commit_or_rollback}"
            services.answer(call, Reply(code=Response.SYSTEM_ERROR, remark=remark))
        return
    if not fields.from_transaction_check and _is_late(services, fields.commit_log_offset):
        remark = "its time without checks is over: the producer is asked, and says it then"
        services.answer(call, Reply(code=Response.ILLEGAL_OPERATION, remark=remark))
        return

    def ended(answer: Any) -> None:
        if not isinstance(answer, PenstockError) and answer.outcome != outcome:
            answer = TransactionEnded(
                f"the transaction had ended already, with a {answer.outcome}",
                f"asked for: {outcome}",
                "the first outcome counts",
            )
        if isinstance(answer, InvalidArgument):
            # an offset without a half message is no invalid parameter to RocketMQ
            services.answer(call, Reply(code=Response.SYSTEM_ERROR, remark=str(answer)))
        elif isinstance(answer, PenstockError):
            services.answer(call, refusal(answer))
        else:
            services.answer(call, Reply())

    services.producers.end(fields, outcome, ended, call.now_ms)


def _is_late(services: Services, offset: int) -> bool:
    """Whether a half message has set a time without checks, and is older than that: from then on
    RocketMQ takes only answers to its checks. A transaction that has ended is refused as well, as
    there."""
    raw = record_at(services.log_at, offset)
    if raw is None:
        return False  # the transactions actor says so
    half = Message(raw)  # a view: each outcome comes here, and its body may be large
    immunity_s = half.properties.get(CHECK_IMMUNITY, "")
    if not immunity_s:
        return False
    # What is not a number counts as 0.
    immunity_ms = 1000 * max(0, whole_number(immunity_s))
    least_ms = services.config.transaction_time_out_ms
    return services.now_ms() - half.born_timestamp_ms > max(immunity_ms, least_ms)
