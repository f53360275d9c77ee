"""One client's connection: bytes in as commands, commands out as bytes. Never blocks.

Whatever a peer does here costs this connection and nothing else: `NotServed` says why it has to be
closed. The times are passed in; nothing is known of what commands mean.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator

from penstock.remoting.command import Command, decode_command, encode_head
from penstock.remoting.frames import FrameSplitter
from penstock.shared.errors import ProtocolError
from penstock.shared.formats.record import pack_host

RECEIVE_BYTES = 256 << 10
# A client that has left this much unread is read from no further until it has taken some.
MOST_UNREAD_BYTES = 8 << 20
# RocketMQ's rule: no traffic for this long is the end.
IDLE_MS = 120_000
# A frame of which a part has come, and answers of which none is taken, have this long.
STALL_MS = 60_000
_GATHERED = 64


class NotServed(Exception):  # noqa: N818 - it is no fault of this process
    """The connection is to be closed, and why. Without words it has ended in good order."""


class Connection:
    """A socket that does not block, and what is on its way through it."""

    def __init__(self, peer: socket.socket, address: tuple[str, int], now_ms: int) -> None:
        self.socket = peer
        self.handle = peer.fileno()
        self.address = f"{address[0]}:{address[1]}"
        self.host = pack_host(address[0].removeprefix("::ffff:"), address[1])
        self.is_open = True
        self._splitter = FrameSplitter()
        self._out: deque[memoryview] = deque()
        self.unread_bytes = 0
        self._heard_ms = self._moved_ms = now_ms
        # when the frame began to come of which a part is there
        self._partial_ms = 0

    @property
    def held_bytes(self) -> int:
        """Of memory, for what is not whole or not taken."""
        return self._splitter.held_bytes + self.unread_bytes

    @property
    def may_receive(self) -> bool:
        return self.unread_bytes < MOST_UNREAD_BYTES

    def receive(self, now_ms: int) -> Iterator[Command]:
        """The commands that have come. Raises NotServed."""
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            raise NotServed from None  # the peer has gone, however it went
        if not data:
            raise NotServed
        self._heard_ms = now_ms
        try:
            for frame in self._splitter.feed(data):
                self._partial_ms = 0
                yield decode_command(frame)
        except ProtocolError as error:
            raise NotServed(str(error)) from None
        if not self._splitter.held_bytes:
            self._partial_ms = 0
        elif not self._partial_ms:
            self._partial_ms = now_ms

    def put(self, command: Command) -> None:
        """Have a command sent; `flush` does it. The body is not copied."""
        if not self.is_open:
            return
        for part in (encode_head(command, len(command.body)), command.body):
            if len(part):
                self._out.append(memoryview(part))
                self.unread_bytes += len(part)

    def flush(self, now_ms: int) -> bool:
        """Send what the peer takes; whether nothing is left. Raises NotServed."""
        while self._out:
            parts = [self._out[at] for at in range(min(len(self._out), _GATHERED))]
            try:
                sent = self.socket.sendmsg(parts)
            except BlockingIOError:
                return False
            except OSError:
                raise NotServed from None
            self.unread_bytes -= sent
            self._heard_ms = self._moved_ms = now_ms
            while sent:
                first = self._out.popleft()
                if sent < len(first):
                    self._out.appendleft(first[sent:])
                    return False
                sent -= len(first)
        self._moved_ms = now_ms
        return True

    def check(self, now_ms: int) -> None:
        """Raise NotServed for a peer that is silent, sends half a frame, or takes no answer."""
        if now_ms - self._heard_ms > IDLE_MS:
            raise NotServed
        if self._partial_ms and now_ms - self._partial_ms > STALL_MS:
            raise NotServed(f"had sent {self._splitter.held_bytes} bytes of a frame and no more")
        if self._out and now_ms - self._moved_ms > STALL_MS:
            raise NotServed(f"had left {self.unread_bytes} bytes unread")

    def close(self) -> None:
        self.is_open = False
        self._out.clear()
        self.unread_bytes = 0
        self.socket.close()
