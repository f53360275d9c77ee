"""How much room a disk has: what `df` says of it."""

from __future__ import annotations

import shutil
from pathlib import Path

from penstock.actors.monitor.disk import Room, room_of


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
