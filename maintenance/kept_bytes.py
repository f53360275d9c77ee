"""Where a repair keeps the bytes of a damaged range: in a file of the quarantine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from penstock.shared.files.bad_sectors import read_at, read_file
from penstock.shared.files.durable import opened
from penstock.shared.layout import StorePaths
from penstock.shared.log.damage import Damage, place_aside


def kept_in(paths: StorePaths, damage: Damage, replaced: Mapping[int, int]) -> str:
    """The file that has them, or will have them. `replaced` has positions and sizes of the records
    with which a killed repair has replaced some already.

    A file with other bytes is from an earlier repair. But if this repair was killed half way, the
    newest file has the bytes, and those that were replaced already are not compared.
    """
    at, newest = damage.position, ""
    while at in replaced:
        at += replaced[at]
    done = min(at - damage.position, damage.size)

    def has_it(path: Path) -> bool:
        nonlocal newest
        if path.stat().st_size != damage.size:
            return False
        has_rest = read_file(path)[done:] == bytes_of(damage)[done:]
        newest = str(path) if has_rest else newest
        return has_rest and not done

    free = place_aside(paths, f"{damage.position}.bin", has_it)
    return newest or str(free)


def bytes_of(damage: Damage) -> bytes:
    """The bytes in a damaged range."""
    with opened(damage.file, os.O_RDONLY) as handle:
        return read_at(handle, damage.size, damage.offset)
