"""Processes that keep processors busy during a measurement, as on a user's machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# It ends when its parent is gone, however that ended.
_BURN = """\
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(100_000):
        pass
"""


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Run this many processes, each of which takes all that it gets of one processor."""
    burning: list[subprocess.Popen[bytes]] = []
    try:
        burning += [subprocess.Popen([sys.executable, "-c", _BURN]) for _ in range(count)]
        yield
    finally:
        for process in burning:
            process.kill()
        for process in burning:
            process.wait()
