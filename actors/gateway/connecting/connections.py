"""All connections of the gateway: taken, read, written, and closed when they are over.

All share one epoll, so a turn's cost depends on how many connections are ready, not on how many
there are. A turn reads each ready connection once, for its share of time. Frames left over then
wait here, and so does the next input of a connection that took more than its share, even if for a
single request. Those connections are served in turns after all others, so a client that sends much,
or asks for what takes long, delays only clients like itself.
"""

from __future__ import annotations

import os
import select
import socket
import traceback
from collections.abc import Callable, Iterator, Mapping

from penstock.actors.gateway.connecting.connection import Connection, NotServed, TakeFrames
from penstock.remoting.command import Command, decode_command, encode_head
from penstock.shared.errors import RESOURCE_EXHAUSTED, ProtocolError
from penstock.shared.files.certificates import Tls

ACCEPTED_AT_ONCE = 64
READY_AT_ONCE = 256
# Between two looks for new connections that epoll has not announced.
ACCEPT_MS = 100
# What a turn may take for one connection, and for all that need more than that.
SHARE_MS, MORE_MS = 5, 10
# Between two checks of all connections.
CHECK_MS = 1000
# Memory that all may hold together; beyond it those that hold the most are closed.
MOST_HELD_BYTES = 256 << 20
# After this many bytes of answers that limit is checked before anybody else is served.
LOOK_BYTES = MOST_HELD_BYTES // 4


