"""Requests that take long by themselves, such as parsing a long filter: one is served in each turn.

So all others go on in between, whatever one client asks for and how often.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.actors.gateway.calls import Call, Reply
from penstock.shared.errors import BrokerBusy

MOST = 1000

Serve = Callable[[], Reply | None]


class LongRequests:
    """Those that wait for their turn."""

    def __init__(self, serve: Callable[[Call, Serve], None]) -> None:
        self._serve = serve
        self._waiting: deque[tuple[Call, Serve]] = deque()

    def add(self, call: Call, serve: Serve) -> None:
        """Have it served in its turn. Raises BrokerBusy."""
        if len(self._waiting) >= MOST:
            raise BrokerBusy("as many long requests as may are waiting", MOST, "ask again later")
        self._waiting.append((call, serve))

    def work(self) -> int:
        """Serve one; returns how many were waiting."""
        found = len(self._waiting)
        while self._waiting:
            call, serve = self._waiting.popleft()
            if call.connection.is_open:
                self._serve(call, serve)
                break
        return found
