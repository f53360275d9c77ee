"""`penstock status`: what the shared memory of a running broker says. Asks no actor anything.

The table fits a terminal of 80 columns and 24 lines, with what matters first. Rates are computed
from two looks at the same counters.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import click

from penstock.cli.broker.watching import problems_of
from penstock.cli.options.endpoints import served, store_of
from penstock.cli.options.option_types import store_option
from penstock.cli.printing.output import (
    MOST_LISTED,
    print_json,
    print_table,
    rows_alone,
    rows_option,
    shown_bytes,
    shown_time,
)
from penstock.shared.errors import ConnectError, InvalidArgument

# The time between the two looks, in which a flusher on a slow disk still moves a few times.
LOOK_S = 0.4
# How many deletions --all lists; -o json has all that are kept.
SHOWN_DELETIONS = 5


class Look(NamedTuple):
    """The counters at one moment."""

    at_s: float
    wrote: int
    messages: int


@click.command(
    epilog="""\b
Examples:
  penstock status --store ./store
  penstock status --store ./store --all
  penstock status --store ./store -o json | jq .positions.wrote
  penstock status --store ./store --check
  kill -9 $(penstock status --store ./store --pid writer)
"""
)
@store_option
@click.option("--all", "whole", is_flag=True, help="Every word of the broker's shared memory too.")
@click.option("--pid", "who", metavar="ACTOR", help="Only this one's pid; supervisor is one too.")
@click.option("--check", is_flag=True, help="Only whether it is healthy; exits with 1 if not.")
@rows_option
@click.pass_context
def status(
    ctx: click.Context,
    store: Path | None,
    whole: bool,
    who: str | None,
    check: bool,
    output: str,
) -> None:
    """Show a broker's actors, how far each got, and how fast.

    The third column is how many bytes of the log a stage has still to do. Rates are of the moment.
    With -o json there is everything, and of rates what they are counted from; with -o csv and
    -o plain only the actors. Exits with 3 when no
    broker runs on the store, and --check, which a health check of a container or a service asks,
    with 1 where an actor does not work, a file has failed, or the log is damaged.
    """
    from penstock.shared.process.broker_status import read_status

    root = store_of(store)
    if check:
        ctx.exit(_check(root, output))
    found = read_status(root)
    if who is not None:
        click.echo(_pid_of(found, who))
        return
    if output == "json":
        print_json({**found, **_counted(root)})
        return
    if rows_alone():
        _print_actors(found, whole)
        return
    first = _look(root)
    time.sleep(LOOK_S)
    _print(read_status(root), first, _look(root), whole)
    if whole:
        _print_all(found)


def _check(root: Path, output: str) -> int:
    """Print whether the broker is healthy, and return the exit code. Raises ConnectError."""
    wrong = problems_of(root)
    if output == "json":
        print_json({"ok": not wrong, "problems": wrong})
    else:
        click.echo(f"not healthy: {'; '.join(wrong)}" if wrong else "healthy")
    return 1 if wrong else 0


def _pid_of(found: dict[str, Any], who: str) -> int:
    """Raises InvalidArgument if there is no such actor, ConnectError if it does not run."""
    pids = {"supervisor": found["supervisor_pid"]}
    pids |= {actor["name"]: actor["pid"] for actor in found["actors"]}
    if who not in pids:
        raise InvalidArgument("there is no such actor", who, f"one of {', '.join(pids)}")
    if not pids[who]:
        raise ConnectError("this actor does not run at the moment", who, "penstock status says why")
    return int(pids[who])


def _look(store: Path) -> Look:
    """Read the counters. A message counts once it is in its queue, where consumers can get it."""
    from penstock.shared.memory.positions import Positions
    from penstock.shared.memory.queue_table import QueueTable
    from penstock.shared.process.find_broker import find_running

    run = find_running(store)
    positions, queues = Positions(run.positions), QueueTable(run.queues)
    with queues.max_offsets() as ends:
        messages = sum(ends[: positions["queue_count"]])
    look = Look(time.monotonic(), positions["wrote"], messages)
    queues.close()
    positions.close()
    return look


def _counted(store: Path) -> dict[str, Any]:
    look = _look(store)
    return {"messages": look.messages, "monotonic_s": round(look.at_s, 3)}


def _print_actors(found: dict[str, Any], whole: bool) -> None:
    """Print the actors; those that the configuration switches off only if `whole`."""
    print_table(
        ("actor", "state", "pid", "restarts", "heartbeat ms", "log offset", "behind"),
        [
            (
                *(a["name"], a["state"], a["pid"], a["restarts"], a["heartbeat_age_ms"]),
                *_stage(a["name"], found["positions"]),
            )
            for a in found["actors"]
            if whole or a["state"] != "off"
        ],
    )


def _print(found: dict[str, Any], first: Look, last: Look, whole: bool) -> None:
    positions, retention = found["positions"], found["retention"]
    since = shown_time(found["started_ms"])
    click.echo(f"store        {found['store']}")
    click.echo(f"broker       pid {found['supervisor_pid']}, since {since}")
    for name, endpoint in served(found["endpoints"]).items():
        click.echo(f"{name:<12} {endpoint}")
    click.echo(f"log          [{retention['log_start']}, {retention['log_end']})")
    held_ms = retention["clock_held_ms"]
    held = f"; its clock has jumped: see penstock clean --help ({held_ms} ms)" if held_ms else ""
    used = retention["disk_used_percent"]
    full = "unknown" if used is None else f"{used} % full"
    click.echo(f"disk         {full}; {retention['state']}{held}")
    click.echo()
    _print_actors(found, whole)
    over_s = last.at_s - first.at_s
    click.echo(
        f"{(last.messages - first.messages) / over_s:,.0f} messages/s, "
        f"{shown_bytes((last.wrote - first.wrote) / over_s)}/s; "
        f"{last.messages:,} messages and {positions['queue_count']:,} queues in all"
    )
    if gone := positions["undelivered"]:
        click.echo(f"undelivered  {gone:,} delayed messages whose topics are gone")
    if found["deletions"]:
        when, why, segments, _, messages, _ = _deletion(found["deletions"][-1])
        click.echo(f"deleted      {when}: {segments} segments, {messages} messages; {why}")
    if pages := [f"{a['name']} {n:,}" for a in found["actors"] if (n := a["unreadable_pages"])]:
        click.echo(f"unreadable   pages that the disk could not read: {', '.join(pages)}")
        click.echo(f"             to see what is lost: penstock store verify {found['store']}")
    if found["damaged"]:
        click.echo("\nread-only; the log is damaged:")
        columns = ("position", "size", "file", "offset", "reason")
        rows = [[row[name] for name in columns] for row in found["damaged"]]
        print_table(columns, rows[:MOST_LISTED])
        if len(rows) > MOST_LISTED:
            click.echo(f"and {len(rows) - MOST_LISTED} more")
        click.echo(f"stop the broker and run: penstock store repair {found['store']}")


def _stage(actor: str, positions: dict[str, int]) -> tuple[object, ...]:
    """How far an actor of the pipeline is in the log; (None, None) for the others."""
    from penstock.shared.memory.positions import STAGES

    name = STAGES.get(actor)
    if name is None:
        return None, None
    return positions[name], max(0, positions["wrote"] - positions[name])


def _deletion(row: dict[str, Any]) -> tuple[object, ...]:
    times = shown_time(row["at_ms"]), shown_time(row["stored_before_ms"])
    least = "at least " if row["uncounted_queues"] else ""
    messages = f"{least}{row['messages']}" if least else row["messages"]
    return times[0], row["why"], row["segments"], row["log_end"], messages, times[1]


def _print_all(found: dict[str, Any]) -> None:
    from penstock.shared.memory.positions import POSITIONS

    click.echo()
    print_table(
        ("position", "value", "unit", "owner", "meaning"),
        [(p.name, found["positions"][p.name], p.unit, p.owner, p.meaning) for p in POSITIONS],
    )
    click.echo()
    print_table(
        ("actor", "generation", "cycles"),
        [(a["name"], a["generation"], a["cycles"]) for a in found["actors"]],
    )
    click.echo()
    if found["deletions"]:
        print_table(
            ("deleted", "why", "segments", "log end", "messages", "stored before"),
            [_deletion(row) for row in found["deletions"][-SHOWN_DELETIONS:]],
        )
        click.echo()
    rows = {**found["retention"], **found["endpoints"], "run_directory": found["run_directory"]}
    print_table(("what", "value"), list(rows.items()))
