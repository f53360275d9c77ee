"""The index files of a store: their names, their lengths and their headers. No item is read.

So nothing here needs numpy, which takes longer to import than the rest of a start.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from penstock.shared.config import Config
from penstock.shared.errors import StoreDamaged
from penstock.shared.files.bad_sectors import read_at
from penstock.shared.files.descriptors import take_descriptor
from penstock.shared.formats.index_layout import HEADER, Geometry
from penstock.shared.next_steps import rebuild_index

# RocketMQ's names: yyyyMMddHHmmssSSS, in local time.
NAME_DIGITS = 17


def index_geometry(config: Config) -> Geometry:
    """Slots and items as configured: nothing in a file says how many it was made with."""
    return Geometry(config.max_hash_slot_num, config.max_index_num)


def index_files(directory: Path) -> list[Path]:
    """The index files, oldest first. Whatever has another name is skipped, as RocketMQ does."""
    try:
        names = take_descriptor(lambda: os.listdir(directory))
    except FileNotFoundError:
        return []
    # isdigit() alone also accepts the digits of other scripts
    return [
        directory / name
        for name in sorted(names)
        if len(name) == NAME_DIGITS and name.isascii() and name.isdigit()
    ]


def begun_index_files(directory: Path) -> list[Path]:
    """The same without an empty last file, which a RocketMQ leaves if it dies while making one: a
    start removes it."""
    paths = index_files(directory)
    return paths[:-1] if paths and not paths[-1].lstat().st_size else paths


def check_index_sizes(directory: Path, geometry: Geometry) -> None:
    """Raise StoreDamaged for a file of another length than the geometry's."""
    for path in begun_index_files(directory):
        check_index_size(path, path.stat().st_size, geometry)


def check_index_size(path: Path, size: int, geometry: Geometry) -> None:
    """Raise StoreDamaged unless the file has the length that follows from the geometry.

    RocketMQ does not check, and extends a shorter file. With other numbers than it was made with,
    slots and items would be read from wrong places.
    """
    if size != geometry.file_bytes:
        raise StoreDamaged(
            "an index file has another length than it was made with",
            f"{path} has {size} bytes; with {geometry.slots} slots and {geometry.items} items it "
            f"would have {geometry.file_bytes}",
            f"stop the broker and make the index anew: {rebuild_index(path)}",
        )


def read_index_header(path: Path) -> tuple[int, int, int, int, int, int] | None:
    """The header's six words; None where the file is too short, or is not a regular file.

    Raises FileNotFoundError where it is gone.
    """
    # before it is opened: opening a pipe would wait until somebody opens it to write
    if not stat.S_ISREG(path.lstat().st_mode):
        return None
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = take_descriptor(lambda: os.open(path, flags))
    try:
        raw = read_at(fd, HEADER.size, 0)
    finally:
        os.close(fd)
    if len(raw) < HEADER.size:
        return None
    begin_ms, end_ms, begin, end, slots, items = HEADER.unpack(raw)
    return begin_ms, end_ms, begin, end, slots, items
