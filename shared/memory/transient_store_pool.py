"""The transient store pool: a ring in shared memory between the writer and the committer.

The byte at log offset P stands at ring index P % size. The writer fills [wrote, committed + size);
the committer reads [committed, wrote). Neither moves the other's position, so no byte is written
while it is read. The memory outlives both processes. The callers keep the positions.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from penstock.shared.faults import crash_point


class TransientStorePool:
    """The ring, mapped. Only the writer opens it writable.

    Nothing in it is padded, because the log offset alone says where a byte is. So a record may
    wrap around the ring's end.
    """

    def __init__(self, path: Path, writable: bool = False) -> None:
        handle = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        try:
            self.size = os.fstat(handle).st_size
            access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            self._map = mmap.mmap(handle, self.size, mmap.MAP_SHARED, access)
        finally:
            os.close(handle)
        self._view = memoryview(self._map)

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Copy bytes of the log into the ring. The caller has checked that there is room."""
        at = position % self.size
        head = min(len(data), self.size - at)
        self._view[at : at + head] = data[:head]
        if head < len(data):
            # A crash between the two copies leaves half a record. No reader sees it: `wrote` has
            # not moved, and the next writer overwrites it.
            crash_point("write.mid_record")
            self._view[: len(data) - head] = data[head:]

    def pieces(self, position: int, limit: int) -> list[memoryview]:
        """The bytes [position, limit) as one view, or two where the ring wraps."""
        at = position % self.size
        length = limit - position
        head = min(length, self.size - at)
        if head == length:
            return [self._view[at : at + head]]
        return [self._view[at:], self._view[: length - head]]

    def close(self) -> None:
        """Release it. The mapping goes with the last view of it: callers may still hold pieces."""
        self._view.release()
        del self._map


def create_pool(path: Path, size: int) -> None:
    """Make a ring of zeros. Raises OSError now if its memory cannot be allocated."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        # a store into a page that the memory file system cannot give would be a SIGBUS
        os.posix_fallocate(handle, 0, size)
    finally:
        os.close(handle)
