"""A producer's transactions, without sockets and threads: outcomes that it reports, and questions.

    end -> said, and again each REPEAT_MS -> answered, refused, or given up after the timeout

Repeating an outcome is safe: the broker ends a half message only once. An unanswered question is
handed out only once. Nobody waits until the broker has the answer to it: if that is lost, the
broker asks again.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import NamedTuple

from penstock.client.core.aim import Aim
from penstock.client.core.arguments import check_at_least, check_text
from penstock.client.core.message import Message
from penstock.client.core.sending.frames import Receipt
from penstock.client.core.timeouts import STATUS
from penstock.shared.errors import (
    BrokerBusy,
    BrokerTimeout,
    InvalidArgument,
    PenstockError,
    TransactionEnded,
)
from penstock.shared.messaging.half import HalfForm
from penstock.shared.names import check_group, check_topic
from penstock.shared.wire.messages import Refused, encode, error_from_refusal
from penstock.shared.wire.transaction_messages import (
    CheckTransaction,
    Ended,
    EndTransaction,
    Outcome,
    Registered,
    RegisterProducer,
    decode_transaction_answer,
)

REPEAT_MS = 500
# The interval until the broker has stated one.
HEARTBEAT_MS = 1000
# How many questions may wait for the listener; further ones the broker asks again.
MAX_QUESTIONS = 1000


class HalfMessage(NamedTuple):
    """What identifies a half message; the offsets are those of its receipt."""

    unique_key: str
    queue_offset: int
    physical_offset: int


class _Said:
    """An outcome that has no answer yet."""

    __slots__ = ("half", "outcome", "from_check", "since_ms", "said_ms")

    def __init__(self, half: HalfMessage, outcome: Outcome, from_check: bool, now_ms: int) -> None:
        self.half, self.outcome, self.from_check = half, outcome, from_check
        self.since_ms, self.said_ms = now_ms, now_ms - REPEAT_MS


class TransactionCore:
    """One producer of one group. `listens`: the broker may ask it for outcomes."""

    def __init__(
        self, name: str, group: str, client_id: str, timeout_ms: int, listens: bool
    ) -> None:
        """Raises InvalidArgument for a name that no group can have."""
        self.aim = Aim()
        self._name, self._client_id = name, client_id
        self.group = check_group(check_text("group", group))
        self._timeout_ms, self._listens = timeout_ms, listens
        self._number = 0
        self._said: dict[int, _Said] = {}
        self._answers: dict[int, Ended | PenstockError] = {}
        self._heartbeat_ms, self._registered_ms = HEARTBEAT_MS, -HEARTBEAT_MS
        # questions that the listener has not taken yet, by half message
        self._questions: dict[HalfMessage, Message] = {}
        # questions that the listener is working on
        self._asked: set[HalfMessage] = set()

    # --- what this producer says ---

    def end(
        self, half: HalfMessage, outcome: Outcome, now_ms: int, from_check: bool = False
    ) -> int:
        """Report how a transaction ended. Returns the number by which `answer` has the answer."""
        self._number += 1
        self._said[self._number] = _Said(half, outcome, from_check, now_ms)
        return self._number

    def answer(self, number: int) -> Ended | PenstockError | None:
        """The answer, once: an Ended with the outcome that was asked for, or an error. Any other
        outcome is a TransactionEnded."""
        return self._answers.pop(number, None)

    @property
    def answered(self) -> Set[int]:
        """The numbers whose answers nobody has taken yet."""
        return self._answers.keys()

    def forget(self, number: int) -> None:
        """Nobody waits for the answer any more."""
        self._said.pop(number, None)
        self._answers.pop(number, None)

    def outgoing(self, now_ms: int) -> Iterator[bytes]:
        """All requests to be sent now."""
        run = self.aim.run
        if self._listens and now_ms - self._registered_ms >= self._heartbeat_ms:
            self._registered_ms = now_ms
            yield encode(RegisterProducer(0, self.group, self._client_id, run))
        for number, said in self._said.items():
            if now_ms - said.said_ms >= REPEAT_MS:
                said.said_ms = now_ms
                half = said.half
                yield encode(
                    EndTransaction(
                        number,
                        self.group,
                        half.unique_key,
                        half.queue_offset,
                        half.physical_offset,
                        said.outcome,
                        said.from_check,
                        run,
                    )
                )

    def not_connected(self, now_ms: int) -> None:
        """Sending has failed: everything is sent again soon, to the broker that runs then."""
        self.aim.away = True
        self._registered_ms = now_ms - self._heartbeat_ms + REPEAT_MS

    def wait_ms(self, now_ms: int) -> int:
        """For how many ms nothing has to be sent, unless something comes in."""
        due = [each.said_ms + REPEAT_MS for each in self._said.values()]
        if self._listens:
            due.append(self._registered_ms + self._heartbeat_ms)
        return max(0, min(due, default=now_ms + REPEAT_MS) - now_ms)

    # --- what it hears ---

    def received(self, parts: list[bytes]) -> None:
        """Take an answer, or a question. Raises ProtocolError for anything else."""
        answer = decode_transaction_answer(parts[0])
        if isinstance(answer, Registered):
            self.aim.away, self.aim.elsewhere = False, None
            self._heartbeat_ms = max(1, answer.heartbeat_ms)
        elif isinstance(answer, CheckTransaction):
            self._question(answer, parts[1] if len(parts) > 1 else b"")
        elif isinstance(answer, Refused):
            if self.aim.heard(answer):
                self._refused(answer)
        else:
            self.aim.away, self.aim.elsewhere = False, None
            self._ended(answer)

    def _question(self, asked: CheckTransaction, record: bytes) -> None:
        half = HalfMessage(asked.unique_key, asked.queue_offset, asked.physical_offset)
        is_room = len(self._questions) < MAX_QUESTIONS
        if record and is_room and half not in self._asked and asked.group == self.group:
            self._questions[half] = Message(record)

    def _ended(self, answer: Ended) -> None:
        said = self._said.pop(answer.request, None)
        if said is None or said.from_check:
            return
        if answer.outcome == said.outcome:
            self._answers[answer.request] = answer
        else:
            self._answers[answer.request] = TransactionEnded(
                f"the transaction had ended already, with a {answer.outcome}",
                f"{said.half.unique_key}, asked for: {said.outcome}",
                "the first outcome counts; bring the local state in line with it",
            )

    def _refused(self, answer: Refused) -> None:
        error = error_from_refusal(answer)
        if isinstance(error, BrokerBusy):
            return  # it is sent again
        numbers = [answer.request] if answer.request else list(self._said)
        for number in numbers:
            said = self._said.pop(number, None)
            if said is not None and not said.from_check:
                self._answers[number] = error

    # --- questions ---

    def question(self) -> tuple[HalfMessage, Message] | None:
        """The next question for the listener, which answers it by `decided`."""
        if not self._questions:
            return None
        half = next(iter(self._questions))
        self._asked.add(half)
        return half, self._questions.pop(half)

    def decided(self, half: HalfMessage, outcome: Outcome, now_ms: int) -> None:
        self._asked.discard(half)
        self.end(half, outcome, now_ms, from_check=True)

    # --- time ---

    def tick(self, now_ms: int) -> None:
        """Give up what has waited too long."""
        before_ms = now_ms - self._timeout_ms
        for number, said in list(self._said.items()):
            if said.since_ms >= before_ms:
                continue
            del self._said[number]
            if not said.from_check:
                self._answers[number] = self.aim.elsewhere or BrokerTimeout(
                    f"the broker has not answered within {self._timeout_ms} ms how the "
                    "transaction ended",
                    f"{self._name}: {said.half.unique_key}",
                    f"it asks the group's producers, by on_check; {STATUS}",
                )


class CommittedMessage(NamedTuple):
    """Where a message of a committed transaction is stored; offsets of -1 are no longer known."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    unique_key: str


