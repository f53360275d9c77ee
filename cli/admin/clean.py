"""`penstock clean`: has a running broker delete expired segments now, whatever the hour.

The request is a file in the broker's run directory, which the cleaner removes when it is done. The
report compares the directory, the cleaner's words and its list of deletions before and after.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.options.endpoints import store_of
from penstock.cli.options.option_types import store_option
from penstock.cli.printing.output import output_option, print_json, progress
from penstock.shared.errors import StoreUnavailable

if TYPE_CHECKING:
    from penstock.shared.memory.positions import Positions
    from penstock.shared.memory.run_directory import Run

LOOK_S = 0.02
HOUR_MS = 3_600_000
# After this long without a heartbeat no answer will come: the supervisor would have replaced it.
SILENCE_S = 30


@click.command(
    epilog="""\b
Examples:
  penstock clean --store ./store
  penstock clean --store ./store -o json
  penstock clean --store ./store --trust-clock   after the clock was set by more than an hour
"""
)
@store_option
@click.option("--trust-clock", is_flag=True, help="Believe the clock though it has jumped.")
@output_option
def clean(store: Path | None, trust_clock: bool, output: str) -> None:
    """Have a broker delete old messages now, and say what it deleted.

    What goes is what has had its file_reserved_time_h, and no more; the hours of delete_when do not
    count. The newest messages stay, whatever their age. After a jump of the clock nothing counts
    as old until that time has passed again; --trust-clock says that it is right.

    Exits with 1 when a file could not be deleted, with 3 when no broker runs on the store.
    """
    from penstock.shared.next_steps import quoted

    found = request_clean(store_of(store), trust_clock=trust_clock)
    if output == "json":
        print_json(found)
    else:
        segments, others = found["segments"], found["queue_files"] + found["index_files"]
        click.echo(
            f"{len(segments)} segments deleted with {found['messages']} messages, "
            f"{others} files of queues and index"
        )
        for name in segments:
            click.echo(name)
        start, end = found["log_start"], found["log_end"]
        click.echo(f"the log holds offsets [{start}, {end})", err=True)
        if found["held_by_delayed"]:
            click.echo(
                "delayed messages wait there, and keep what is stored after them: penstock status "
                f"--all --store {quoted(found['store'])}",
                err=True,
            )
        if found["clock_held_ms"] and not trust_clock:
            click.echo(
                "the clock has jumped: nothing counts as old for another "
                f"{found['clock_held_ms'] / HOUR_MS:.1f} h. Where it is right now: penstock clean "
                f"--trust-clock --store {quoted(found['store'])}",
                err=True,
            )
    if found["error"]:
        raise StoreUnavailable(
            "an expired file could not be deleted",
            found["error"],
            "look at the disk, and at who may write to the store",
        )


def request_clean(store: Path, *, trust_clock: bool = False) -> dict[str, Any]:
    """Ask for a round and wait for its end. Returns the result as `-o json` prints it.

    Raises ConnectError if no broker runs, BrokerTimeout if its cleaner makes no progress, and
    StoreUnavailable if the log is damaged, because nothing of a damaged log is deleted.
    """
    import os

    from penstock.shared.clock import SystemClock
    from penstock.shared.layout import StorePaths, is_segment_name
    from penstock.shared.log.damage import read_only_error
    from penstock.shared.memory.positions import Positions
    from penstock.shared.memory.run_directory import ask_to_clean
    from penstock.shared.process.find_broker import find_running
    from penstock.shared.store.deletions import load_deletions
    from penstock.shared.store.retention_clock import TRUST_CLOCK, held_ms

    run = find_running(store)
    paths = StorePaths(store)
    positions = Positions(run.positions)
    if positions["read_only"]:
        raise read_only_error(paths)
    before = positions.all()
    names = {name for name in os.listdir(paths.commit_log) if is_segment_name(name)}
    known = load_deletions(paths)
    ask_to_clean(run, TRUST_CLOCK if trust_clock else b"")
    _await_round(run, positions, len(names), store)
    after, deletions = positions.all(), [row for row in load_deletions(paths) if row not in known]
    positions.close()
    # the last segment is still being written, and always stays
    last = max((int(name) for name in names if int(name) <= after["wrote"]), default=0)
    return {
        "segments": sorted(names - set(os.listdir(paths.commit_log))),
        "messages": sum(row.messages for row in deletions),
        "queue_files": after["deleted_queue_files"] - before["deleted_queue_files"],
        "index_files": after["deleted_index_files"] - before["deleted_index_files"],
        "log_start": after["log_start"],
        "log_end": after["wrote"],
        "store": str(store),
        "held_by_delayed": after["pending_delayed"] > 0 and after["delay_floor"] < last,
        "clock_held_ms": held_ms(paths.retention, SystemClock()),
        "error": os.strerror(after["clean_error"]) if after["clean_error"] else "",
    }


def _await_round(run: Run, positions: Positions, segments: int, store: Path) -> None:
    """Wait until the cleaner has done the round. Raises BrokerTimeout."""
    from penstock.shared.errors import BrokerTimeout
    from penstock.shared.memory.run_directory import running

    began_s, before = time.monotonic(), positions["deleted_segments"]
    hint = f"see what it does: penstock status --store {store}"
    with progress("deleting old segments") as report:
        while run.clean_request.exists():
            silent_s = time.monotonic() - positions.life("cleaner").heartbeat_ms / 1000
            if silent_s > SILENCE_S or not running(run):
                what = f"the cleaner gave no sign of life for {SILENCE_S} s"
                raise BrokerTimeout(what, store, hint)
            if not positions["delay_floor"] and time.monotonic() - began_s > SILENCE_S:
                run.clean_request.unlink(missing_ok=True)
                what = f"the scheduler has not said within {SILENCE_S} s which messages wait"
                raise BrokerTimeout(what, store, hint)
            report(positions["deleted_segments"] - before, segments)
            time.sleep(LOOK_S)
