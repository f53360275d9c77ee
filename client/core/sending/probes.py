"""When a producer that waits for answers asks the writer how far it got, and how often.

An answer that is late may be lost, or the writer has others before it: a thousand producers that
each ask ten times a second would be most of what a busy one does. So each question without an
answer is followed by a longer pause, and each answer to a frame halves it. Pure; no clock is read.
"""

from __future__ import annotations

from collections import deque

PROBE_MS = 100
MOST_MS = 1600
# How soon a connection that failed is tried again.
CONNECT_MS = 10


class Probes:
    """The questions of one producer. `pause_ms`: how long nothing must have come for the next."""

    __slots__ = ("pause_ms", "_numbers")

    def __init__(self) -> None:
        self.pause_ms = PROBE_MS
        # what the next frame's number was when each unanswered question left
        self._numbers: deque[int] = deque()

    def ask(self) -> int:
        """One leaves, of a session that is not open yet; after how long the next may."""
        pause_ms, self.pause_ms = self.pause_ms, min(2 * self.pause_ms, MOST_MS)
        return pause_ms

    def sent(self, next_seq: int) -> None:
        """One leaves, in a session that is open."""
        self._numbers.append(next_seq)
        self.ask()

    def heard(self) -> int:
        """One is answered: the next frame's number when it left. 0: none was asked."""
        return self._numbers.popleft() if self._numbers else 0

    def frame_answered(self) -> None:
        self.pause_ms = max(self.pause_ms // 2, PROBE_MS)

    def due_ms(self, answered_ms: int, asked_ms: int) -> int:
        """When the next is to leave, after the last answer and the last question."""
        return max(answered_ms, asked_ms) + self.pause_ms

    def forget(self) -> None:
        """There is another session: no answer counts any more."""
        self._numbers.clear()

    def lost(self, now_ms: int) -> int:
        """There is no connection: no answer will come. When one must have come last, so that the
        next question leaves after CONNECT_MS."""
        self._numbers.clear()
        self.pause_ms = PROBE_MS
        return now_ms - PROBE_MS + CONNECT_MS
