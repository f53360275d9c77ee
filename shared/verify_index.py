"""A light check of the hash index files: does each header make sense. Items are not followed.

The number of slots and items is configuration that no file states, so only what holds for every
geometry is checked. An index is rebuilt at will; RocketMQ drops it after every crash.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from penstock.shared.segment_files import shown
from penstock.shared.verify_report import Findings

# begin and end time, begin and end log offset, slots in use, number of the next item
INDEX_HEADER = struct.Struct(">qqqqii")
INDEX_ITEM_BYTES = 20
INDEX_NAME_DIGITS = 17


def read_index_header(path: Path) -> tuple[int, int, int, int, int, int] | None:
    """The header's six words; None when the file is too short for one."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        raw = os.pread(fd, INDEX_HEADER.size, 0)
    finally:
        os.close(fd)
    if len(raw) < INDEX_HEADER.size:
        return None
    begin_ms, end_ms, begin, end, slots, items = INDEX_HEADER.unpack(raw)
    return begin_ms, end_ms, begin, end, slots, items


def index_files(directory: Path) -> list[Path]:
    """The index files, oldest first. Whatever has another name is skipped, as RocketMQ does."""
    if not directory.is_dir():
        return []
    return sorted(
        path
        for path in directory.iterdir()
        if len(path.name) == INDEX_NAME_DIGITS and path.name.isdigit() and path.is_file()
    )


def check_index_files(directory: Path, log_end: int, unclean: bool, findings: Findings) -> None:
    for path in index_files(directory):
        reason, at = _complaint(path, log_end, unclean)
        if reason:
            findings.report("index-header", (shown(path), at), None, reason)


def _complaint(path: Path, log_end: int, unclean: bool) -> tuple[str, int]:
    header = read_index_header(path)
    if header is None:
        return "too short for a header", 0
    _, _, begin, end, slots, items = header
    room = (path.stat().st_size - INDEX_HEADER.size) // INDEX_ITEM_BYTES
    if not 0 <= items <= room:
        return f"next item {items} in a file with room for {room} at most", 36
    if not 0 <= slots <= max(items - 1, 0):
        return f"{slots} slots in use with {max(items - 1, 0)} items", 32
    if begin < 0 or begin > end:
        return f"begins at log offset {begin} and ends at {end}", 16
    # the index of a running store may have passed the end that the walk has seen
    if end >= max(log_end, 1) and items > 1 and not unclean:
        return f"ends at log offset {end}; the log ends at {log_end}", 24
    return "", 0
