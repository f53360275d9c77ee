"""Requests that come to an endpoint, one by one, however many parts they have.

ZeroMQ hands out a message when all of it is there, and a message may have millions of empty parts.
So parts are taken one by one. A connection that sends more parts than any request has is closed,
and the rest of its message is dropped in pieces, between which the actor beats. What was sent and
does not become a request is watched in inflow.py.
"""

from __future__ import annotations

import os
import socket as sockets
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import zmq

from penstock.shared.loops.active import drop_parts, has_message
from penstock.shared.process.inflow import LOOK_MS, Inflow

# A peer, a header, records; a request with a few parts too many gets an answer that says so.
MOST_PARTS = 8
# Parts dropped between two beats: some ms, or some hundred where the loops are not compiled.
DROPPED_AT_ONCE = 100_000
# An incomplete request wakes nobody, however large it grows. An actor that works to receive it is
# woken by that (`wake_by_work`); this interval is for what comes slowly.
_QUIET_LOOK_MS = 1000


class Inlet:
    """The requests of one serving socket."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        beat: Callable[[], None],
        closed: Callable[[str], None],
        monotonic_ms: Callable[[], int],
    ) -> None:
        """`beat` is called during whatever takes long; `closed` is called when a connection is
        closed, with what the client did."""
        self._socket = socket
        self._beat = beat
        self._closed = closed
        self._inflow = Inflow(monotonic_ms, self._flooded)
        # whether the last `receive` found no request
        self.drained = False
        # how soon to call `tend` again
        self.idle_ms = _QUIET_LOOK_MS

    def tend(self, held_bytes: int = 0) -> None:
        """Close connections that send what never becomes a request. The actor itself keeps
        `held_bytes` of memory for requests and answers."""
        grows = self._inflow.look(self.drained, held_bytes)
        self.idle_ms = LOOK_MS if grows else _QUIET_LOOK_MS

    def receive(self, copy: bool = True) -> list[Any] | None:
        """The next request's parts, as bytes, or without `copy` as ZeroMQ's frames. None when there
        is none, and [] for one that was dropped.

        As long as requests keep coming, ZeroMQ does not notice that clients have read, counts
        answers as unread, and drops the next ones. Asking for its events makes it look.
        """
        socket = self._socket
        self.drained = not has_message(socket)
        if self.drained:
            return None
        peer = socket.recv(zmq.NOBLOCK, copy=False)
        parts: list[Any] = [peer.bytes if copy else peer]
        more: Any = peer.more
        while more:
            if len(parts) == MOST_PARTS:
                self._drop()
                return []
            part: Any = socket.recv(zmq.NOBLOCK, copy=copy)
            parts.append(part)
            # asking the socket takes as long as receiving, and a frame knows it
            more = socket.get(zmq.RCVMORE) if copy else part.more
        self._inflow.took(peer, sum(map(len, parts)))
        return parts

    def _drop(self) -> None:
        """Close the connection of the current message, and drop what is left of it."""
        _close(self._socket.recv(zmq.NOBLOCK, copy=False))
        self._closed(f"sent a request of more than {MOST_PARTS} parts")
        while self._socket.get(zmq.RCVMORE):
            drop_parts(self._socket, DROPPED_AT_ONCE)
            self._beat()
            self.tend()

    def _flooded(self, size: int) -> None:
        self._closed(f"had sent {size >> 10} KiB that were no whole request")


def _close(frame: zmq.Frame) -> None:
    """Close the connection that a frame came by. ZeroMQ knows only its descriptor."""
    try:
        handle = os.dup(int(frame.get(zmq.SRCFD)))
    except (zmq.ZMQError, OSError):
        return  # it is closed already
    with suppress(OSError), sockets.socket(fileno=handle) as peer:
        # ZeroMQ has it open too: it reads the end, and closes it in its own time
        peer.shutdown(sockets.SHUT_RDWR)
