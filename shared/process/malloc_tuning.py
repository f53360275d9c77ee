"""Tells the C library how much memory to keep that it has once had from the system.

By default glibc maps a new block for every request from 128 KiB on and unmaps it when freed, so
each frame would pay for faulting in its pages. Processes forked afterwards inherit the setting.
"""

from __future__ import annotations

import ctypes
import mmap
import os

from penstock.shared.files.durable import opened

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
# How much must be free beyond what could not be given back before it is tried again.
STEP_BYTES = 16 << 20
# seven numbers of up to twenty digits
_STATM_BYTES = 256


def keep_large_blocks() -> None:
    """Serve blocks up to 64 MiB from the heap. Does nothing where the C library is another one.

    For the supervisor, before it forks. A setting of these also ends glibc's own adjusting of both
    thresholds. What the heap keeps for that is given back by `Heaps`, once it is much.
    """
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


# Newer than mallopt: a glibc may have the one and not the other.
_libc = ctypes.CDLL(None)
_mallinfo2 = getattr(_libc, "mallinfo2", None)
if _mallinfo2 is not None:
    _mallinfo2.restype = _Mallinfo2


class Heaps:
    """What this process has of heaps: after a flood they are large and empty, and stay so."""

    def __init__(self, most_bytes: int) -> None:
        """They may keep `most_bytes` that are free and resident."""
        self._most = most_bytes
        # What the last call has left: Python's own, and the end of a heap of ZeroMQ's thread, which
        # the library does not trim.
        self._left = 0

    def give_back(self) -> bool:
        """Give free memory back to the system where that is worth it; whether it was."""
        if _mallinfo2 is None:
            return False
        # What was given back counts as free all the same, so look at what is resident. What is in
        # use is left out: given back amid a flood, it is a flood's that may be kept afterwards.
        unused = _unused_bytes()
        self._left = min(self._left, unused)
        # What could not be given back counts towards what may be kept: it serves the next frames
        # too. With `most` on top of it a process would keep twice as much. But it is not asked for
        # again each time, for a call goes through all heaps.
        if unused <= max(self._most, self._left + STEP_BYTES):
            return False
        _libc.malloc_trim(ctypes.c_size_t(0))
        self._left = _unused_bytes()
        return True


def _unused_bytes() -> int:
    """Resident memory of this process alone that no block of its heaps is in."""
    return max(0, own_bytes() - in_use_bytes())


def in_use_bytes() -> int:
    """What blocks of this process's heaps take; all its own memory with another C library."""
    if _mallinfo2 is None:
        return own_bytes()
    heaps = _mallinfo2()
    return int(heaps.uordblks) + int(heaps.hblkhd)


def own_bytes() -> int:
    """Resident memory of this process alone."""
    with opened("/proc/self/statm", os.O_RDONLY) as handle:
        _, resident, shared, *_ = os.read(handle, _STATM_BYTES).split()
    return (int(resident) - int(shared)) * mmap.PAGESIZE
