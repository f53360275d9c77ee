"""What brokers leave in shared memory: run directories, and nothing of other programs."""

from __future__ import annotations

import tempfile
from pathlib import Path

from penstock.chaos.machine.processes import run_directories_below


def test_what_other_programs_have_in_shared_memory_is_no_run_directory(tmp_path: Path) -> None:
    """A benchmark with its store there ended every round of chaos on the machine."""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-run-", dir="/dev/shm") as other,
        tempfile.TemporaryDirectory(prefix="penstock-", dir="/dev/shm") as own,
    ):
        (Path(other) / "store").mkdir()
        (Path(own) / "store").write_text(str(tmp_path / "store"))
        assert run_directories_below(tmp_path) == [Path(own)]
