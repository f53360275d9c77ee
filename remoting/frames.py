"""Frames out of a stream of bytes, however it is cut. A state without I/O.

The part of an unfinished frame that has come is kept in one buffer. A frame's length is believed
only up to the limit: a peer that names more does not speak this protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.remoting.command import LENGTH, MAX_FRAME_BYTES
from penstock.shared.errors import ProtocolError

# Takes frames out of the bytes, from an index on; returns the index that it has come to.
Take = Callable[[bytes | bytearray, int], int]


class FrameSplitter:
    """The incoming bytes of one connection."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()

    @property
    def held_bytes(self) -> int:
        """Bytes of a frame whose end has not come."""
        return len(self._buffer)

    def feed(self, data: bytes, take: Take | None = None) -> Iterator[bytes]:
        """Yield the frames that these bytes complete, each without its total length. `take` is
        asked first where each one begins, and the frames that it takes are not yielded.

        Raises ProtocolError at a length that no frame can have; nothing after it can be read.
        """
        at = 0
        if take is not None and data and not self._buffer:
            at = take(data, 0)
            if at == len(data):  # mostly `take` takes all, and nothing is left to split
                return iter(())
        return self._split(data, take, at)

    def _split(self, data: bytes, take: Take | None, at: int) -> Iterator[bytes]:
        """The same from `at` on, which `take` has come to if no part of a frame was kept."""
        # most data is whole frames, and is not copied into the buffer
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
            # once for all frames: to cut each off the front would copy the rest each time
            if whole is data:
                self._buffer += data[at:]
            else:
                del self._buffer[:at]
