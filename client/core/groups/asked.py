"""A member's unanswered requests, and when each is to be sent or sent again. Pure.

A connection loses nothing while it lives, so silence means that the coordinator is busy, and asking
again at once would only add to its load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from penstock.shared.wire.group_messages import Commit, GroupRequest
from penstock.shared.wire.messages import WireMessage

# The pause before a repeat doubles each time, up to the second number.
REPEAT_MS, MAX_REPEAT_MS = 2000, 8000
# How soon a request that could not be sent is tried again.
NOT_SENT_MS = 20


class Asked:
    """One request. `first_ms` is when it was first sent, or -1 if it never was."""

    __slots__ = ("request", "due_ms", "first_ms", "_pause_ms")

    def __init__(self, request: GroupRequest) -> None:
        self.request = request
        self.due_ms = self.first_ms = -1
        self._pause_ms = REPEAT_MS

    def sent(self, now_ms: int) -> None:
        """Note that the request is on its way."""
        self.first_ms = now_ms if self.first_ms < 0 else self.first_ms
        self.due_ms = now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, MAX_REPEAT_MS)

    def is_due_at(self, due_ms: int) -> None:
        """Disregard earlier sendings: the request goes out at that time."""
        self.due_ms, self._pause_ms = due_ms, REPEAT_MS


class AllAsked:
    """One member's unanswered requests by number, in the order in which they were asked."""

    def __init__(self) -> None:
        self._number = 0
        self._asked: dict[int, Asked] = {}

    def __iter__(self) -> Iterator[Asked]:
        return iter(self._asked.values())

    def ask(self, kind: Callable[..., GroupRequest], *fields: Any, **named: Any) -> None:
        """Have a request of this kind sent, under a number that no other request has had."""
        self._number += 1
        self._asked[self._number] = Asked(kind(self._number, *fields, **named))

    def get(self, number: int) -> Asked | None:
        return self._asked.get(number)

    def pop(self, number: int) -> Asked | None:
        """Remove a request that is answered."""
        return self._asked.pop(number, None)

    def has(self, *kinds: type[WireMessage]) -> bool:
        """Whether one of these kinds has no answer yet."""
        return any(isinstance(each.request, kinds) for each in self)

    def unsay(self, queue: tuple[str, int]) -> None:
        """Take this queue out of the unanswered commits."""
        for each in self:
            if isinstance(each.request, Commit):
                left = [at for at in each.request.commits if (at.topic, at.queue_id) != queue]
                each.request = replace(each.request, commits=tuple(left))

    def keep(self, *kinds: type[WireMessage]) -> None:
        """Drop all requests except those of these kinds."""
        self._drop([each for each in self if not isinstance(each.request, kinds)])

    def drop(self, *kinds: type[WireMessage]) -> None:
        self._drop([each for each in self if isinstance(each.request, kinds)])

    def _drop(self, found: list[Asked]) -> None:
        for each in found:
            del self._asked[each.request.request]

    def are_due_at(self, due_ms: int) -> None:
        """Disregard earlier sendings: all requests go out at that time."""
        for each in self:
            each.is_due_at(due_ms)
