"""The end of a temporary store: the launcher sees to it, and the program where that was killed."""

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

# How often it is tried to be removed.
REMOVALS = 200


def remove_temporary(launch: Launch) -> None:
    """Remove a store that nobody is to see again, and the memory of a run that was killed on it;
    nothing of a store that stays.

    The actors of that run may still be dying; what they have open goes with them.
    """
    if not launch.temporary:
        return
    run = read_run(StorePaths(Path(str(launch.flags[STORE_KEY]))))
    if run is not None:
        remove_run_directory(run)
    # a file that a dying actor has just made is met by the next try
    for _ in range(REMOVALS):
        shutil.rmtree(launch.temporary, ignore_errors=True)
        if not os.path.lexists(launch.temporary):
            return
        time.sleep(0.01)
    log_line(SystemClock().now_ms(), "embedded", f"{launch.temporary} cannot be removed")
