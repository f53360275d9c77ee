"""What the shared memory of a running broker says of it. Asks no actor, changes nothing.

So it also answers while actors are frozen or are being replaced, which is when people look.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from penstock.shared.clock import SystemClock
from penstock.shared.layout import StorePaths
from penstock.shared.log.damage import load_quarantine
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.roster import ACTORS
from penstock.shared.process.disk_full import used_percent
from penstock.shared.process.find_broker import find_running
from penstock.shared.store.deletions import load_deletions
from penstock.shared.store.retention_clock import held_ms


def read_status(store: Path) -> dict[str, Any]:
    """The status as `-o json` prints it. Raises ConnectError when no broker runs.

    Times are in ms, positions in the units that their table names. The words are read one by one,
    so under load a later stage may appear ahead of an earlier one.
    """
    run = find_running(store)
    # without an owner: the page is mapped for reading only
    positions = Positions(run.positions)
    now_ms = SystemClock().monotonic_ms()
    actors = []
    for name in ACTORS:
        life = positions.life(name)
        actors.append(
            {
                "name": name,
                "pid": life.pid,
                "generation": life.generation,
                "state": life.state,
                "restarts": life.restarts,
                # a successor that has not beaten yet has no heartbeat
                "heartbeat_age_ms": (
                    # not below 0: the beat may have come after `now_ms` was taken
                    max(0, now_ms - life.heartbeat_ms)
                    if life.beating_generation == life.generation
                    else None
                ),
                "cycles": life.cycles,
                "unreadable_pages": life.unreadable_pages,
            }
        )
    found = {
        "store": str(store.resolve()),
        "supervisor_pid": run.supervisor_pid,
        "started_ms": run.started_ms,
        "run_directory": run.directory,
        "actors": actors,
        "positions": (values := positions.all()),
        "retention": _retention(values, held_ms(StorePaths(store).retention, SystemClock())),
        # what was deleted from the log, newest last, by this run and earlier ones
        "deletions": msgspec.to_builtins(load_deletions(StorePaths(store))),
        # the page says whether the log is damaged; the file says where
        "damaged": msgspec.to_builtins(
            load_quarantine(StorePaths(store)) if positions["read_only"] else []
        ),
        "endpoints": msgspec.to_builtins(run.endpoints),
    }
    positions.close()
    return found


def _retention(values: dict[str, int], clock_held_ms: int) -> dict[str, int | str | None]:
    """What is left of the log, how full its disk is, and whether messages are taken.

    All from one reading of the page, so that its numbers are those that "positions" shows.
    """

    error, state = values["clean_error"], _taking(values)
    return {
        "log_start": values["log_start"],
        "log_end": values["wrote"],
        "log_bytes": values["wrote"] - values["log_start"],
        "disk_used_percent": used_percent(values["disk_used"]),
        # after a jump of the clock, nothing is deleted for its age during this time
        "clock_held_ms": clock_held_ms,
        "state": f"{state}; deleting failed: {os.strerror(error)}" if error else state,
    }


def _taking(values: dict[str, int]) -> str:
    """Whether messages are taken. A reason that lasts until a restart is named first."""
    if error := values["flush_error"]:
        return f"a flush failed ({os.strerror(error)}): no message is taken until a restart"
    if values["read_only"]:
        return "the log is damaged: no message is taken"
    if error := values["commit_error"]:
        return f"the log cannot be written ({os.strerror(error)}), and that is tried again"
    return "the disk is full: no message is taken" if values["disk_full"] else "messages are taken"
