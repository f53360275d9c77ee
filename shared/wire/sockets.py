"""Sockets between clients and a broker: how each end is set up, and its limits.

Doorbells between actors are elsewhere: a client would have to load what only actors need.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import zmq

from penstock.shared.errors import PortTaken

# ZeroMQ silently drops the peer of a frame beyond this; up to here it gets a typed answer.
FRAME_HEADROOM = 4
REQUESTS_WAITING = 64
# Limit of an answer to a producer: the places of a frame's runs, or the names of all topics.
PRODUCE_ANSWER_BYTES = 64 << 20
# A connection whose ZeroMQ greeting takes longer is dropped, since it occupies a descriptor.
GREETING_TIMEOUT_MS = 10_000
# A client that reads nothing for this long is dropped; it reconnects when it can.
UNREAD_TIMEOUT_MS = 60_000
# An unanswered connection attempt is retried after this time.
CONNECT_TIMEOUT_MS = 3000
# The socket file, in the run directory, by which the gateway reaches the writer without ZeroMQ.
WRITER_STREAM = "stream-writer"
# Flags for a part that is not the last of its message, and for the last.
_MORE, _LAST = int(zmq.SNDMORE | zmq.NOBLOCK), int(zmq.NOBLOCK)


def serve(
    context: zmq.Context[zmq.Socket[bytes]],
    endpoints: tuple[str, ...],
    max_frame_bytes: int,
    listening: Mapping[str, int],
    answers_waiting: int,
) -> zmq.Socket[bytes]:
    """A ROUTER socket that clients connect to. Raises PortTaken when an address is taken.

    A client that has left `answers_waiting` answers unread gets no more, and repeats its requests
    when they time out. An endpoint in `listening` already has a socket, which the supervisor keeps:
    so clients can connect while an actor is being replaced, and wait.
    """
    _seed_identities()
    socket = context.socket(zmq.ROUTER)
    socket.linger = 0
    socket.maxmsgsize = FRAME_HEADROOM * max_frame_bytes
    # Per client. Further requests wait in the kernel's buffers, so memory is bounded.
    socket.rcvhwm = REQUESTS_WAITING
    socket.sndhwm = answers_waiting
    socket.handshake_ivl = GREETING_TIMEOUT_MS
    socket.set(zmq.TCP_MAXRT, UNREAD_TIMEOUT_MS)
    socket.ipv6 = True
    # A client whose machine has failed sends no FIN, and its memory would stay. The kernel probes
    # it, and not ZeroMQ: ZeroMQ's heartbeat aborts this process (`!_io_error`) if a client has gone
    # that had sent more than is read at a time.
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle, socket.tcp_keepalive_intvl, socket.tcp_keepalive_cnt = 15, 5, 3
    for endpoint in endpoints:
        try:
            # a duplicate, because ZeroMQ closes the descriptor that it gets
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
    """Make ZeroMQ's names for connections unpredictable.

    A ROUTER names connections by a counter that starts at the C library's rand(), which is the same
    in each process until it is seeded. A client may announce a name of its own, and ZeroMQ aborts
    the process when its counter reaches that name: a client that guesses it could kill an actor.
    """
    import ctypes  # here, as only brokers need it

    ctypes.CDLL(None).srand(ctypes.c_uint(int.from_bytes(os.urandom(4), "big")))


def send_parts(socket: Any, parts: Sequence[bytes | memoryview]) -> None:
    """Send a message now. Raises zmq.Again where that is not possible, and then sends nothing.

    For where each microsecond counts: for each part, pyzmq's own function joins its flags, which
    are enums, and checks what the part is.
    """
    for part in parts[:-1]:
        socket.send(part, _MORE)
    socket.send(parts[-1], _LAST)


def dial(context: zmq.Context[Any], endpoint: str, max_answer_bytes: int = -1) -> Any:
    """A client's DEALER socket to an endpoint, sync or asyncio as the context is.

    ZeroMQ reconnects it by itself, and closes a connection with an answer longer than
    `max_answer_bytes`.
    """
    socket = context.socket(zmq.DEALER)
    socket.maxmsgsize = max_answer_bytes
    socket.linger = 0
    socket.ipv6 = True
    socket.reconnect_ivl = 10
    socket.reconnect_ivl_max = 200
    socket.connect_timeout = CONNECT_TIMEOUT_MS
    # Nothing is queued for a peer that is not there: a failed send is known at once, and the client
    # repeats it when it knows who answers.
    socket.immediate = True
    socket.connect(endpoint)
    return socket


@contextmanager
def owner_only() -> Iterator[None]:
    """Within the block, socket files are made for this user only, whatever the umask is."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)
