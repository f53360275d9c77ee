"""What was asked of another actor and has no answer yet. Pure: messages out, answers in.

    ask -> said, and again each AGAIN_MS -> answered, or late

The other actor may be a new process that has heard nothing, so questions without an answer are sent
again; each may be asked twice. But an old question must not be repeated after a newer one, which it
would undo. So all that have no answer are sent again together, in their order; and where only the
last word counts, as with commits in one queue, only the last is sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

from penstock.shared.errors import BrokerTimeout, InvalidArgument, ProtocolError
from penstock.shared.wire.messages import WireMessage, encode

AGAIN_MS = 1000
# Between two looks for late questions.
_LOOK_MS = 100

Make = Callable[[int], WireMessage]
# Decodes a question as the other actor does. Raises ProtocolError.
Reads = Callable[[bytes], Any]
Then = Callable[[Any], None]


class _Waits(NamedTuple):
    """A callback, and until when it waits."""

    then: Then
    until_ms: float


class _Question:
    __slots__ = ("header", "last_of", "said_ms", "waiting")

    def __init__(
        self, header: bytes, waiting: list[_Waits], last_of: Hashable, now_ms: int
    ) -> None:
        self.header, self.waiting, self.last_of = header, waiting, last_of
        self.said_ms = now_ms


class Questions:
    """Questions to one actor, by their numbers."""

    def __init__(self, whom: str, reads: Reads, timeout_ms: float = float("inf")) -> None:
        """`whom` names the actor in the error for what has no answer after `timeout_ms`."""
        self._whom, self._reads, self._timeout_ms = whom, reads, timeout_ms
        self._number = 0
        self._asked: dict[int, _Question] = {}
        self._unsaid: deque[int] = deque()
        # of questions of which only the last counts: the last one's number
        self._last: dict[Hashable, int] = {}
        self._look_ms = 0

    def __len__(self) -> int:
        return len(self._asked)

    def ask(self, make: Make, then: Then, now_ms: int, last_of: Hashable = None) -> None:
        """Ask what `make` makes with a number; `then` gets the answer, or a PenstockError.

        Of questions with the same `last_of` only the last counts: it replaces those before it, and
        its answer goes to all who asked them. Clients send names and numbers of any size. A
        question that the other actor could not decode would get no answer, so it is not asked:
        `then` gets an error at once, and all other questions stay.
        """
        try:
            header = encode(make(self._number + 1))
            self._reads(header)
        except OverflowError as error:
            then(InvalidArgument("a number of the request is too large", str(error)))
            return
        except RecursionError as error:
            then(InvalidArgument("the request is nested too deeply", str(error)))
            return
        except ProtocolError as error:
            then(InvalidArgument("a value of the request is not one that may be", error.value))
            return
        self._number += 1
        waiting = [_Waits(then, now_ms + self._timeout_ms)]
        if last_of is not None:
            before = self._asked.pop(self._last.get(last_of, 0), None)
            if before is not None:  # in place: a copy for each commit would take quadratic time
                before.waiting += waiting
                waiting = before.waiting
            self._last[last_of] = self._number
        self._asked[self._number] = _Question(header, waiting, last_of, now_ms)
        self._unsaid.append(self._number)

    def outgoing(self, now_ms: int) -> Iterator[bytes]:
        """Yield what is to be sent now. A caller that cannot send one stops there, and gets it
        again next time."""
        oldest = next(iter(self._asked.values()), None)
        if oldest is not None and now_ms - oldest.said_ms >= AGAIN_MS:
            self._unsaid = deque(self._asked)
        while self._unsaid:
            question = self._asked.get(self._unsaid[0])
            if question is not None:
                yield question.header
                question.said_ms = now_ms
            self._unsaid.popleft()

    def answered(self, number: int, answer: Any) -> bool:
        """Pass on an answer, or a PenstockError; returns whether anybody had asked for it."""
        question = self._asked.get(number)
        if question is None:
            return False
        self._drop(number, question)
        for each in question.waiting:
            each.then(answer)
        return True

    def give_up(self, now_ms: int) -> None:
        """Tell those that have waited too long."""
        if now_ms < self._look_ms:
            return
        self._look_ms = now_ms + _LOOK_MS
        for number, question in list(self._asked.items()):
            if self._asked.get(number) is not question:
                continue  # an earlier callback has asked again
            late = [each for each in question.waiting if now_ms >= each.until_ms]
            if len(late) == len(question.waiting):
                self._drop(number, question)
            elif late:
                question.waiting = [each for each in question.waiting if now_ms < each.until_ms]
            for each in late:
                each.then(self._late())

    def _drop(self, number: int, question: _Question) -> None:
        del self._asked[number]
        if self._last.get(question.last_of) == number:
            del self._last[question.last_of]

    def _late(self) -> BrokerTimeout:
        waited = f"within {self._timeout_ms:.0f} ms"
        return BrokerTimeout(f"the {self._whom} has not answered", waited, "try again")
