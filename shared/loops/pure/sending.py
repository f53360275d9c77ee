"""From a caller's `send` to the open frame, in one call where nothing is in the way.

In pure Python: the twin of what `compiled` has under the same names (see `active`). A message goes
this way if it is plain (see `intake`), the open frame has room for it, and no other thread is using
the producer at that moment. For anything else the result is None, and nothing has changed: the
caller has its own way, which can wait, open a frame, wake the thread that sends, and refuse. That
thread need not be woken here: while a frame is open it is awake, or waits for an answer before more
may leave.
"""

from __future__ import annotations

from collections.abc import Callable

# The compiled lock is taken without a call of Python; `with` and threading.Condition take either.
from threading import RLock as SendLock
from typing import Any

from penstock.shared.loops.forms import NO_ROOM
from penstock.shared.loops.pure.intake import Intake

__all__ = ["PlainSender", "SendLock"]


class PlainSender:
    """Takes one producer's plain messages from its callers."""

    def __init__(
        self, intake: Intake, lock: SendLock, now_ms: Callable[[], int], most: int
    ) -> None:
        """`lock` is the producer's, `now_ms` its clock; `most` bytes may wait for the broker."""
        self._intake = intake
        self._lock = lock
        self._now_ms = now_ms
        self._most_waiting_bytes = most

    def try_send(
        self, topic: Any, body: Any, tags: Any, keys: Any, shard: Any, queue: Any, ack: Any
    ) -> Any:
        """The future of a message; None if it does not go this way. Raises what `Intake.take` does.

        Never waits.
        """
        if not self._lock.acquire(blocking=False):
            return None
        intake = self._intake
        try:
            if intake.closed or intake.waiting_bytes > self._most_waiting_bytes:
                return None
            if intake.frame is None:
                return None
            future = intake.take(topic, body, tags, keys, shard, queue, ack, self._now_ms())
        finally:
            self._lock.release()
        return None if future is NO_ROOM else future
