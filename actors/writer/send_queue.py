"""What waits in front of the writer while it cannot append, and when it has waited too long.

This is RocketMQ's broker fast failure: a frame that has waited wait_time_in_send_queue_ms is turned
away, and so is every frame once an append has been held up for os_page_cache_busy_timeout_ms.
Requests keep the order of arrival and stay undecoded; callers pass the time.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from penstock.actors.writer.callers import Asked
from penstock.shared.config import Config
from penstock.shared.errors import PAGE_CACHE_BUSY, BrokerBusy

# More requests than these stay in their sockets.
MAX_HELD = 1000
MAX_HELD_BYTES = 8 << 20
# A producer that was turned away may try again after this time.
BUSY_RETRY_MS = 100
PAGE_CACHE_RETRY_MS = 500


class _Held(NamedTuple):
    since_ms: int
    request: Asked
    size: int


class SendQueue:
    """Requests as they came from the socket, oldest first."""

    def __init__(self, config: Config) -> None:
        self._wait_ms = config.wait_time_in_send_queue_ms
        self._page_cache_ms = config.os_page_cache_busy_timeout_ms
        self._held: deque[_Held] = deque()
        self._bytes = 0
        self._blocked_since_ms = -1

    def __bool__(self) -> bool:
        return bool(self._held)

    @property
    def takes(self) -> bool:
        """Whether another request may come in."""
        return len(self._held) < MAX_HELD and self._bytes < MAX_HELD_BYTES

    def put(self, request: Asked, now_ms: int) -> None:
        held = _Held(now_ms, request, request.size)
        self._held.append(held)
        self._bytes += held.size

    def note(self, blocked: bool, now_ms: int) -> None:
        """Whether the writer cannot append at the moment."""
        if not blocked:
            self._blocked_since_ms = -1
        elif self._blocked_since_ms < 0:
            self._blocked_since_ms = now_ms

    def next(self) -> Asked:
        """The oldest request; it stays."""
        return self._held[0].request

    def take(self) -> Asked:
        """The oldest request; it waits no longer."""
        held = self._held.popleft()
        self._bytes -= held.size
        return held.request

    def busy(self, now_ms: int) -> BrokerBusy | None:
        """Why the oldest request is to be turned away now; None while it may wait."""
        blocked_ms = now_ms - self._blocked_since_ms if self._blocked_since_ms >= 0 else 0
        if blocked_ms > self._page_cache_ms:
            return BrokerBusy(
                "an append takes longer than os_page_cache_busy_timeout_ms",
                f"{blocked_ms} ms so far",
                "the disk is too slow for what comes; the message is not stored, send it later",
                PAGE_CACHE_BUSY,
                PAGE_CACHE_RETRY_MS,
            )
        waited_ms = now_ms - self._held[0].since_ms
        if waited_ms <= self._wait_ms:
            return None
        return BrokerBusy(
            "the frame has waited longer than wait_time_in_send_queue_ms for the writer",
            f"{waited_ms} ms",
            "more comes than the disk takes; the message is not stored, send it later",
            retry_after_ms=BUSY_RETRY_MS,
        )
