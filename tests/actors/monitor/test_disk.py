"""How much room a disk has: what `df` says of it, and for how long."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.actors.monitor import disk
from penstock.actors.monitor.disk import Room, full_in_s, room_of


def test_the_room_of_a_disk_is_what_an_ordinary_user_has(tmp_path: Path) -> None:
    """A size that is not true has the day on which the disk refuses messages come unannounced."""
    while True:
        before, found, after = (
            shutil.disk_usage(tmp_path),
            room_of(tmp_path),
            shutil.disk_usage(tmp_path),
        )
        if before == after:  # nobody has written meanwhile
            break
    assert found == Room(before.used + before.free, before.free)


@pytest.mark.parametrize(
    ("allocated", "wrote", "bytes_per_s", "seconds"),
    [
        (700, 700, 10, 15.0),  # 250 are free, of which the disk keeps 100
        (700, 650, 10, 20.0),  # the last segment has room for 50 more
        (700, 900, 10, 15.0),  # the next segment is not made yet
        (700, 700, 0, None),
        (700, 700, 1e-9, None),  # in 4,000 years
    ],
)
def test_it_is_full_when_what_is_free_and_what_is_allocated_ahead_are_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    allocated: int,
    wrote: int,
    bytes_per_s: float,
    seconds: float | None,
) -> None:
    monkeypatch.setattr(disk, "room_of", lambda path: Room(1000, 250))
    reading = SimpleNamespace(
        paths=SimpleNamespace(commit_log=tmp_path),
        positions={"allocated": allocated, "wrote": wrote},
        config=SimpleNamespace(disk_space_warning_level_ratio_percent=90),
    )
    history = SimpleNamespace(bytes_per_s=lambda: bytes_per_s)
    assert full_in_s(cast(Any, reading), cast(Any, history)) == seconds
