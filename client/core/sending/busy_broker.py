"""How long a producer leaves a broker alone that is busy, or that does not answer.

The pause doubles each time. After the broker was busy, a random share keeps its producers from
coming back all together. A late answer may be lost, or the writer is busy with others; a thousand
producers that each ask ten times a second how far it got would then only be in its way.
Pure except for chance; no clock is read.
"""

from __future__ import annotations

from collections import deque

from penstock.shared.errors import BrokerBusy

MAX_BACK_OFF_MS = 1000
# How long nothing must have come before the first question, and at most before a later one.
PROBE_MS, MOST_MS = 100, 1600
# How soon a connection that failed is tried again.
CONNECT_MS = 10


class BusyBroker:
    """One producer's broker. `error` is its last refusal; None while it takes messages."""

    __slots__ = ("error", "_back_off_ms")

    def __init__(self) -> None:
        self.error: BrokerBusy | None = None
        self._back_off_ms = 0

    def pause_ms(self, error: BrokerBusy) -> int:
        """The broker is busy once more. Returns how long not to ask it."""
        self.error = error
        self._back_off_ms = min(
            max(2 * self._back_off_ms, error.retry_after_ms, 1), MAX_BACK_OFF_MS
        )
        import random  # few producers ever wait

        # so that producers that were turned away together do not come back together
        return self._back_off_ms + random.randrange(self._back_off_ms // 4 + 1)

    def end(self) -> None:
        """The broker takes messages again."""
        self.error, self._back_off_ms = None, 0


class Probes:
    """One producer's questions. `pause_ms`: how long nothing must have come before the next one."""

    __slots__ = ("pause_ms", "_numbers")

    def __init__(self) -> None:
        self.pause_ms = PROBE_MS
        # for each unanswered question, the number that the next frame had when it left
        self._numbers: deque[int] = deque()

    def ask(self) -> int:
        """A question leaves in a session that is not open yet. Returns when the next may, in ms."""
        pause_ms, self.pause_ms = self.pause_ms, min(2 * self.pause_ms, MOST_MS)
        return pause_ms

    def sent(self, next_seq: int) -> None:
        """A question leaves in an open session."""
        self._numbers.append(next_seq)
        self.ask()

    def heard(self) -> int:
        """A question is answered. Returns what the next frame's number was when it left, else 0."""
        return self._numbers.popleft() if self._numbers else 0

    def frame_answered(self) -> None:
        self.pause_ms = max(self.pause_ms // 2, PROBE_MS)

    def due_ms(self, answered_ms: int, asked_ms: int) -> int:
        """When the next question is to leave, given the last answer and the last question."""
        return max(answered_ms, asked_ms) + self.pause_ms

    def forget(self) -> None:
        """A new session begins, so no earlier answer counts. Its first question leaves soon: the
        session may have begun because frames were lost or refused, and more may follow."""
        self._numbers.clear()
        self.pause_ms = PROBE_MS

    def lost(self, now_ms: int) -> int:
        """The connection is lost, so no answer will come. Returns the time to be taken for that of
        the last answer, so that the next question leaves after CONNECT_MS."""
        self._numbers.clear()
        self.pause_ms = PROBE_MS
        return now_ms - PROBE_MS + CONNECT_MS
