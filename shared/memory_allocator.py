"""Tells the C library to keep memory it has once had from the system.

By default glibc maps every block from 128 KiB on anew and gives it back when freed, so each frame
would cost the faulting-in of its pages. Processes forked afterwards inherit the setting.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def keep_large_blocks() -> None:
    """Serve blocks up to 64 MiB from the heap. Does nothing where the C library is another one."""
    library = ctypes.CDLL(None)
    mallopt = getattr(library, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 64 << 20)
        mallopt(_M_TRIM_THRESHOLD, 256 << 20)
        mallopt(_M_TOP_PAD, 1 << 20)
