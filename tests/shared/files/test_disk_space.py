"""How full a disk is, and whether a segment has room there, in blocks as statvfs counts them."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.shared.config import Config
from penstock.shared.files.disk_space import describe_disk, disk_used_percent, lacking_room

MIB = 1 << 20


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A disk of 200 blocks: 60 are used, 40 are root's, and 100 are free."""
    blocks = SimpleNamespace(f_blocks=200, f_bfree=140, f_bavail=100, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: blocks)
    return blocks


@pytest.mark.parametrize(
    ("used", "free", "empty_blocks", "percent"),
    [
        (0, 160, 0, 0),
        (1, 159, 0, 1),  # rounded up
        (80, 80, 0, 50),
        (81, 79, 0, 51),
        (81, 79, 1, 50),
        (81, 79, 81, 0),
        (81, 79, 100, 0),
        (160, 0, 0, 100),
        (0, 0, 0, -1),
    ],
)
def test_blocks_of_root_count_for_neither_and_what_is_allocated_ahead_is_free(
    disk: SimpleNamespace, used: int, free: int, empty_blocks: int, percent: int
) -> None:
    disk.f_bfree, disk.f_bavail = disk.f_blocks - used, free
    assert disk_used_percent(Path("/"), empty_blocks * 4096) == percent


def test_a_reader_is_told_mebibytes(disk: SimpleNamespace) -> None:
    disk.f_frsize = MIB // 2
    assert describe_disk(Path("/")) == "30.0 of 80.0 MiB are used"


@pytest.mark.parametrize("is_indexed", [True, False])
@pytest.mark.parametrize("lacking", [-1, 0, 1])
def test_a_segment_has_room_with_its_queues_and_the_slots_of_an_index_file(
    disk: SimpleNamespace, is_indexed: bool, lacking: int
) -> None:
    keys: dict[str, Any] = {"mapped_file_size_commit_log_bytes": 8000, "max_hash_slot_num": 250}
    config = Config(**keys, message_index_enable=is_indexed)
    needed = 9000 + (1000 if is_indexed else 0)
    disk.f_frsize, disk.f_bavail = 1, needed - lacking
    told = lacking_room(Path("/disk"), config)
    if lacking <= 0:
        assert told == ""
    else:
        assert f"needs {needed} bytes" in told and f"{needed - 1} are free on the disk" in told


def test_a_disk_whose_use_is_unknown_stops_nobody(
    disk: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.f_blocks = disk.f_bfree = disk.f_bavail = 0
    assert disk_used_percent(tmp_path) == -1 and lacking_room(tmp_path, Config()) == ""
    monkeypatch.undo()
    nowhere = tmp_path / "nowhere"
    assert disk_used_percent(nowhere) == -1 and lacking_room(nowhere, Config()) == ""
    assert describe_disk(nowhere) == "nobody knows how full the disk is"
