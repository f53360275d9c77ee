"""How long a broker is left alone: one that has said that it is busy, and one that does not answer.

Twice as long each time. After it was busy not all producers come back together. An answer that is
late may be lost, or the writer has others before it, and then a thousand producers that each ask
ten times a second how far it got are in its way. Pure but for chance; no clock is read.
"""

from __future__ import annotations

from collections import deque

from penstock.shared.errors import BrokerBusy

MAX_BACK_OFF_MS = 1000
# How long nothing must have come before the first question, and before one after others.
PROBE_MS, MOST_MS = 100, 1600
# How soon a connection that failed is tried again.
CONNECT_MS = 10


class BusyBroker:
    """One producer's broker. `error` is what it said last; None while it takes messages."""

    __slots__ = ("error", "_back_off_ms")

    def __init__(self) -> None:
        self.error: BrokerBusy | None = None
        self._back_off_ms = 0

    def pause_ms(self, error: BrokerBusy) -> int:
        """It has said so once more: how long not to ask it."""
        self.error = error
        self._back_off_ms = min(
            max(2 * self._back_off_ms, error.retry_after_ms, 1), MAX_BACK_OFF_MS
        )
        import random  # few producers ever wait

        # producers that were turned away together do not come back together
        return self._back_off_ms + random.randrange(self._back_off_ms // 4 + 1)

    def end(self) -> None:
        """It takes messages again."""
        self.error, self._back_off_ms = None, 0


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
        """There is another session: no answer counts any more. One to the last may have been why,
        and where frames are refused each needs a session: so the first question comes soon."""
        self._numbers.clear()
        self.pause_ms = PROBE_MS

    def lost(self, now_ms: int) -> int:
        """There is no connection: no answer will come. When one must have come last, so that the
        next question leaves after CONNECT_MS."""
        self._numbers.clear()
        self.pause_ms = PROBE_MS
        return now_ms - PROBE_MS + CONNECT_MS
