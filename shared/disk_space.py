"""How much of a disk is used, for who decides by it and for who has to be told."""

from __future__ import annotations

import os
from pathlib import Path


def disk_used_percent(path: Path) -> int:
    """How full the disk of this path is for an ordinary user, rounded up; -1 when nobody knows."""
    found = _used_and_size(path)
    return -(-100 * found[0] // found[1]) if found and found[1] else -1


def describe_disk(path: Path) -> str:
    """The same for people: "11.5 of 12.0 MiB are used"."""
    found = _used_and_size(path)
    if not found:
        return "nobody knows how full the disk is"
    used, size = (each / (1 << 20) for each in found)
    return f"{used:.1f} of {size:.1f} MiB are used"


def _used_and_size(path: Path) -> tuple[int, int] | None:
    """Bytes; what is kept for root counts for neither."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return None
    used = disk.f_blocks - disk.f_bfree
    return used * disk.f_frsize, (used + disk.f_bavail) * disk.f_frsize
