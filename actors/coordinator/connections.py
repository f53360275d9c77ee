"""Which connections of a socket have ended, by ZeroMQ's events; their members then count as gone.

ZeroMQ's event names a descriptor, which another connection may have by then, and the event may come
a moment before the descriptor is closed. So each connection is identified by its socket's inode,
and counts as ended when its descriptor is closed or has another inode.
"""

from __future__ import annotations

import os
import struct
from typing import Any

import zmq

from penstock.shared.loops.active import has_message

_EVENT = struct.Struct("=Hi")
# If a descriptor has the same inode this long after the event, that was an earlier connection's.
SETTLE_MS = 1000
_names = iter(range(1 << 62))


class Connections:
    """The connections of one socket whose end is to be noticed."""

    def __init__(self, socket: zmq.Socket[Any]) -> None:
        name = f"inproc://ended-{next(_names)}"
        socket.monitor(name, zmq.EVENT_DISCONNECTED)
        self._monitored = socket
        # an event here ends a sleep: a connection has ended
        self.events = socket.context.socket(zmq.PAIR)
        # no limit: ZeroMQ's thread would wait for room, and serve nobody meanwhile
        self.events.rcvhwm = 0
        self.events.linger = 0
        self.events.connect(name)
        self._inodes: dict[int, int] = {}  # descriptor -> inode
        self._handles: dict[int, int] = {}  # inode -> descriptor
        # inode -> time until which its end is looked for
        self._ending: dict[int, int] = {}

    def of(self, frame: zmq.Frame) -> int:
        """The connection by which a frame came; -1 if it has ended already."""
        try:
            handle = int(frame.get(zmq.SRCFD))
            inode = os.fstat(handle).st_ino
        except (zmq.ZMQError, OSError):
            return -1
        before = self._inodes.get(handle, inode)
        if before != inode:
            self._ending[before] = 0  # its event is still to come
        self._inodes[handle] = inode
        self._handles[inode] = handle
        return inode

    def ended(self, now_ms: int) -> list[int]:
        """Connections that have ended since the last call."""
        while has_message(self.events):
            event = self.events.recv_multipart(zmq.NOBLOCK)[0]
            _, handle = _EVENT.unpack_from(event)
            if handle in self._inodes:
                self._ending[self._inodes[handle]] = now_ms + SETTLE_MS
        found = []
        for inode, until_ms in list(self._ending.items()):
            handle = self._handles[inode]
            if _inode(handle) == inode:
                if now_ms >= until_ms:
                    del self._ending[inode]
                continue
            found.append(inode)
            del self._ending[inode], self._handles[inode]
            if self._inodes.get(handle) == inode:
                del self._inodes[handle]
        return found

    @property
    def settles(self) -> bool:
        """Whether to look again soon."""
        return bool(self._ending)

    def close(self) -> None:
        self._monitored.disable_monitor()
        self.events.close()


def _inode(handle: int) -> int:
    try:
        return os.fstat(handle).st_ino
    except OSError:
        return -1
