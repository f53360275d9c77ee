"""Requests that may take long, in turns: each one gets a step, and others are served in between.

A step is one queue. A request that yields True waits for another process, and the next one gets its
step. Of the same request from one peer, only the last is kept, and it is not begun twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable
from typing import Any, NamedTuple

from penstock.shared.errors import BrokerBusy, PenstockError

# What all of them may take together between two polls of the socket.
TURN_MS = 5
MAX_WAITING = 20_000
BUSY_MS = 100

Work = Generator[bool | None, None, Any]


class _Waiting(NamedTuple):
    peer: bytes
    request: int
    work: Work


class LongRequests:
    """The requests that have no answer yet."""

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._waiting: OrderedDict[Hashable, _Waiting] = OrderedDict()
        # how many wait for another process, by the last turn, rather than for their own step
        self._idle = 0

    @property
    def busy(self) -> bool:
        """Whether the next turn is to come at once."""
        return len(self._waiting) > self._idle

    @property
    def waits(self) -> bool:
        """Whether the next turn is to come soon, as nobody may report the end of a wait."""
        return bool(self._waiting)

    def add(self, key: Hashable, peer: bytes, request: int, work: Work) -> None:
        """Begin, unless the same request is at work. `key`: who asks for what. Raises
        BrokerBusy."""
        known = self._waiting.get(key)
        if known is not None and (known.peer, known.request) == (peer, request):
            work.close()
            return
        if known is None and len(self._waiting) >= MAX_WAITING:
            raise BrokerBusy(
                "too many requests about groups are at work",
                MAX_WAITING,
                "try again soon",
                retry_after_ms=BUSY_MS,
            )
        self._waiting[key] = _Waiting(peer, request, work)
        self._idle = 0

    def work(self) -> list[tuple[bytes, int, Any]]:
        """Steps in turn, for TURN_MS; (peer, request, answer or PenstockError) of the ended
        ones."""
        ended: list[tuple[bytes, int, Any]] = []
        until_ms = self._monotonic_ms() + TURN_MS
        idle = 0
        while idle < len(self._waiting):
            key, turn = self._waiting.popitem(last=False)
            try:
                idle = idle + 1 if next(turn.work) else 0
            except StopIteration as end:
                ended.append((turn.peer, turn.request, end.value))
            except PenstockError as error:
                ended.append((turn.peer, turn.request, error))
            else:
                self._waiting[key] = turn
            if self._monotonic_ms() >= until_ms:
                break
        self._idle = idle
        return ended
