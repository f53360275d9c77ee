"""What wakes a client's thread out of its poll, from other threads and from signals' handlers.

An eventfd where the system has one, and else a pair of sockets: a poll waits for either.
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
        # bound once: a wake is part of a send, and another method between would cost each of them
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