class Connections:
    """The clients of one gateway."""

    def __init__(
        self,
        listening: Mapping[str, int],
        closed: Callable[[str], None],
        gone: Callable[[Connection], None],
        tls: Tls,
        clock_ms: Callable[[], int],
        take: TakeFrames | None = None,
    ) -> None:
        """`closed` is told what a connection did that is closed for it, `gone` of each that ends.
        `tls` is for connections that are accepted here; `clock_ms` goes on in the middle of a turn;
        `take` gets received data first, and takes out the frames that need no decoding."""
        self._clock_ms, self._take = clock_ms, take
        self._closed, self._gone, self._tls = closed, gone, tls
        self._epoll = select.epoll()
        # a descriptor that is ready when some connection is
        self.handle = self._epoll.fileno()
        self._listening = [socket.socket(fileno=os.dup(handle)) for handle in listening.values()]
        for each in self._listening:
            each.setblocking(False)
            # edge-triggered: a client that cannot be accepted must not end every sleep
            self._epoll.register(each.fileno(), select.EPOLLIN | select.EPOLLET)
        self._outside = {each.fileno() for each in self._listening}
        self._accept_ms = 0
        # whether the kernel may have more for a connection that was read in the last turn
        self.has_left = False
        self._all: dict[int, Connection] = {}
        # those with something to be sent since the last flush
        self._dirty: dict[int, Connection] = {}
        self._check_ms = 0
        # answers since the last look at all connections
        self._put_bytes = 0
        # those with frames that may be taken and are not yet, in the order of their turns
        self._late: dict[int, Connection] = {}

    @property
    def has_more(self) -> bool:
        """Whether frames wait here, which epoll does not announce."""
        return bool(self._late)

    def __len__(self) -> int:
        return len(self._all)

    def accept(self, now_ms: int) -> int:
        """Accept new connections; returns how many. Costs nothing while nobody has come."""
        if now_ms < self._accept_ms:
            return 0
        taken = 0
        self._accept_ms = now_ms + ACCEPT_MS
        for listener in self._listening:
            for _ in range(ACCEPTED_AT_ONCE):
                try:
                    peer, address = listener.accept()
                except OSError:
                    break  # nobody, a client that has gone, or no more files: the limit sees to it
                self.add(peer, address[:2], now_ms, self._tls)
                taken += 1
            else:
                self._accept_ms = now_ms  # more may wait
        return taken

    def add(
        self, peer: socket.socket, address: tuple[str, int], now_ms: int, tls: Tls | None = None
    ) -> Connection:
        """Add a connection. One that was opened here may still be connecting."""
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found = Connection(peer, address, now_ms, tls)
        self._all[found.handle] = found
        self._epoll.register(found.handle, found.wanted)
        return found

    def frames(self, now_ms: int, may_read: bool) -> Iterator[tuple[Connection, bytes]]:
        """Yield a turn's worth of what has come. Connections that can be written again are marked
        for `flush`."""
        self.has_left = False
        for handle, events in self._epoll.poll(0, READY_AT_ONCE):
            connection = self._all.get(handle)
            if connection is None:
                # closed in this turn, or a listening socket
                self._accept_ms = now_ms if handle in self._outside else self._accept_ms
                continue
            if events & select.EPOLLOUT:
                self._dirty[handle] = connection
            has_come = events & ~select.EPOLLOUT and not connection.has_more
            if has_come and connection.is_costly:
                self._late.setdefault(handle, connection)
            elif has_come and may_read and self._put_bytes <= LOOK_BYTES:
                yield from self._frames_of(connection, now_ms)
        if not (self._late and may_read):
            return
        until_ms = self._clock_ms() + MORE_MS
        for connection in list(self._late.values()):
            if connection.is_open:  # no answer of this turn has closed it
                del self._late[connection.handle]
                yield from self._frames_of(connection, now_ms)
            if self._clock_ms() >= until_ms or self._put_bytes > LOOK_BYTES:
                break

    def _frames_of(self, connection: Connection, now_ms: int) -> Iterator[tuple[Connection, bytes]]:
        """Yield one connection's share of a turn."""
        until_ms = self._clock_ms() + SHARE_MS
        try:
            for frame in connection.receive(
                now_ms, lambda: self._clock_ms() < until_ms, self._take
            ):
                yield connection, frame
        except NotServed as error:
            self.close(connection, str(error))
            return
        self.has_left = self.has_left or connection.has_left
        if connection.has_said:
            connection.is_costly = self._clock_ms() >= until_ms
        if connection.is_open and connection.unread_bytes:  # a TLS handshake puts answers, too
            self._dirty[connection.handle] = connection
        self._note_late(connection)

    def _note_late(self, connection: Connection) -> None:
        """Have a connection with more frames served later; if it has left too much unread, not
        before it reads."""
        if connection.is_open and connection.has_more and connection.may_receive:
            self._late[connection.handle] = connection

    def commands(self, now_ms: int, may_read: bool) -> Iterator[tuple[Connection, Command]]:
        """The same frames as commands."""
        for connection, frame in self.frames(now_ms, may_read):
            command = self.decoded(connection, frame)
            if command is not None:
                yield connection, command

    def decoded(self, connection: Connection, frame: bytes) -> Command | None:
        """The command of a frame; None for what is no command, which ends its connection."""
        try:
            return decode_command(frame)
        except ProtocolError as error:
            self.close(connection, str(error))
            return None

    def answer(self, connection: Connection, command: Command) -> None:
        """Have this answer sent at the end of the turn; one that fits no frame ends the connection
        of whoever asked for it."""
        try:
            self.send(connection, command)
        except ProtocolError as error:
            self.close(connection, f"asked for too much: {error}")

    def send(self, connection: Connection, command: Command) -> None:
        """Have this sent at the end of the turn. Raises ProtocolError for what fits no frame."""
        self.answer_frame(connection, encode_head(command, len(command.body)), command.body)

    def answer_frame(
        self, connection: Connection, head: bytes, body: bytes | memoryview = b""
    ) -> None:
        """Have a frame sent that is encoded already."""
        if connection.is_open:
            connection.put(head)
            if len(body):
                connection.put(body)
            self._put_bytes += len(head) + len(body)
            self._dirty[connection.handle] = connection

    def flush(self, now_ms: int) -> None:
        """Send what was put; what a client does not take now is sent when it reads again."""
        if not self._dirty:
            return
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
            # a client that has left too much unread is read from again when it has taken some
            wanted |= select.EPOLLIN if connection.may_receive else 0
            if wanted != connection.wanted:
                self._epoll.modify(handle, wanted)
                connection.wanted = wanted
            self._note_late(connection)

    def check(self, now_ms: int) -> None:
        """Now and then, close those that are over, and if all hold too much, those that hold the
        most."""
        if now_ms < self._check_ms and self._put_bytes <= LOOK_BYTES:
            return
        self._check_ms, self._put_bytes = now_ms + CHECK_MS, 0
        held = 0
        for connection in list(self._all.values()):
            try:
                connection.check(now_ms)
            except NotServed as error:
                self.close(connection, str(error))
            held += connection.held_bytes
        if held <= MOST_HELD_BYTES:
            return
        for most in sorted(self._all.values(), key=lambda each: each.held_bytes, reverse=True):
            own = most.held_bytes
            self.close(most, f"held {own >> 20} MiB, the most of all, of {held >> 20}")
            held -= own
            if held <= MOST_HELD_BYTES:
                break

    def close(self, connection: Connection, why: str = "") -> None:
        if not connection.is_open:
            return
        if why:
            self._closed(why)
        self._epoll.unregister(connection.handle)
        del self._all[connection.handle]
        self._dirty.pop(connection.handle, None)
        self._late.pop(connection.handle, None)
        connection.close()
        self._gone(connection)

    def fail(
        self, connection: Connection, error: Exception, code: int, report: Callable[[str], None]
    ) -> None:
        """Close a connection whose request hit a bug here, and report it. If this process has run
        out of a resource, that error is raised: it is no fault of the request."""
        if isinstance(error, MemoryError) or getattr(error, "errno", 0) in RESOURCE_EXHAUSTED:
            raise error
        report("".join(traceback.format_exception(error)))
        self.close(connection, f"asked what failed: code {code}")

    def close_all(self) -> None:
        for connection in list(self._all.values()):
            self.close(connection)
        for listener in self._listening:
            listener.close()
        self._epoll.close()
