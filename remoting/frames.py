"""Frames out of a stream of bytes, however it is cut. A state without I/O.

What is there of an unfinished frame is kept in one buffer, and a frame's length is believed only up
to the limit: a peer that names more is no peer of this protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.remoting.command import LENGTH, MAX_FRAME_BYTES
from penstock.shared.errors import ProtocolError

# Takes frames out of the bytes by itself, from a place on; up to where.
Take = Callable[[bytes | bytearray, int], int]


class FrameSplitter:
    """The incoming bytes of one connection."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()

    @property
    def held_bytes(self) -> int:
        """Of a frame whose end has not come."""
        return len(self._buffer)

    def feed(self, data: bytes, take: Take | None = None) -> Iterator[bytes]:
        """The frames that are whole with these bytes, each without its total length; but for those
        that `take` takes, which is asked where each one begins.

        Raises ProtocolError at a length that no frame has; nothing after it can be read.
        """
        at = 0
        if take is not None and data and not self._buffer:
            at = take(data, 0)
            if at == len(data):  # mostly it takes all of it, and there is nothing to be split
                return iter(())
        return self._split(data, take, at)

    def _split(self, data: bytes, take: Take | None, at: int) -> Iterator[bytes]:
        """The same from `at` on, up to where `take` was asked if nothing had been kept."""
        # most of what comes is whole, and is not copied to where parts wait
        whole: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            whole = self._buffer
        try:
            if take is not None and whole is not data:
                at = take(whole, at)
            while len(whole) - at >= LENGTH.size:
                (size,) = LENGTH.unpack_from(whole, at)
                if not LENGTH.size <= size <= self._max_frame_bytes:
                    what = f"a frame's length is not one from 4 to {self._max_frame_bytes}"
                    raise ProtocolError(what, size)
                start = at + LENGTH.size
                if len(whole) - start < size:
                    return
                at = start + size
                yield bytes(memoryview(whole)[start:at])  # one copy
                at = at if take is None else take(whole, at)
        finally:
            # once for all of them: to take each out of the front would copy the rest each time
            if whole is data:
                self._buffer += data[at:]
            else:
                del self._buffer[:at]
