"""Files of tests that are kept in memory: what is synced there is done at once.

Thousands of small stores are made and synced, and on a disk their tests wait for that; they look at
nothing that a disk does otherwise. The files of tests that failed are on the disk when tests have
ended.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

MEMORY, ROOM_BYTES = Path("/dev/shm"), 4 << 30
PREFIX = "tests-of-penstock-"


class MemoryFiles:
    """Has `tmp_path` and its factory make directories in memory, or on the disk."""

    def __init__(self) -> None:
        self._disk: Path | None = None
        self._place: Path | None = None

    def use(self, factory: pytest.TempPathFactory, in_memory: bool) -> None:
        if self._disk is None:
            self._disk = factory.getbasetemp()
        if in_memory and self._place is None and _has_room():
            _remove_left()
            self._place = MEMORY / f"{PREFIX}{os.getpid()}"
            self._place.mkdir(mode=0o700)
        # it has no other way to change its place
        vars(factory)["_basetemp"] = self._place if in_memory and self._place else self._disk

    def close(self, factory: pytest.TempPathFactory, failed: bool) -> None:
        """What is left is of tests that failed, and what several have shared."""
        if self._disk is None:
            return
        vars(factory)["_basetemp"] = self._disk
        if self._place is not None:
            if failed:
                with suppress(shutil.Error):  # it has copied all but sockets
                    shutil.copytree(self._place, self._disk / "memory", symlinks=True)
            shutil.rmtree(self._place, ignore_errors=True)


def _has_room() -> bool:
    """A container has 64 MiB, or none."""
    return MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ROOM_BYTES


def _remove_left() -> None:
    """Of processes that were killed."""
    for left in MEMORY.glob(f"{PREFIX}*"):
        if not Path("/proc", left.name.removeprefix(PREFIX)).exists():
            shutil.rmtree(left, ignore_errors=True)
