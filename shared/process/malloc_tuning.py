"""Tells the C library how much memory to keep once it has it from the system.

By default glibc maps a new block for every request from 128 KiB on and unmaps it when freed, so
each frame would pay for page faults. Processes forked afterwards inherit the setting.
"""

from __future__ import annotations

import ctypes
import mmap
import os

from penstock.shared.files.durable import opened

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
# Memory that must become free, beyond what the last try could not give back, before another try.
STEP_BYTES = 16 << 20
# /proc/self/statm has seven numbers of up to twenty digits
_STATM_BYTES = 256


def keep_large_blocks() -> None:
    """Serve blocks up to 64 MiB from the heap. Does nothing where the C library is another one.

    For the supervisor, before it forks. Setting either threshold also ends glibc's own adjusting of
    both. What the heap then keeps beyond its limit is given back by `Heaps`.
    """
    library = ctypes.CDLL(None)
    mallopt = getattr(library, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 64 << 20)
        mallopt(_M_TRIM_THRESHOLD, 256 << 20)
        mallopt(_M_TOP_PAD, 1 << 20)


class _Mallinfo2(ctypes.Structure):
    """What glibc says of its heaps, in bytes; `fordblks` are free and not given back."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


# mallinfo2 is newer than mallopt: a glibc may have only the latter.
_libc = ctypes.CDLL(None)
_mallinfo2 = getattr(_libc, "mallinfo2", None)
if _mallinfo2 is not None:
    _mallinfo2.restype = _Mallinfo2


class Heaps:
    """The heaps of this process. After a flood they would stay large and empty."""

    def __init__(self, most_bytes: int) -> None:
        """They may keep `most_bytes` that are free and resident."""
        self._most = most_bytes
        # What the last call could not give back: Python's own memory, and the end of the heap of
        # ZeroMQ's thread, which the library does not trim.
        self._left = 0

    def give_back(self) -> bool:
        """Give free memory back to the system where that is worth it. Returns whether it was."""
        if _mallinfo2 is None:
            return False
        # The library counts memory as free even after it was given back, so look at what is
        # resident. Used memory does not count: amid a flood, the flood's memory would raise what
        # may be kept.
        unused = _unused_bytes()
        self._left = min(self._left, unused)
        # What could not be given back counts towards `most`, since it serves the next frames too;
        # otherwise a process would keep twice as much. But it is not asked for again each time, for
        # a call walks all heaps.
        if unused <= max(self._most, self._left + STEP_BYTES):
            return False
        _libc.malloc_trim(ctypes.c_size_t(0))
        self._left = _unused_bytes()
        return True


def _unused_bytes() -> int:
    """This process's own resident memory that is not in a used block of its heaps."""
    return max(0, own_bytes() - in_use_bytes())


def in_use_bytes() -> int:
    """What used blocks of this process's heaps take; with another C library, all its own memory."""
    if _mallinfo2 is None:
        return own_bytes()
    heaps = _mallinfo2()
    return int(heaps.uordblks) + int(heaps.hblkhd)


def own_bytes() -> int:
    """Resident memory of this process alone."""
    with opened("/proc/self/statm", os.O_RDONLY) as handle:
        _, resident, shared, *_ = os.read(handle, _STATM_BYTES).split()
    return (int(resident) - int(shared)) * mmap.PAGESIZE
