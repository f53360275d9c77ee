"""A light check of the hash index files: does each header make sense? Items: index_items.py.

The number of slots and items is configured, and no file states it, so only what holds for every
geometry is checked here.
"""

from __future__ import annotations

from pathlib import Path

from penstock.maintenance.verify.report import Findings
from penstock.shared.files.segments import shown
from penstock.shared.formats.index_layout import HEADER, ITEM
from penstock.shared.index.directory import begun_index_files, read_index_header


def check_index_files(directory: Path, log_end: int, unclean: bool, findings: Findings) -> None:
    """Report each file with an impossible header, at the byte of the word that is wrong.

    `log_end` is the log offset that the walk has reached. One finding for each file: if one word is
    wrong, the others say little.
    """
    for path in begun_index_files(directory):
        reason, at = _complaint(path, log_end, unclean)
        if reason:
            findings.report("index-header", (shown(path), at), None, reason)


def _complaint(path: Path, log_end: int, unclean: bool) -> tuple[str, int]:
    """What is wrong, and the word's offset in the file; "" and 0 if nothing is."""
    header = read_index_header(path)
    if header is None:
        return "no ordinary file, or too short for a header", 0
    _, _, begin, end, slots, items = header
    # As if the file had no slots, since their number is not known here: so it is an upper
    # bound.
    room = (path.stat().st_size - HEADER.size) // ITEM.size
    if not 0 <= items <= room:
        return f"next item {items} in a file with room for {room} at most", 36
    # Item 0 is never used, so there is one item less than the word says. Each used slot has one.
    if not 0 <= slots <= max(items - 1, 0):
        return f"{slots} slots in use with {max(items - 1, 0)} items", 32
    if begin < 0 or begin > end:
        return f"begins at log offset {begin} and ends at {end}", 16
    # the index of a running store may have passed the end that the walk has seen
    if end >= max(log_end, 1) and items > 1 and not unclean:
        return f"ends at log offset {end}; the log ends at {log_end}", 24
    return "", 0
