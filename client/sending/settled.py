"""What the callers of a producer wait on: for outcomes, for room, for answers.

The thread that brings these also runs callbacks. A callback that waited would wait for its own
thread for ever, so it gets an error instead.
"""

from __future__ import annotations

import threading
from typing import Any

from penstock.shared.errors import InvalidArgument


class Settled(threading.Condition):
    """The core's lock, and the notification that something has an outcome."""

    def __init__(self, lock: Any = None) -> None:
        super().__init__(lock)
        # the ident of that thread; None if everything runs on an event loop
        self.brought_by: int | None = None

    def check_may_wait(self) -> None:
        """Raises InvalidArgument in the producer's own thread."""
        if threading.get_ident() == self.brought_by:
            raise InvalidArgument(
                "a callback waits for the producer that has called it",
                None,
                "do what waits in another thread: a callback sends, and does not wait",
            )

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None or timeout > 0:
            self.check_may_wait()
        return super().wait(timeout)
