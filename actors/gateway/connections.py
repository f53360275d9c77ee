"""All connections of the gateway: taken, read, written, and closed when they are over.

One epoll for all of them, so a turn costs what is ready and not what is there. A turn reads each
connection that is ready once, so that one with much to say holds up no other.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterator, Mapping

from penstock.actors.gateway.connection import Connection, NotServed
from penstock.remoting.command import Command

ACCEPTED_AT_ONCE = 64
READY_AT_ONCE = 256
# Between two looks at all connections for those that are over.
CHECK_MS = 1000
# Of memory that all hold together; beyond it the one with the most is closed.
MOST_HELD_BYTES = 256 << 20


class Connections:
    """The clients of one gateway."""

    def __init__(
        self,
        listening: Mapping[str, int],
        closed: Callable[[str], None],
        gone: Callable[[Connection], None],
    ) -> None:
        """`closed` hears what a connection did that is closed for it, `gone` of each that ends."""
        self._closed, self._gone = closed, gone
        self._epoll = select.epoll()
        self._listening = [socket.socket(fileno=os.dup(handle)) for handle in listening.values()]
        for each in self._listening:
            each.setblocking(False)
        self._all: dict[int, Connection] = {}
        # with something to be sent since the last flush
        self._dirty: dict[int, Connection] = {}
        self._check_ms = 0

    @property
    def handle(self) -> int:
        """A descriptor that is ready when some connection is."""
        return self._epoll.fileno()

    def __len__(self) -> int:
        return len(self._all)

    def accept(self, now_ms: int) -> int:
        """Take those that wait outside; how many."""
        taken = 0
        for listener in self._listening:
            for _ in range(ACCEPTED_AT_ONCE):
                try:
                    peer, address = listener.accept()
                except OSError:
                    break  # nobody, somebody who has gone, or no more files: the limit sees to it
                peer.setblocking(False)
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                found = Connection(peer, address[:2], now_ms)
                self._all[found.handle] = found
                self._epoll.register(found.handle, select.EPOLLIN)
                taken += 1
        return taken

    def commands(self, now_ms: int, may_read: bool) -> Iterator[tuple[Connection, Command]]:
        """What has come, a turn's worth; also what can be sent goes on its way."""
        for handle, events in self._epoll.poll(0, READY_AT_ONCE):
            connection = self._all.get(handle)
            if connection is None:
                continue  # closed in this turn
            try:
                if events & select.EPOLLOUT:
                    self._dirty[handle] = connection
                if events & ~select.EPOLLOUT and may_read:
                    for command in connection.receive(now_ms):
                        yield connection, command
            except NotServed as error:
                self.close(connection, str(error))

    def answer(self, connection: Connection, command: Command) -> None:
        """Have this sent at the end of the turn."""
        if connection.is_open:
            connection.put(command)
            self._dirty[connection.handle] = connection

    def flush(self, now_ms: int) -> None:
        """Send what was put; what a client does not take now is sent when it does."""
        dirty, self._dirty = self._dirty, {}
        for handle, connection in dirty.items():
            if not connection.is_open:
                continue
            try:
                done = connection.flush(now_ms)
            except NotServed as error:
                self.close(connection, str(error))
                continue
            wanted = 0 if done else select.EPOLLOUT
            # beyond the limit a client is read from when it has read
            wanted |= select.EPOLLIN if connection.may_receive else 0
            self._epoll.modify(handle, wanted)

    def check(self, now_ms: int) -> None:
        """Close those that are over, now and then."""
        if now_ms < self._check_ms:
            return
        self._check_ms = now_ms + CHECK_MS
        held = 0
        for connection in list(self._all.values()):
            try:
                connection.check(now_ms)
            except NotServed as error:
                self.close(connection, str(error))
            held += connection.held_bytes
        if held > MOST_HELD_BYTES:
            most = max(self._all.values(), key=lambda each: each.held_bytes)
            self.close(most, f"held {most.held_bytes >> 20} MiB, the most of all, of {held >> 20}")

    def close(self, connection: Connection, why: str = "") -> None:
        if not connection.is_open:
            return
        if why:
            self._closed(why)
        self._epoll.unregister(connection.handle)
        del self._all[connection.handle]
        self._dirty.pop(connection.handle, None)
        connection.close()
        self._gone(connection)

    def close_all(self) -> None:
        for connection in list(self._all.values()):
            self.close(connection)
        for listener in self._listening:
            listener.close()
        self._epoll.close()