class OpenTransaction:
    """The half messages of a transaction, and whether it has ended."""

    def __init__(self, topic: str, form: HalfForm) -> None:
        self.topic, self.form = check_topic(check_text("topic", topic)), form
        self._sent: list[tuple[str, HalfMessage]] = []
        self.outcome: Outcome | None = None

    def check_open(self) -> None:
        """Raises InvalidArgument if the transaction has ended."""
        if self.outcome is not None:
            what = "the transaction has ended already in this program"
            raise InvalidArgument(what, self.outcome, "begin another one")

    def add(self, topic: str, receipt: Receipt) -> None:
        """Note a stored half message of this transaction."""
        half = HalfMessage(receipt.unique_key, receipt.queue_offset, receipt.physical_offset)
        self._sent.append((topic, half))

    def halves(self, outcome: Outcome) -> list[HalfMessage]:
        """End the transaction like this, and return its half messages. The same outcome may be
        repeated; another may not."""
        if self.outcome != outcome:
            self.check_open()
        self.outcome = outcome
        return [half for _, half in self._sent]

    def committed(self, ended: list[Ended]) -> list[CommittedMessage]:
        return [
            CommittedMessage(
                topic, each.queue_id, each.queue_offset, each.physical_offset, half.unique_key
            )
            for (topic, half), each in zip(self._sent, ended, strict=True)
        ]


def half_form(group: str, check_after_s: int | None) -> HalfForm:
    """Raises InvalidArgument."""
    if check_after_s is None:
        return HalfForm(group)
    return HalfForm(group, check_at_least("check_after_s", check_after_s, 0))
