"""Outcomes of transactions on their way to the broker, without a broker."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.client.core import transactions
from penstock.client.core.sending.frames import Receipt
from penstock.client.core.transactions import (
    HEARTBEAT_MS,
    REPEAT_MS,
    CommittedMessage,
    HalfMessage,
    OpenTransaction,
    TransactionCore,
    half_form,
)
from penstock.errors import BrokerTimeout, GroupNotFound, InvalidArgument, TransactionEnded
from penstock.shared.errors import BrokerBusy, WrongStore
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.messaging.half import HalfForm
from penstock.shared.wire.messages import encode, refusal
from penstock.shared.wire.transaction_messages import (
    CheckTransaction,
    Ended,
    EndTransaction,
    Outcome,
    Registered,
    RegisterProducer,
    decode_transaction_request,
)

FIRST, SECOND = HalfMessage("first", 0, 0), HalfMessage("second", 1, 100)
RECORD = encode_record(Record("orders", b"x"))


def core_of(listens: bool = False) -> TransactionCore:
    core = TransactionCore("tcp://127.0.0.1:1", "payments", "a", timeout_ms=1000, listens=listens)
    core.aim.run = "the run"
    return core


def said(core: TransactionCore, now_ms: int) -> list[Any]:
    return [decode_transaction_request(raw) for raw in core.outgoing(now_ms)]


def ended(number: int, outcome: str = "commit") -> list[bytes]:
    return [encode(Ended(number, outcome, 2, 3, 4))]


def asked(half: HalfMessage, group: str = "payments") -> bytes:
    return encode(CheckTransaction(0, group, *half))


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


def test_an_outcome_is_said_at_once_and_again_until_it_is_answered() -> None:
    core = core_of()
    number = core.end(FIRST, "commit", 70)
    words = EndTransaction(number, "payments", *FIRST, "commit", False, "the run")
    for now_ms in (70, 70 + REPEAT_MS, 70 + 2 * REPEAT_MS):
        assert core.wait_ms(now_ms) == 0
        assert said(core, now_ms) == [words]
        assert said(core, now_ms + REPEAT_MS - 1) == []
        assert core.wait_ms(now_ms) == REPEAT_MS and core.wait_ms(now_ms + REPEAT_MS - 1) == 1
    assert core.answer(number) is None
    core.received(ended(number))
    assert core.answered == {number} and said(core, 9000) == []
    assert core.answer(number) == Ended(number, "commit", 2, 3, 4)
    assert core.answer(number) is None and not core.answered, "once"


def test_one_waits_for_what_is_due_first() -> None:
    core = core_of(listens=True)
    core.end(FIRST, "commit", 0)
    assert len(said(core, 0)) == 2
    core.end(SECOND, "commit", 100)
    assert len(said(core, 100)) == 1
    assert core.wait_ms(100) == REPEAT_MS - 100
    assert core.wait_ms(REPEAT_MS + 1) == 0, "what is late is due, and no time is negative"


def test_a_producer_that_listens_registers_as_often_as_the_broker_says() -> None:
    core = core_of(listens=True)
    words = RegisterProducer(0, "payments", "a", "the run")
    assert core.wait_ms(0) == 0 and said(core, 0) == [words]
    assert core.wait_ms(0) == HEARTBEAT_MS and said(core, HEARTBEAT_MS - 1) == []
    assert said(core, HEARTBEAT_MS) == [words]
    core.received([encode(Registered(0, "payments", 5000))])
    assert core.wait_ms(HEARTBEAT_MS) == 5000 and said(core, HEARTBEAT_MS + 4999) == []
    assert said(core, HEARTBEAT_MS + 5000) == [words]
    core.received([encode(Registered(0, "payments", 0))])
    assert core.wait_ms(HEARTBEAT_MS + 5000) == 1
    assert core_of().wait_ms(7) == REPEAT_MS and said(core_of(), 7) == []


def test_what_could_not_be_sent_is_said_again_soon_and_the_broker_counts_as_away() -> None:
    core = core_of(listens=True)
    core.received([encode(Registered(0, "payments", 60_000))])
    assert not core.aim.away and len(said(core, 60_000)) == 1
    core.not_connected(60_000)
    assert core.aim.away
    assert core.wait_ms(60_000) == REPEAT_MS and len(said(core, 60_000 + REPEAT_MS)) == 1
    for answer in (ended(99), [encode(Registered(0, "payments", 1000))]):
        core.aim.away = True
        core.received(answer)
        assert not core.aim.away


@pytest.mark.parametrize(("wanted", "first"), [("commit", "rollback"), ("rollback", "commit")])
def test_another_outcome_than_was_asked_for_is_an_error_with_the_first_one(
    wanted: Outcome, first: Outcome
) -> None:
    core = core_of()
    number = core.end(FIRST, wanted, 0)
    core.received(ended(number, first))
    answer = core.answer(number)
    assert isinstance(answer, TransactionEnded) and f"with a {first}" in answer.what
    assert f"asked for: {wanted}" in str(answer.value)


def test_a_refusal_is_the_answer_of_one_or_of_all_and_that_of_a_busy_broker_of_none() -> None:
    core = core_of()
    numbers = [core.end(FIRST, "commit", 0), core.end(SECOND, "commit", 0)]
    core.decided(HalfMessage("third", 2, 200), "commit", 0)
    assert len(said(core, 0)) == 3
    core.received([encode(refusal(BrokerBusy("busy"), numbers[0]))])
    assert not core.answered and len(said(core, REPEAT_MS)) == 3, "all are said again"
    core.received([encode(refusal(GroupNotFound("one"), numbers[0]))])
    assert core.answered == {numbers[0]} and isinstance(core.answer(numbers[0]), GroupNotFound)
    core.received([encode(refusal(GroupNotFound("all"), 0))])
    assert core.answered == {numbers[1]}, "nobody waits for what was asked"
    assert said(core, 2 * REPEAT_MS) == []
    core.received([encode(refusal(GroupNotFound("gone"), numbers[0]))])
    core.received(ended(numbers[0]))
    assert core.answered == {numbers[1]}


def test_another_broker_in_the_place_answers_nothing_and_is_what_a_timeout_tells() -> None:
    core = core_of()
    number = core.end(FIRST, "commit", 0)
    core.received([encode(refusal(WrongStore("another store"), number))])
    assert core.aim.away and not core.answered and len(said(core, 0)) == 1
    core.tick(1001)
    assert isinstance(core.answer(number), WrongStore)


@pytest.mark.parametrize("heard", [encode(Registered(0, "payments", 9)), ended(99)[0]])
def test_another_broker_is_no_reason_once_the_right_one_has_answered(heard: bytes) -> None:
    core = core_of()
    number = core.end(FIRST, "commit", 0)
    core.received([encode(refusal(WrongStore("another store"), number))])
    core.received([heard])
    core.tick(1001)
    assert isinstance(core.answer(number), BrokerTimeout)


def test_nobody_waits_for_what_is_forgotten() -> None:
    core = core_of()
    unanswered, answered = core.end(FIRST, "commit", 0), core.end(SECOND, "commit", 0)
    core.received(ended(answered))
    for number in (unanswered, answered, 99):
        core.forget(number)
    assert not core.answered and said(core, 0) == []
    core.received(ended(unanswered))
    assert not core.answered


def test_a_question_is_handed_out_once_until_it_is_decided() -> None:
    core = core_of(listens=True)
    assert core.question() is None
    for half in (FIRST, SECOND, FIRST):
        core.received([asked(half), RECORD])
    found = core.question()
    assert found is not None and found[0] == FIRST and found[1].body == b"x"
    core.received([asked(FIRST), RECORD])  # the broker asks again meanwhile
    found = core.question()
    assert found is not None and found[0] == SECOND and core.question() is None
    core.decided(FIRST, "rollback", 0)
    _, words = said(core, 0)
    assert words == EndTransaction(1, "payments", *FIRST, "rollback", True, "the run")
    core.received([asked(FIRST), RECORD])
    found = core.question()
    assert found is not None and found[0] == FIRST, "it was not heard of, and is asked once more"
    core.received(ended(1, "commit"))
    assert not core.answered, "nobody waits for that"


def test_questions_of_others_without_a_message_and_too_many_are_left_to_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = core_of(listens=True)
    for group in ("another", "salaries"):
        core.received([asked(FIRST, group), RECORD])
    core.received([asked(FIRST), b""])
    core.received([asked(FIRST)])
    assert core.question() is None
    monkeypatch.setattr(transactions, "MAX_QUESTIONS", 2)
    for number in range(4):
        core.received([asked(HalfMessage(f"k{number}", number, number)), RECORD])
    assert [core.question() is None for _ in range(3)] == [False, False, True]


def test_a_transaction_ends_in_one_way_which_may_be_said_again() -> None:
    transaction = OpenTransaction("orders", HalfForm("payments"))
    transaction.check_open()
    assert transaction.halves("commit") == [] and transaction.halves("commit") == []
    for again in (transaction.check_open, lambda: transaction.halves("rollback")):
        with pytest.raises(InvalidArgument, match="has ended already"):
            again()
    assert transaction.outcome == "commit"


def test_what_a_transaction_has_stored_is_told_in_the_order_of_its_half_messages() -> None:
    transaction = OpenTransaction("orders", HalfForm("payments"))
    transaction.add("orders", Receipt("half", 0, 5, 500, "id", "first", 0))
    transaction.add("bills", Receipt("half", 0, 6, 600, "id", "second", 0))
    assert transaction.halves("commit") == [
        HalfMessage("first", 5, 500),
        HalfMessage("second", 6, 600),
    ]
    answers = [Ended(1, "commit", 2, 3, 4), Ended(2, "commit", 7, 8, 9)]
    assert transaction.committed(answers) == [
        CommittedMessage("orders", 2, 3, 4, "first"),
        CommittedMessage("bills", 7, 8, 9, "second"),
    ]


@pytest.mark.parametrize("topic", ["", "a/b", None])
def test_a_transaction_of_no_topic_is_refused_before_anything_is_sent(topic: Any) -> None:
    with pytest.raises(InvalidArgument):
        OpenTransaction(topic, HalfForm("payments"))


@pytest.mark.parametrize("seconds", [None, 0, 1, 90])
def test_when_the_broker_asks_first_is_the_senders_to_say(seconds: int | None) -> None:
    expected = HalfForm("g") if seconds is None else HalfForm("g", seconds)
    assert half_form("g", seconds) == expected
    with pytest.raises(InvalidArgument):
        half_form("g", -1)
