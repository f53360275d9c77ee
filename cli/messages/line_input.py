"""The lines of an input as they come, from a file, a pipe or a terminal. Memory stays bounded.

`idle` is called whenever there is nothing to read at the moment, so that outcomes are handled
meanwhile; it returns whether more of them are to come. If reading fails, a rest without a line end
is dropped, because it may be half a line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from penstock.client.core.sending.encoding import too_large
from penstock.shared.files.readable import is_readable

_CHUNK_BYTES = 256 << 10
# How long to wait for input before `idle` is called.
_IDLE_S = 0.05


class LineInput:
    """The lines without their ends, LF or CR LF; the last line may have no end."""

    def __init__(self, descriptor: int, most_bytes: Callable[[], int], idle: Callable[[], bool]):
        """`most_bytes()` is the present limit of a line; a longer one is an InvalidMessage."""
        self._descriptor = descriptor
        self._most_bytes = most_bytes
        self._idle = idle
        self.bytes_read = 0

    def lines(self) -> Iterator[bytes]:
        """Raises OSError if reading fails, InvalidMessage if a line is too long."""
        parts: list[bytes] = []
        size = 0
        while chunk := self._read():
            first, *rest = chunk.split(b"\n")
            parts.append(first)
            size += len(first)
            if size > self._most_bytes() + 1:  # one more: a CR may come before the LF
                raise too_large(size, self._most_bytes(), and_more=True)
            if rest:
                yield _without_cr(b"".join(parts))
                for line in rest[:-1]:
                    yield _without_cr(line)
                parts, size = [rest[-1]], len(rest[-1])
        if last := b"".join(parts):
            yield last

    def whole(self) -> Iterator[bytes]:
        """The whole input as one piece."""
        parts: list[bytes] = []
        while chunk := self._read():
            parts.append(chunk)
            if self.bytes_read > self._most_bytes():
                raise too_large(self.bytes_read, self._most_bytes(), not self._has_ended())
        yield b"".join(parts)

    def _has_ended(self) -> bool:
        """Whether the input has ended, as far as can be known without waiting."""
        return is_readable(self._descriptor, 0) and not self._read()

    def _read(self) -> bytes:
        wait_s: float | None = 0
        while not is_readable(self._descriptor, wait_s):
            wait_s = _IDLE_S if self._idle() else None
        chunk = os.read(self._descriptor, _CHUNK_BYTES)
        self.bytes_read += len(chunk)
        return chunk


def _without_cr(line: bytes) -> bytes:
    return line[:-1] if line.endswith(b"\r") else line
