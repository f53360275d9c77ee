"""Finds out whether ZeroMQ has given a connection up because of its content: a too long answer.

ZeroMQ dials again by itself after a connection is lost, but not after it has closed one for its
content. Both begin with the same event; if ZeroMQ dials again, another event follows at once.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from itertools import count
from typing import Any

import zmq

# ZeroMQ's thread may lose the processor for this long between the two events.
GRACE_MS = 300
_EVENTS = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_CONNECT_DELAYED
_numbers = count(1)


class LostConnection:
    """Watches a client's socket, sync or asyncio. Not thread-safe."""

    def __init__(self, dialed: Any) -> None:
        address = f"inproc://lost-connection-{next(_numbers)}"
        dialed.monitor(address, _EVENTS)
        # Readable after an event. Callers wait for it, so it is sync or asyncio as `dialed` is.
        self.events: Any = dialed.context.socket(zmq.PAIR)
        self.events.connect(address)
        self._happened: zmq.Socket[bytes] = zmq.Socket.shadow(self.events.underlying)
        self._dialed = dialed
        self._since_ms = -1

    def take(self, now_ms: int) -> bool:
        """Take the events so far. Returns whether a connection was lost."""
        is_lost = False
        while self._happened.poll(0):
            # 16 bits of event, 32 of value; then an endpoint
            event = int.from_bytes(self._happened.recv_multipart()[0][:2], sys.byteorder)
            self._since_ms = now_ms if event == zmq.EVENT_DISCONNECTED else -1
            is_lost |= event == zmq.EVENT_DISCONNECTED
        return is_lost

    @property
    def is_doubtful(self) -> bool:
        """Whether a connection was lost and it is still unknown whether ZeroMQ dials again."""
        return self._since_ms >= 0

    def dial_again(self, endpoint: str, now_ms: int) -> bool:
        """Dial if ZeroMQ has given up. Returns whether it has."""
        self.take(now_ms)
        if self._since_ms < 0 or now_ms - self._since_ms < GRACE_MS:
            return False
        self._since_ms = -1
        with suppress(zmq.ZMQError):  # it has forgotten the endpoint
            self._dialed.disconnect(endpoint)
        self._dialed.connect(endpoint)
        return True

    def close(self) -> None:
        """Stop watching. To be called before the socket is closed."""
        with suppress(zmq.ZMQError):
            self._dialed.disable_monitor()
        self.events.close(linger=0)
