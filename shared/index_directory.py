"""The names of the index files, and their lengths. Knows nothing of what is in them."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.shared.config import Config
from penstock.shared.errors import StoreDamaged
from penstock.shared.index_header import Geometry

NAME_DIGITS = 17


def index_geometry(config: Config) -> Geometry:
    return Geometry(config.max_hash_slot_num, config.max_index_num)


def index_files(directory: Path) -> list[Path]:
    """The index files, oldest first. Whatever has another name is skipped, as RocketMQ does."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return [
        directory / name
        for name in sorted(names)
        if len(name) == NAME_DIGITS and name.isascii() and name.isdigit()
    ]


def check_index_sizes(directory: Path, geometry: Geometry) -> None:
    """Raise StoreDamaged for a file of another length than the geometry's; an empty one may be."""
    for path in index_files(directory):
        if size := path.stat().st_size:
            check_index_size(path, size, geometry)


def check_index_size(path: Path, size: int, geometry: Geometry) -> None:
    if size != geometry.file_bytes:
        raise StoreDamaged(
            f"an index file is not {geometry.file_bytes} bytes long, as {geometry.slots} slots and "
            f"{geometry.items} items are",
            f"{path} has {size}",
            "set max_hash_slot_num and max_index_num to what it was written with, or move it away",
        )
