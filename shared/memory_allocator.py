"""Tells the C library how much memory to keep that it has once had from the system.

By default glibc maps every block from 128 KiB on anew and gives it back when freed, so each frame
would cost the faulting-in of its pages. Processes forked afterwards inherit the setting.
"""

from __future__ import annotations

import ctypes
import mmap

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def keep_large_blocks() -> None:
    """Serve blocks up to 64 MiB from the heap. Does nothing where the C library is another one."""
    library = ctypes.CDLL(None)
    mallopt = getattr(library, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 64 << 20)
        mallopt(_M_TRIM_THRESHOLD, 256 << 20)
        mallopt(_M_TOP_PAD, 1 << 20)


class _Mallinfo2(ctypes.Structure):
    """What glibc says of its heaps, in bytes; `fordblks` are free, and not given back."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


class Heaps:
    """What this process has of heaps: after a flood they are large and empty, and stay so."""

    def __init__(self, most_bytes: int) -> None:
        """They may keep so much that is free."""
        self._most = most_bytes
        self._left = 0

    def give_back(self) -> bool:
        """Give free memory back to the system where that is worth it; whether it was."""
        library = ctypes.CDLL(None)
        try:
            mallinfo2, trim = library.mallinfo2, library.malloc_trim
        except AttributeError:  # another C library
            return False
        mallinfo2.restype = _Mallinfo2
        # what is given back counts as free all the same, so look at what has come since
        if mallinfo2().fordblks <= self._most or _own_bytes() <= self._left + self._most:
            return False
        trim(ctypes.c_size_t(0))
        self._left = _own_bytes()
        return True


def _own_bytes() -> int:
    """Resident memory of this process alone."""
    with open("/proc/self/statm", "rb") as file:
        _, resident, shared, *_ = file.read().split()
    return (int(resident) - int(shared)) * mmap.PAGESIZE
