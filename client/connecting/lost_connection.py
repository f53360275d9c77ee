"""Whether ZeroMQ has given a connection up: for what came by it, as an answer that is too long.

It dials again by itself where a connection is lost, and does not where it was closed for its
content. Both begin with the same event; dialing again follows at once with another.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from itertools import count
from typing import Any

import zmq

# Between the two events its thread may lose the processor.
GRACE_MS = 300
_EVENTS = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_CONNECT_DELAYED
_numbers = count(1)


class LostConnection:
    """Watches a client's socket, sync or asyncio. Not for several threads."""

    def __init__(self, dialed: Any) -> None:
        address = f"inproc://lost-connection-{next(_numbers)}"
        dialed.monitor(address, _EVENTS)
        # readable when something has happened; for whoever waits, so sync or asyncio as `dialed` is
        self.events: Any = dialed.context.socket(zmq.PAIR)
        self.events.connect(address)
        self._happened: zmq.Socket[bytes] = zmq.Socket.shadow(self.events.underlying)
        self._dialed = dialed
        self._since_ms = -1

    def take(self, now_ms: int) -> bool:
        """Take what has happened; whether a connection was lost."""
        is_lost = False
        while self._happened.poll(0):
            # 16 bits of event, 32 of value; then an endpoint
            event = int.from_bytes(self._happened.recv_multipart()[0][:2], sys.byteorder)
            self._since_ms = now_ms if event == zmq.EVENT_DISCONNECTED else -1
            is_lost |= event == zmq.EVENT_DISCONNECTED
        return is_lost

    @property
    def is_doubtful(self) -> bool:
        """Whether a connection was lost, and it is not known yet whether ZeroMQ dials again."""
        return self._since_ms >= 0

    def dial_again(self, endpoint: str, now_ms: int) -> bool:
        """Dial where ZeroMQ has given up; whether it has."""
        self.take(now_ms)
        if self._since_ms < 0 or now_ms - self._since_ms < GRACE_MS:
            return False
        self._since_ms = -1
        with suppress(zmq.ZMQError):  # it has forgotten the endpoint
            self._dialed.disconnect(endpoint)
        self._dialed.connect(endpoint)
        return True

    def close(self) -> None:
        """Before the socket is closed."""
        with suppress(zmq.ZMQError):
            self._dialed.disable_monitor()
        self.events.close(linger=0)
