"""The sockets of many clients in one process and one thread, each with a connection of its own.

One epoll call says for all sockets which of them have something to read. What a seat does then is
in many_producers.py and many_consumers.py.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import zmq

# Between two sweeps over all sockets, whatever epoll reported.
SWEEP_S = 0.1


class Seat(Protocol):
    """One client."""

    socket: Any


_Seat = TypeVar("_Seat", bound=Seat)


class Seats(Generic[_Seat]):
    """`all` are the seats from `make`, which gets a context for their sockets and their number."""

    def __init__(
        self, make: Callable[[zmq.Context[zmq.Socket[bytes]], int], _Seat], count: int
    ) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._context.max_sockets = count + 16
        self.all = [make(self._context, at) for at in range(count)]
        self._by_handle = {int(seat.socket.fd): seat for seat in self.all}
        self._swept = 0.0
        self._epoll = select.epoll()
        for handle in self._by_handle:
            self._epoll.register(handle, select.EPOLLIN | select.EPOLLET)

    def heard(self) -> list[_Seat]:
        """The seats that may have something to read, after a wait; all of them now and then, and at
        first."""
        ready = self._epoll.poll(SWEEP_S)
        if (now := time.monotonic()) - self._swept > SWEEP_S:
            self._swept = now
            return self.all
        return [self._by_handle[handle] for handle, _ in ready]
