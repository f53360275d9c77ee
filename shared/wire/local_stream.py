"""Streams over a socket file, through which two actors of a broker talk without ZeroMQ.

ZeroMQ passes a message to a thread of its own at either end: a single request wakes four of these
on its way there and back, which takes longer than the work on it. Here a message is one system
call, which wakes the waiting process.

    message    lengths of header and records (uint32, native) | header | records

If a stream ends, the side that has dialled dials again; what was under way is lost. The file is for
this user only. So if an end sends what is not a message, it is faulty, and its stream ends.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import deque
from contextlib import suppress

from penstock.shared.wire.sockets import owner_only

# Bytes per read; the rest of a longer message is read directly to where it stays.
READ_BYTES = 16 << 10
# The kernel may hold this much unsent data, if its limits allow it.
_UNSENT_BYTES = 1 << 20
# Shorter records are copied next to their header: one piece is sent faster than two.
_JOINED_BYTES = 16 << 10
_LENGTHS = struct.Struct("=II")
_WAITING = 16
_NOTHING = memoryview(b"")


# header, records
StreamMessage = tuple[bytes, memoryview]


class LocalStream:
    """One end. It never blocks."""

    def __init__(self, end: socket.socket, most_bytes: int) -> None:
        """No message has more than `most_bytes`."""
        end.setblocking(False)
        # a full frame should leave at once: waiting for room would wake this end once more
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNSENT_BYTES)
        self._end, self._most_bytes = end, most_bytes
        self.handle = end.fileno()
        # False when the stream has ended and has to be closed
        self.is_open = True
        # a message whose lengths are incomplete; and one whose rest is missing, with that rest
        self._part = b""
        self._begun = self._missing = _NOTHING
        self._whole: deque[StreamMessage] = deque()
        self._unsent: deque[memoryview] = deque()

    @property
    def has_unsent(self) -> bool:
        """Whether to call `flush` when the kernel can take more."""
        return bool(self._unsent)

    @property
    def has_whole(self) -> bool:
        """Whether messages wait here, which the kernel does not report."""
        return bool(self._whole)

    def read(self) -> None:
        """Take what the kernel has, up to a turn's worth; it goes on reporting the rest."""
        try:
            if not self._missing:
                data = self._end.recv(READ_BYTES)
                self.is_open = bool(data)
                self._split(self._part + data)
            while self._missing and self.is_open:
                got = self._end.recv_into(self._missing)
                self.is_open = got > 0
                self._missing = self._missing[got:]
                if not self._missing:
                    self._complete()
        except BlockingIOError:
            return
        except OSError:  # the other end has gone, in whatever way
            self.is_open = False

    def _split(self, data: bytes) -> None:
        """Find the messages in it. For one that is incomplete this allocates all of its memory,
        into which the rest is read: so a long message is copied only once."""
        at, end = 0, len(data)
        while end - at >= _LENGTHS.size:
            header, records = _LENGTHS.unpack_from(data, at)
            if header + records > self._most_bytes:
                self.is_open = False
                return
            start = at + _LENGTHS.size + header
            stop = start + records
            if stop > end:
                self._begun = memoryview(bytearray(stop - at))
                self._begun[: end - at] = data[at:]
                self._missing, self._part = self._begun[end - at :], b""
                return
            self._whole.append((data[start - header : start], memoryview(data)[start:stop]))
            at = stop
        self._part = data[at:]

    def _complete(self) -> None:
        header, _ = _LENGTHS.unpack_from(self._begun)
        start = _LENGTHS.size + header
        self._whole.append((bytes(self._begun[_LENGTHS.size : start]), self._begun[start:]))
        self._begun = _NOTHING

    def next(self) -> StreamMessage | None:
        """The oldest of the messages that were read."""
        return self._whole.popleft() if self._whole else None

    def send(self, header: bytes, records: bytes = b"") -> None:
        """Send a message; what the kernel does not accept now is kept."""
        head = _LENGTHS.pack(len(header), len(records)) + header
        if len(records) < _JOINED_BYTES:
            self._unsent.append(memoryview(head + records if records else head))
        else:
            self._unsent += (memoryview(head), memoryview(records))
        self.flush()

    def flush(self) -> None:
        """Send what the kernel accepts."""
        while self._unsent and self.is_open:
            try:
                sent = self._end.send(self._unsent[0])
            except BlockingIOError:
                return
            except OSError:
                self.is_open = False
                return
            if sent < len(self._unsent[0]):
                self._unsent[0] = self._unsent[0][sent:]
            else:
                self._unsent.popleft()

    def close(self) -> None:
        self.is_open = False
        self._end.close()


class StreamListener:
    """Where an actor accepts streams: a socket file, which its successor makes again."""

    def __init__(self, endpoint: str, most_bytes: int) -> None:
        path = _path(endpoint)
        self._most_bytes = most_bytes
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        with suppress(FileNotFoundError):
            os.unlink(path)
        with owner_only():
            self._socket.bind(path)
        self._socket.listen(_WAITING)
        self.handle = self._socket.fileno()

    def accept(self) -> LocalStream | None:
        """The next stream that was dialled. Raises OSError where no descriptor is free for it."""
        try:
            end, _ = self._socket.accept()
        except BlockingIOError:
            return None
        return LocalStream(end, self._most_bytes)

    def close(self) -> None:
        self._socket.close()


def dial_stream(endpoint: str, most_bytes: int) -> LocalStream | None:
    """A stream to the actor that listens there; None where nobody does. Raises OSError if no
    descriptor is free."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.setblocking(False)
    try:
        end.connect(_path(endpoint))
    except OSError:
        end.close()
        return None
    return LocalStream(end, most_bytes)


def _path(endpoint: str) -> str:
    return endpoint.removeprefix("ipc://")
