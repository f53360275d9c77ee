"""A member's request that has no answer yet, and when it is to be sent, again perhaps. Pure.

A connection loses nothing while it lives, so silence means that the coordinator has much to do, and
asking again at once would be more of it.
"""

from __future__ import annotations

from penstock.shared.wire.group_messages import GroupRequest

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
