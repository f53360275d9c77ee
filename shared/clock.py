"""Time as a value that is passed in: the system's clock, or one that a test moves by hand.

Wall time stamps messages. It may jump in both directions, so nothing is ever measured with it.
Monotonic time measures how long something took. Both count whole ms, as RocketMQ's records do.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What an actor may know of time. It is passed in, so that in a test years can pass."""

    def now_ms(self) -> int:
        """Wall time, ms since 1970."""
        ...

    def monotonic_ms(self) -> int:
        """A time that never goes back; all processes of one boot share its origin.

        So one process may store it in shared memory or a file, and another compare it with its own.
        After another boot such a number means nothing.
        """
        ...

    def local_hour(self) -> int:
        """The hour of the day, 0 to 23, in this machine's time zone.

        The hours of `delete_when` are local, as in RocketMQ.
        """
        ...


class SystemClock:
    """The clocks of this machine. Stateless, so each process and thread may have its own."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def local_hour(self) -> int:
        return time.localtime().tm_hour


class ManualClock:
    """A clock that stands still until it is moved: for tests, and for chaos in steps."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def local_hour(self) -> int:
        """The hour in Greenwich: a test must not depend on where it runs."""
        return self._now_ms // 3_600_000 % 24

    def advance(self, ms: int) -> None:
        """Let time pass, for both clocks alike."""
        self._now_ms += ms
        self._monotonic_ms += ms

    def jump(self, ms: int) -> None:
        """Move wall time alone, as when the system's clock is corrected."""
        self._now_ms += ms
