"""Sockets between clients and a broker: how each end is set up, and its limits.

Knows no doorbells, because a client would load with them what only actors need.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import zmq

from penstock.shared.errors import PortTaken

# A larger frame makes ZeroMQ drop the peer without a word; up to here it gets a typed answer.
FRAME_HEADROOM = 4
REQUESTS_WAITING = 64
# To a producer: places of a frame's runs, or the names of all topics.
PRODUCE_ANSWER_BYTES = 64 << 20
# A client that greets for longer is no client.
GREETING_TIMEOUT_MS = 10_000
# One that takes nothing of what is sent to it for so long is gone; it comes back when it can.
UNREAD_TIMEOUT_MS = 60_000
# Then a connection that gets no answer knocks again.
CONNECT_TIMEOUT_MS = 3000


def serve(
    context: zmq.Context[zmq.Socket[bytes]],
    endpoints: tuple[str, ...],
    max_frame_bytes: int,
    listening: Mapping[str, int],
    answers_waiting: int,
) -> zmq.Socket[bytes]:
    """A ROUTER socket that clients connect to. Raises PenstockError when an address is taken.

    A client that has `answers_waiting` answers unread gets no more: it asks again for those.

    Endpoints of which `listening` has a descriptor listen already, and go on when this closes.
    """
    _seed_identities()
    socket = context.socket(zmq.ROUTER)
    socket.linger = 0
    socket.maxmsgsize = FRAME_HEADROOM * max_frame_bytes
    # of one client; behind them its sends wait in the kernel, and memory stays bounded
    socket.rcvhwm = REQUESTS_WAITING
    socket.sndhwm = answers_waiting
    socket.handshake_ivl = GREETING_TIMEOUT_MS
    socket.set(zmq.TCP_MAXRT, UNREAD_TIMEOUT_MS)
    socket.ipv6 = True
    # a client that is gone without a word is noticed, and its memory freed
    socket.heartbeat_ivl = 5000
    socket.heartbeat_timeout = 30_000
    for endpoint in endpoints:
        try:
            # ZeroMQ closes what it was given
            socket.use_fd = os.dup(listening[endpoint]) if endpoint in listening else -1
            with owner_only():
                socket.bind(endpoint)
        except zmq.ZMQError as error:
            socket.close()
            raise PortTaken(
                "the endpoint cannot be listened on",
                f"{endpoint}: {error}",
                "stop what uses it, or choose another port",
            ) from None
    return socket


def _seed_identities() -> None:
    """Have ZeroMQ number connections from where nobody knows.

    A ROUTER names them by a counter that begins with the C library's rand(), which begins with the
    same number in each process; and ZeroMQ aborts when it comes to a name that a client has
    announced as its own.
    """
    import ctypes  # brokers alone need it

    ctypes.CDLL(None).srand(ctypes.c_uint(int.from_bytes(os.urandom(4), "big")))


def dial(context: zmq.Context[Any], endpoint: str, max_answer_bytes: int = -1) -> Any:
    """A client's DEALER socket to an endpoint, sync or asyncio as the context is.

    ZeroMQ reconnects it by itself, and closes a connection by which longer answers come.
    """
    socket = context.socket(zmq.DEALER)
    socket.maxmsgsize = max_answer_bytes
    socket.linger = 0
    socket.ipv6 = True
    socket.reconnect_ivl = 10
    socket.reconnect_ivl_max = 200
    socket.connect_timeout = CONNECT_TIMEOUT_MS
    # nothing is queued for a peer that is not there: what is lost is known, and sent again
    socket.immediate = True
    socket.connect(endpoint)
    return socket


@contextmanager
def owner_only() -> Iterator[None]:
    """Sockets on the file system are for this user only, whatever the umask."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)
