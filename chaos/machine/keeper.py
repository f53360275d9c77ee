"""Ends what a run of chaos has started if the run is killed and cannot do that itself.

The keeper is a separate process that waits for the end of a pipe, which only the run holds. It
recognises the run's processes by a word in their environment. It removes no files: they may show
why the run was killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGKILL

from penstock.chaos.machine.processes import processes_of, run_directories_below

_VARIABLE = "PENSTOCK_CHAOS_RUN"
_LOOK_AGAIN_S = 0.05


@contextmanager
def keeping(home: Path) -> Iterator[None]:
    """What the block starts does not outlive this process; its stores lie in `home`."""
    mark = uuid.uuid4().hex
    keeper = subprocess.Popen(
        [sys.executable, "-m", "penstock.chaos.machine.keeper", mark, str(home)],
        stdin=subprocess.PIPE,
        start_new_session=True,  # the keeper outlives a signal to the run's group
    )
    os.environ[_VARIABLE] = mark  # only now, so that the keeper does not end itself
    try:
        yield
    finally:
        del os.environ[_VARIABLE]
        keeper.communicate(b"in order")


def main() -> None:
    """`python -m penstock.chaos.machine.keeper MARK HOME`."""
    mark, home = sys.argv[1], Path(sys.argv[2])
    if os.read(0, 1):
        return
    # again, since a process that is just starting another one has one more by then
    while found := processes_of(mark):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, SIGKILL)
        time.sleep(_LOOK_AGAIN_S)
    for run in run_directories_below(home):
        shutil.rmtree(run, ignore_errors=True)


if __name__ == "__main__":
    main()
