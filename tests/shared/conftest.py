"""What the kernel knows of this process, for the tests of shared/."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def fetched_alone() -> Callable[[Path], list[bool]]:
    """For each mapping of a file: does a touch of a page leave the pages around it alone?"""

    def look(path: Path) -> list[bool]:
        lines = Path("/proc/self/smaps").read_text().splitlines()
        starts = [number for number, line in enumerate(lines) if line.endswith(f" {path}")]
        flags = [next(x for x in lines[at:] if x.startswith("VmFlags")) for at in starts]
        return [" rr " in each for each in flags]

    return look
