"""Requests that come to an endpoint, one by one, however many parts they have.

ZeroMQ hands out a message when all of it is there, and a message may have millions of parts of no
bytes. So parts are taken one by one; a connection that sends more than any request has is closed,
and the rest of its message is dropped, in pieces between which the actor beats.
"""

from __future__ import annotations

import os
import socket as sockets
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import zmq

from penstock.shared.loops.active import drop_parts

# A peer, a header, records; with a few too many a request gets an answer that says so.
MOST_PARTS = 8
# Dropped between two beats: some ms, or some hundred where the loops are not compiled.
DROPPED_AT_ONCE = 100_000
# an int: an enum's `&` makes another enum
_POLLIN = int(zmq.POLLIN)


class Inlet:
    """The requests of one serving socket."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        beat: Callable[[], None],
        closed: Callable[[], None],
    ) -> None:
        """`beat` is called while something takes long, `closed` when a connection is closed."""
        self._socket = socket
        self._beat = beat
        self._closed = closed

    def receive(self, copy: bool = True) -> list[Any] | None:
        """The next request's parts, as bytes or without a `copy` as ZeroMQ's frames; None when
        there is none, and [] for one that was dropped.

        As long as requests keep coming ZeroMQ does not look at what clients have read meanwhile,
        counts answers as unread, and drops the next ones. Asking for its events makes it look.
        """
        socket = self._socket
        if not int(socket.get(zmq.EVENTS)) & _POLLIN:
            return None
        parts: list[Any] = [socket.recv(zmq.NOBLOCK, copy=copy)]
        while socket.get(zmq.RCVMORE):
            if len(parts) == MOST_PARTS:
                self._drop()
                return []
            parts.append(socket.recv(zmq.NOBLOCK, copy=copy))
        return parts

    def _drop(self) -> None:
        """Close the connection of the message under way, and drop what is left of it."""
        _close(self._socket.recv(zmq.NOBLOCK, copy=False))
        self._closed()
        while self._socket.get(zmq.RCVMORE):
            drop_parts(self._socket, DROPPED_AT_ONCE)
            self._beat()


def _close(frame: zmq.Frame) -> None:
    """Close the connection that a frame came by. ZeroMQ knows only its descriptor."""
    try:
        handle = os.dup(int(frame.get(zmq.SRCFD)))
    except (zmq.ZMQError, OSError):
        return  # it is closed already
    with suppress(OSError), sockets.socket(fileno=handle) as peer:
        # ZeroMQ has it open too: it reads the end, and closes it in its own time
        peer.shutdown(sockets.SHUT_RDWR)
