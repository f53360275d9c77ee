"""Wakes a client's thread from its poll, from other threads and from signal handlers.

Uses an eventfd if the system has one, else a pair of sockets: a poll can wait for either.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial


class Waker:
    """Poll `handle` for reading; `wake` makes it readable, `clear` ends that."""

    __slots__ = ("handle", "wake", "clear", "close")
    handle: int
    wake: Callable[[], object]
    clear: Callable[[], object]
    close: Callable[[], object]

    def __init__(self) -> None:
        # bound once: sends call `wake`, and a method in between would cost each of them
        if hasattr(os, "eventfd"):
            self.handle = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self.wake = partial(os.eventfd_write, self.handle, 1)
            self.clear = partial(os.eventfd_read, self.handle)
            self.close = partial(os.close, self.handle)
        else:
            self._use_sockets()

    def _use_sockets(self) -> None:
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
        self.handle = ours.fileno()

        def wake() -> None:
            with suppress(BlockingIOError):  # full of wakes that nobody has cleared: one is enough
                theirs.send(b"\0")

        def close() -> None:
            ours.close()
            theirs.close()

        self.wake, self.clear, self.close = wake, partial(ours.recv, 4096), close
