"""Disk usage: a percentage for retention decisions, and a sentence for error messages.

Nothing here raises: a disk whose usage cannot be read must not stop a broker that still writes.
"""

from __future__ import annotations

import os
from pathlib import Path

from penstock.shared.config import Config


def disk_used_percent(path: Path, empty_bytes: int = 0) -> int:
    """How full the disk of this path is for an ordinary user, rounded up; -1 if it is unknown.

    `empty_bytes` are allocated ahead and hold nothing yet. They count as free: otherwise allocating
    a segment would look like the disk filling up, and delete messages.
    """
    found = _used_and_size(path)
    if not found or not found[1]:
        return -1
    return -(-100 * max(0, found[0] - empty_bytes) // found[1])


def describe_disk(path: Path) -> str:
    """Disk usage for a reader: "11.5 of 12.0 MiB are used"."""
    found = _used_and_size(path)
    if not found:
        return "nobody knows how full the disk is"
    used, size = (each / (1 << 20) for each in found)
    return f"{used:.1f} of {size:.1f} MiB are used"


def lacking_room(path: Path, config: Config) -> str:
    """Why another segment does not fit on the disk of this path; "" if it does, or if the usage is
    unknown.

    A segment's messages also need room in queues and index, or they would be stored and never be
    seen. An eighth of a segment is enough for queues: 20 bytes for each record of 160. An index
    file allocates its slots when it is made.
    """
    segment = config.mapped_file_size_commit_log_bytes
    slots = 4 * config.max_hash_slot_num if config.message_index_enable else 0
    needed, found = segment + segment // 8 + slots, _used_and_size(path)
    if not found or not found[1] or (free := found[1] - found[0]) >= needed:
        return ""
    return (
        f"a segment of the log with its queues and index needs {needed} bytes "
        f"(mapped_file_size_commit_log_bytes is {segment}), and {free} are free on the disk of "
        f"{path}"
    )


def _used_and_size(path: Path) -> tuple[int, int] | None:
    """Bytes, as an ordinary user sees them: blocks reserved for root count for neither."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return None
    used = disk.f_blocks - disk.f_bfree
    return used * disk.f_frsize, (used + disk.f_bavail) * disk.f_frsize
