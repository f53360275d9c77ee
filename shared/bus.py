"""Sockets: doorbells between actors, and the endpoints of clients. The only file to set up ZeroMQ.

A doorbell carries the ringer's name and nothing else: it says "look at the positions page". One
that is lost, late or repeated costs at most a timer tick, and among equals there is no order. Each
actor binds one PULL socket and has a PUSH socket for each actor it rings; what is here is the whole
wiring:

    allocator -> writer          there is room again
    writer    -> committer       `wrote` moved
    writer    -> allocator       a new segment was entered
    committer -> flusher, reput  `committed` moved
    flusher   -> writer, reput   `flushed` moved
    reput     -> reader          consume queues grew

The cleaner rings nobody, and nobody rings it: it looks at every tick.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import zmq

from penstock.shared.errors import PortTaken
from penstock.shared.faults import crash_point

if TYPE_CHECKING:
    from penstock.shared.run_directory import Run

RINGS = {
    "allocator": ("writer",),
    "writer": ("committer", "allocator"),
    "committer": ("flusher", "reput"),
    "flusher": ("writer", "reput"),
    "reput": ("reader",),
    "reader": (),
    "cleaner": (),
}

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
_BELLS_AT_ONCE = 10_000
# an int: an enum's `&` makes another enum
_POLLIN = int(zmq.POLLIN)


class Bus:
    """One actor's doorbells."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], run: Run, actor: str) -> None:
        self._actor, self._name = actor, actor.encode()
        self.bells = context.socket(zmq.PULL)
        self.bells.linger = 0
        with _owner_only():
            self.bells.bind(run.socket(f"bell-{actor}"))
        self._late: list[tuple[float, str]] = []
        self._ropes: dict[str, zmq.Socket[bytes]] = {}
        for target in RINGS[actor]:
            rope = context.socket(zmq.PUSH)
            rope.linger = 0
            # the other side may be down for a moment; look for it again soon
            rope.reconnect_ivl = 5
            rope.connect(run.socket(f"bell-{target}"))
            self._ropes[target] = rope

    def ring(self, target: str) -> None:
        """Wake an actor. A bell that cannot be sent is dropped: it has a thousand waiting."""
        pair = f"{self._actor}-{target}"
        if crash_point("bell.lost", pair):
            return
        if late_ms := crash_point("bell.late", pair):
            self._late.append((time.monotonic() + late_ms / 1000, target))
            return
        self._ring(target)
        if crash_point("bell.repeated", pair):
            self._ring(target)

    def _ring(self, target: str) -> None:
        try:
            self._ropes[target].send(self._name, zmq.NOBLOCK)
        except zmq.Again:
            return

    def _ring_late(self) -> None:
        """Ring what is due by now; an actor comes by at every tick."""
        now = time.monotonic()
        due = [target for at, target in self._late if at <= now]
        self._late = [(at, target) for at, target in self._late if at > now]
        for target in due:
            self._ring(target)

    def drain(self) -> int:
        """Take all bells that are there; how many. To be called before looking at a position."""
        if self._late:
            self._ring_late()
        for count in range(_BELLS_AT_ONCE):
            # most of the time there is none, and an exception costs more than the question
            if not int(self.bells.get(zmq.EVENTS)) & _POLLIN:
                return count
            self.bells.recv(zmq.NOBLOCK)
        return _BELLS_AT_ONCE

    def close(self) -> None:
        self.bells.close()
        for rope in self._ropes.values():
            rope.close()


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
            with _owner_only():
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
def _owner_only() -> Iterator[None]:
    """Sockets on the file system are for this user only, whatever the umask."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)
