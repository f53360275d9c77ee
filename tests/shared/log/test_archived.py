"""How much of the log an archive has: nothing until one says so, and never a guess."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.shared.errors import StoreDamaged
from penstock.shared.layout import StorePaths
from penstock.shared.log.archived import Archived, load_archived, save_archived


def test_what_was_archived_is_what_the_last_job_says(tmp_path: Path) -> None:
    paths = StorePaths(tmp_path)
    paths.own.mkdir()
    assert load_archived(paths) is None
    for log_offset in (0, 4096, 1 << 40):
        archived = Archived(log_offset=log_offset, archive="/mnt/a b")
        save_archived(paths, archived)
        assert load_archived(paths) == archived


@pytest.mark.parametrize("broken", [b"", b"{}", b'{"log_offset":4096', b"[" * 100_000, b"\xff"])
def test_what_cannot_be_read_is_not_taken_for_nothing_and_the_way_out_runs(
    tmp_path: Path, broken: bytes
) -> None:
    paths = StorePaths(tmp_path)
    paths.own.mkdir()
    paths.archived.write_bytes(broken)
    with pytest.raises(StoreDamaged, match=f"mv {paths.archived} {paths.archived}.broken"):
        load_archived(paths)
