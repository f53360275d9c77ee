"""One range of memory into which pieces of files are mapped, each at a place of its own.

Python's mmap keeps a descriptor for each mapping, and a process has fewer descriptors than a store
may have queues. Here no descriptor is kept, and all pieces are one buffer, so the compiled loops
can store entries of any queue by an offset. The price: touching a place where nothing is mapped is
a SIGSEGV, and touching a piece of a file that somebody has truncated is a SIGBUS. So callers keep
track of what is mapped, and only the process that owns a file's length maps it here.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

from penstock.shared.errors import StoreUnavailable

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_NOTHING, _NO_RESERVE, _FIXED = 0, 0x4000, 0x10  # Linux's PROT_NONE and flags
_FAILED = ctypes.c_void_p(-1).value
_MOST_MAPPINGS = Path("/proc/sys/vm/max_map_count")


def most_pieces() -> int:
    """How many pieces a process may map: three quarters of the mappings that the kernel allows it.
    Libraries, heaps and segments need the rest, and malloc fails when none is left."""
    return int(_MOST_MAPPINGS.read_text()) * 3 // 4


class MappedArea:
    """`places` places of `size` bytes each, a multiple of a page, side by side in `view`."""

    def __init__(self, places: int, size: int) -> None:
        self._size = size
        self._bytes = places * size
        # The range is reserved, not allocated: nothing else is mapped into it, and it costs only
        # address space.
        self._start = _map(None, self._bytes, _NOTHING, mmap.MAP_PRIVATE | _NO_RESERVE)
        found = (ctypes.c_ubyte * self._bytes).from_address(self._start)
        self.view = memoryview(found).cast("B")

    def map(self, place: int, handle: int, at: int) -> None:
        """Map the file's bytes from `at` on there, to read and write, replacing what was there.

        The kernel is told not to read around them: with thousands of places, pages that nobody
        asked for would add up to megabytes each. Raises OSError; then nothing is mapped there.
        """
        start = self._start + place * self._size
        writable = mmap.PROT_READ | mmap.PROT_WRITE
        try:
            _map(start, self._size, writable, mmap.MAP_SHARED | _FIXED, handle, at)
            _advise(start, self._size, mmap.MADV_RANDOM)
        except OSError:
            self._reserve(start)
            raise

    def _reserve(self, start: int) -> None:
        """Reserve a place again. A mapping that fails half way may have unmapped what was there.
        Then any malloc could be given the hole, and entries would overwrite its memory."""
        try:
            _map(start, self._size, _NOTHING, mmap.MAP_PRIVATE | _NO_RESERVE | _FIXED)
        except OSError as error:
            raise StoreUnavailable(
                "memory cannot be kept reserved",
                str(error),
                "free some, and start the broker again: penstock up",
            ) from error

    def release_pages(self) -> None:
        """Release the pages that this process has mapped. The bytes stay; the next access faults
        them in again."""
        _advise(self._start, self._bytes, mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Unmap everything. Touching a slice of the view after this crashes the process."""
        self.view.release()
        _libc.munmap(ctypes.c_void_p(self._start), ctypes.c_size_t(self._bytes))


def _map(
    start: int | None, size: int, access: int, flags: int, handle: int = -1, at: int = 0
) -> int:
    if handle < 0:
        flags |= mmap.MAP_ANONYMOUS
    found = _libc.mmap(
        ctypes.c_void_p(start), ctypes.c_size_t(size), access, flags, handle, ctypes.c_long(at)
    )
    if found == _FAILED:
        raise _error()
    return int(found)


def _advise(start: int, size: int, advice: int) -> None:
    if _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), advice):
        raise _error()


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
