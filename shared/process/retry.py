"""When to try again what failed. A stage whose disk is full waits and retries, for ever."""

from __future__ import annotations

from penstock.shared.clock import Clock

# Soon enough that nobody notices a delay once there is room, and so rare that it costs nothing.
RETRY_MS = 200


class Retry:
    """The next try of one thing that may fail."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # when the next try is due, on the monotonic clock; 0 unless the last try failed
        self.due_ms = 0

    def put_off(self) -> None:
        """The try has failed: wait before the next one."""
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
