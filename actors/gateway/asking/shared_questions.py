"""Questions that many clients ask at once: one is at work, and one after it for all the others.

    ask -> said at once, if none of this kind is at work; else kept
    answered -> those that were kept are asked together, by one question

So each asker gets an answer that was found after it had asked; and however many ask, the other
actor works on one question at a time. It keeps only one question of a kind for each asker, and to
it the gateway is one asker.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from penstock.actors.gateway.asking.questions import Make, Then


class SharedQuestions:
    """What is at work, and who waits for the next one, by kind."""

    def __init__(self, ask: Callable[[Make, Then], None]) -> None:
        """`ask` asks the other actor; its callback gets the answer or the error, once."""
        self._ask = ask
        self._waiting: dict[Hashable, list[Then]] = {}

    def ask(self, kind: Hashable, make: Make, then: Then) -> None:
        """Ask a question of this kind; `then` gets the answer, or a PenstockError."""
        waiting = self._waiting.get(kind)
        if waiting is not None:
            waiting.append(then)
            return
        self._waiting[kind] = []
        self._begin(kind, make, [then])

    def _begin(self, kind: Hashable, make: Make, asking: list[Then]) -> None:
        def answered(answer: Any) -> None:
            next_ones = self._waiting.pop(kind)
            if next_ones:
                self._waiting[kind] = []
                self._begin(kind, make, next_ones)
            for then in asking:
                then(answer)

        self._ask(make, answered)
