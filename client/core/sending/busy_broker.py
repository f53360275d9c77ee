"""A broker that has said it is busy: what it said, and how long it is left alone.

Twice as long each time, and not by all producers together. Pure but for chance.
"""

from __future__ import annotations

from penstock.shared.errors import BrokerBusy

MAX_BACK_OFF_MS = 1000


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
