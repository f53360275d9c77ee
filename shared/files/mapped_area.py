"""One range of memory into which pieces of files are mapped, each at a place of its own.

Python's own mappings keep a descriptor each, and those are few where queues are many. Here none is
kept, and all pieces are one buffer. A place where nothing is mapped must not be touched: that is a
SIGSEGV, as a piece of a file that somebody has cut short is a SIGBUS. Knows no format.
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
    """How many pieces a process may map, so that as many mappings are left for all else."""
    return int(_MOST_MAPPINGS.read_text()) // 2


class MappedArea:
    """`places` places of `size` bytes, a multiple of a page, one behind the other in `view`."""

    def __init__(self, places: int, size: int) -> None:
        self._size = size
        self._bytes = places * size
        self._start = _map(None, self._bytes, _NOTHING, mmap.MAP_PRIVATE | _NO_RESERVE)
        found = (ctypes.c_ubyte * self._bytes).from_address(self._start)
        self.view = memoryview(found).cast("B")

    def map(self, place: int, handle: int, at: int) -> None:
        """Have the file's bytes from `at` on there, to read and write, instead of what was there.

        The kernel is not to fetch what lies around them in the file, which may be megabytes for
        each place. Raises OSError; then nothing is mapped there.
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
        """The kernel may have unmapped what was there, and nobody else's may come to lie there."""
        try:
            _map(start, self._size, _NOTHING, mmap.MAP_PRIVATE | _NO_RESERVE | _FIXED)
        except OSError as error:
            raise StoreUnavailable(
                "memory cannot be kept reserved",
                str(error),
                "free some, and start the broker again: penstock up",
            ) from error

    def release_pages(self) -> None:
        """Give back what this process has mapped in; the bytes stay, the next look costs."""
        _advise(self._start, self._bytes, mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Nobody may touch the view any more."""
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
