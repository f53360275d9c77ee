"""A member's requests that have no answer yet, and when each is to be sent, again perhaps. Pure.

A connection loses nothing while it lives, so silence means that the coordinator has much to do, and
asking again at once would be more of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from penstock.shared.wire.group_messages import Commit, GroupRequest
from penstock.shared.wire.messages import WireMessage

# Each time twice as long, up to the second number.
REPEAT_MS, MAX_REPEAT_MS = 2000, 8000
# How soon what could not be sent is tried again.
NOT_SENT_MS = 20


class Asked:
    """One request. `first_ms` is when it was first sent; -1: it was not."""

    __slots__ = ("request", "due_ms", "first_ms", "_pause_ms")

    def __init__(self, request: GroupRequest) -> None:
        self.request = request
        self.due_ms = self.first_ms = -1
        self._pause_ms = REPEAT_MS

    def sent(self, now_ms: int) -> None:
        """It is on its way."""
        self.first_ms = now_ms if self.first_ms < 0 else self.first_ms
        self.due_ms = now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, MAX_REPEAT_MS)

    def is_due_at(self, due_ms: int) -> None:
        """What was sent of it counts no more: it goes out at that time."""
        self.due_ms, self._pause_ms = due_ms, REPEAT_MS


class AllAsked:
    """Those of one member, by their numbers, in the order in which they are asked."""

    def __init__(self) -> None:
        self._number = 0
        self._asked: dict[int, Asked] = {}

    def __iter__(self) -> Iterator[Asked]:
        return iter(self._asked.values())

    def ask(self, kind: Callable[..., GroupRequest], *fields: Any, **named: Any) -> None:
        """Have a request of this kind sent; its number is one that no other has had."""
        self._number += 1
        self._asked[self._number] = Asked(kind(self._number, *fields, **named))

    def get(self, number: int) -> Asked | None:
        return self._asked.get(number)

    def pop(self, number: int) -> Asked | None:
        """It is answered."""
        return self._asked.pop(number, None)

    def has(self, *kinds: type[WireMessage]) -> bool:
        """Whether one of these kinds has no answer yet."""
        return any(isinstance(each.request, kinds) for each in self)

    def unsay(self, queue: tuple[str, int]) -> None:
        """Commits without an answer say nothing of this queue any more."""
        for each in self:
            if isinstance(each.request, Commit):
                left = [at for at in each.request.commits if (at.topic, at.queue_id) != queue]
                each.request = replace(each.request, commits=tuple(left))

    def keep(self, *kinds: type[WireMessage]) -> None:
        """Ask for nothing any more but for these kinds."""
        self._drop([each for each in self if not isinstance(each.request, kinds)])

    def drop(self, *kinds: type[WireMessage]) -> None:
        self._drop([each for each in self if isinstance(each.request, kinds)])

    def _drop(self, found: list[Asked]) -> None:
        for each in found:
            del self._asked[each.request.request]

    def are_due_at(self, due_ms: int) -> None:
        """What was sent of them counts no more: all go out at that time."""
        for each in self:
            each.is_due_at(due_ms)
