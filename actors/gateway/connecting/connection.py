"""One client's connection: bytes in as frames, frames out as bytes. Never blocks.

Whatever a peer does here costs this connection and nothing else: `NotServed` says why it has to be
closed. Times are passed in. This file does not know what commands mean.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from penstock.remoting.codes import Language
from penstock.remoting.frames import FrameSplitter, Take
from penstock.remoting.tls import FIRST_BYTE, TlsSession
from penstock.shared.errors import ProtocolError
from penstock.shared.files.certificates import Tls
from penstock.shared.formats.record import pack_host

RECEIVE_BYTES = 256 << 10
# A client that has left this much unread is read from no further until it has taken some.
MOST_UNREAD_BYTES = 8 << 20
# RocketMQ's rule: a connection without traffic for this long is closed.
IDLE_MS = 120_000
# A partial frame or handshake must be completed within this time, and a client with unread answers
# must take some of them.
STALL_MS = 60_000
_GATHERED = 512
# Takes frames out of a connection's data, from an index on, while there is time. Returns the index
# that it has come to.
TakeFrames = Callable[["Connection", bytes | bytearray, int, Callable[[], bool]], int]


class Client(NamedTuple):
    """What a client has said of itself by a heartbeat. `heard_ms` is when, and monotonic."""

    client_id: str = ""
    language: Language = Language.OTHER
    version: int = 0
    heard_ms: int = 0


class NotServed(Exception):  # noqa: N818 - it is no fault of this process
    """The connection has to be closed; the message says why, unless it has ended in good order."""


class Connection:
    """A socket that does not block, and what is on its way through it."""

    def __init__(
        self, peer: socket.socket, address: tuple[str, int], now_ms: int, tls: Tls | None = None
    ) -> None:
        """`tls` is how the client's port speaks TLS; one that was opened here speaks none."""
        self.socket = peer
        self.handle = peer.fileno()
        self.address = f"{address[0]}:{address[1]}"
        self.host = pack_host(address[0].removeprefix("::ffff:"), address[1])
        self.is_open = True
        self.client = Client()
        # the events that epoll looks for
        self.wanted: int = select.EPOLLIN
        # until the first byte has come, which shows whether the client speaks TLS
        self._offered = tls
        self._tls: TlsSession | None = None
        self._splitter = FrameSplitter()
        # whether a whole frame has come in its last turn
        self.has_said = False
        # whether whole frames may be here that are not taken yet
        self.has_more = False
        # whether the kernel may hold more than the last read took
        self.has_left = False
        # whether its last turn took more than its share of time
        self.is_costly = False
        self._out: deque[bytes | memoryview] = deque()
        # what TLS has to seal before it goes out
        self._unsealed: list[bytes | memoryview] = []
        self.unread_bytes = 0
        self._heard_ms = self._moved_ms = now_ms
        # when the first part of the unfinished frame came; 0 if there is none
        self._partial_ms = 0

    @property
    def held_bytes(self) -> int:
        """Memory, for unfinished frames and for answers that the client has not taken."""
        sealed = self._tls.held_bytes if self._tls is not None else 0
        return self._splitter.held_bytes + self.unread_bytes + sealed

    @property
    def may_receive(self) -> bool:
        return self.unread_bytes < MOST_UNREAD_BYTES

    def receive(
        self,
        now_ms: int,
        has_time: Callable[[], bool] = lambda: True,
        take: TakeFrames | None = None,
    ) -> Iterator[bytes]:
        """Yield the frames that have come and that `take` leaves. Ends when the connection is
        closed; also, with `has_more` set, when the client has left too much unread or its time in
        this turn is over. Raises NotServed."""
        self.has_said = False
        data = b"" if self.has_more else self._received(now_ms)
        if data is None:
            return
        self.has_more = False
        try:
            if data and self._tls is not None:
                data = self._opened(self._tls, data)
            for frame in self._splitter.feed(data, self._taking(has_time, take)):
                self._partial_ms, self.has_said = 0, True
                if not self.is_open:
                    return
                yield frame
                if not self.is_open:
                    return
                if not (self.may_receive and has_time()):
                    self.has_more = True
                    return
        except ProtocolError as error:
            raise NotServed(str(error)) from None
        if not self._splitter.held_bytes and (self._tls is None or self._tls.is_begun):
            self._partial_ms = 0
        elif not self._partial_ms:
            self._partial_ms = now_ms
        if self._tls is not None and self._tls.has_ended:
            raise NotServed

    def _taking(self, has_time: Callable[[], bool], take: TakeFrames | None) -> Take | None:
        if take is None:
            return None

        def taken(data: bytes | bytearray, at: int) -> int:
            after = take(self, data, at, has_time) if self.is_open else at
            if after != at:
                self._partial_ms, self.has_said = 0, True
            return after

        return taken

    def _received(self, now_ms: int) -> bytes | None:
        """What the kernel has; None where that is nothing. Raises NotServed."""
        self.has_left = False
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            raise NotServed from None  # the peer has gone, however it went
        if not data:
            raise NotServed
        self._heard_ms = now_ms
        self.has_left = len(data) == RECEIVE_BYTES
        if self._offered is not None:
            self._begin(data[0] == FIRST_BYTE, self._offered)
        return data

    def _begin(self, is_tls: bool, offered: Tls) -> None:
        """The first byte has come, and shows whether it is TLS. Raises NotServed if the port does
        not allow that."""
        self._offered = None
        if is_tls and offered.context is None:
            raise NotServed("spoke TLS, for which there is no certificate here")
        if offered.is_required and not is_tls:
            raise NotServed("spoke no TLS, which it has to here")
        if is_tls and offered.context is not None:
            self._tls = TlsSession(offered.context)

    def _opened(self, tls: TlsSession, data: bytes) -> bytes:
        """Decrypt these bytes. What the handshake owes the client is queued for sending."""
        try:
            said = tls.open(data)
        except ProtocolError:
            with suppress(OSError):  # it is told why, if it still reads
                self.socket.send(tls.seal())
            raise
        if owed := tls.seal():
            self._out.append(owed)
            self.unread_bytes += len(owed)
        return said

    def put(self, part: bytes | memoryview) -> None:
        """Have a part of a frame sent; `flush` does it. It is not copied."""
        (self._out if self._tls is None else self._unsealed).append(part)
        self.unread_bytes += len(part)

    def _seal(self, tls: TlsSession) -> None:
        said = b"".join(self._unsealed)
        self._unsealed.clear()
        sealed = tls.seal(said)
        self._out.append(sealed)
        self.unread_bytes += len(sealed) - len(said)

    def flush(self, now_ms: int) -> bool:
        """Send what the peer takes; returns whether nothing is left. Raises NotServed."""
        if self._unsealed and self._tls is not None:
            self._seal(self._tls)
        while self._out:
            try:
                if len(self._out) == 1:
                    sent = self.socket.send(self._out[0])
                else:
                    sent = self.socket.sendmsg(list(islice(self._out, _GATHERED)))
            except BlockingIOError:
                return False
            except OSError:
                raise NotServed from None
            self.unread_bytes -= sent
            self._heard_ms = self._moved_ms = now_ms
            while sent:
                first = self._out.popleft()
                if sent < len(first):
                    self._out.appendleft(memoryview(first)[sent:])
                    return False
                sent -= len(first)
        self._moved_ms = now_ms
        return True

    def check(self, now_ms: int) -> None:
        """Raise NotServed for a peer that is silent, sends half a frame, or takes no answer."""
        if now_ms - self._heard_ms > IDLE_MS:
            raise NotServed
        if self._partial_ms and now_ms - self._partial_ms > STALL_MS:
            if self._tls is not None and not self._tls.is_begun:
                raise NotServed("had begun a handshake of TLS and sent no more")
            raise NotServed(f"had sent {self._splitter.held_bytes} bytes of a frame and no more")
        if self._out and now_ms - self._moved_ms > STALL_MS:
            raise NotServed(f"had left {self.unread_bytes} bytes unread")

    def close(self) -> None:
        self.is_open = False
        self._out.clear()
        self._unsealed.clear()
        self.unread_bytes = 0
        self.socket.close()
