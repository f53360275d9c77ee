"""Outcomes of transactions on their way to the broker, without a broker."""

from __future__ import annotations

from penstock.client.core.transactions import HalfMessage, TransactionCore
from penstock.errors import BrokerTimeout


def test_whoever_waits_for_an_answer_is_told_after_the_timeout_and_a_question_is_not() -> None:
    core = TransactionCore("tcp://127.0.0.1:1", "payments", "a", timeout_ms=1000, listens=False)
    number = core.end(HalfMessage("first", 0, 0), "commit", 0)
    core.decided(HalfMessage("second", 1, 100), "commit", 0)
    core.tick(1000)
    assert not core.answered and len(list(core.outgoing(1000))) == 2
    core.tick(1001)
    assert core.answered == {number}
    assert isinstance(core.answer(number), BrokerTimeout)
    assert not list(core.outgoing(9000)), "neither is said again"
