"""Removes a temporary store: called by the launcher, or by the program if that was killed."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from penstock.embedded.messages import Launch
from penstock.shared.clock import SystemClock
from penstock.shared.config_sources import STORE_KEY
from penstock.shared.layout import StorePaths
from penstock.shared.memory.run_directory import read_run, remove_run_directory
from penstock.shared.process.log_line import log_line

# How many times removal is tried.
REMOVALS = 200


def remove_temporary(launch: Launch) -> None:
    """Remove a temporary store and the shared memory of a run that was killed on it. Any other
    store is left alone.

    The run's actors may still be dying; files that they have open vanish with them.
    """
    if not launch.temporary:
        return
    run = read_run(StorePaths(Path(str(launch.flags[STORE_KEY]))))
    if run is not None:
        remove_run_directory(run)
    # the next try finds a file that a dying actor has just created
    for _ in range(REMOVALS):
        shutil.rmtree(launch.temporary, ignore_errors=True)
        if not os.path.lexists(launch.temporary):
            return
        time.sleep(0.01)
    log_line(SystemClock().now_ms(), "embedded", f"{launch.temporary} cannot be removed")
