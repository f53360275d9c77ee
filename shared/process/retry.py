"""When what failed is tried again. A stage whose disk is full waits and tries, for ever."""

from __future__ import annotations

from penstock.shared.clock import Clock

# Soon enough that nobody notices when there is room again, and not so often that it costs anything.
RETRY_MS = 200


class Retry:
    """The next try of one thing that may fail."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # when the next try is due, on the monotonic clock; 0 while nothing has failed
        self.due_ms = 0

    def put_off(self) -> None:
        """It has failed: wait before the next try."""
        self.due_ms = self._clock.monotonic_ms() + RETRY_MS

    def succeeded(self) -> None:
        self.due_ms = 0

    @property
    def has_failed(self) -> bool:
        """Whether it has failed and not succeeded since."""
        return self.due_ms > 0

    @property
    def waits(self) -> bool:
        """Whether it is too early for the next try."""
        return self.due_ms > 0 and self._clock.monotonic_ms() < self.due_ms
