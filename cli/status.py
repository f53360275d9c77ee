"""`penstock status`: what the shared memory of a running broker says. Asks no actor anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from penstock.cli.output import output_option, print_json, print_table


@click.command(
    epilog="""\b
Examples:
  penstock status --store ./store
  penstock status --store ./store -o json
"""
)
@click.option("--store", type=click.Path(path_type=Path), help="The store directory.")
@output_option
def status(store: Path | None, output: str) -> None:
    """Show a broker's actors and how far each got.

    Exits with 3 when no broker runs on the store.
    """
    from penstock.shared.config_sources import default_store

    found = read_status(store or Path(default_store()))
    if output == "json":
        print_json(found)
        return
    print_table(
        ("actor", "pid", "generation", "state", "restarts", "heartbeat age ms"),
        [
            (a["name"], a["pid"], a["generation"], a["state"], a["restarts"], a["heartbeat_age_ms"])
            for a in found["actors"]
        ],
    )
    click.echo()
    print_table(
        ("position", "value", "unit", "owner", "meaning"),
        [(p.name, found["positions"][p.name], p.unit, p.owner, p.meaning) for p in _table()],
    )
    click.echo()
    print_table(("retention", ""), list(found["retention"].items()))
    click.echo()
    print_table(("endpoint", "address"), list(found["endpoints"].items()))
    if found["damaged"]:
        click.echo("\nread-only; the log is damaged:")
        columns = ("position", "size", "file", "offset", "reason")
        print_table(columns, [[row[name] for name in columns] for row in found["damaged"]])
        click.echo(f"stop the broker and run: penstock store repair {found['store']}")


def _table() -> tuple[Any, ...]:
    from penstock.shared.positions import POSITIONS

    return POSITIONS


def _retention(values: dict[str, int]) -> dict[str, int | str]:
    """What of the log is there, how full its disk is, and whether old messages go."""
    import os

    error = values["clean_error"]
    state = "the disk is full: no message is taken" if values["disk_full"] else "messages are taken"
    return {
        "log_start": values["log_start"],
        "log_end": values["wrote"],
        "log_bytes": values["wrote"] - values["log_start"],
        "disk_used_percent": values["disk_used"],
        "state": f"{state}; deleting failed: {os.strerror(error)}" if error else state,
    }


def read_status(store: Path) -> dict[str, Any]:
    """The status as `-o json` prints it. Raises ConnectError when no broker runs."""
    import msgspec

    from penstock.shared.clock import SystemClock
    from penstock.shared.layout import StorePaths
    from penstock.shared.positions import ACTORS, Positions
    from penstock.shared.quarantine import load_quarantine
    from penstock.shared.run_directory import find_running

    run = find_running(store)
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
                # of a successor that has not beaten yet there is no heartbeat
                "heartbeat_age_ms": (
                    max(0, now_ms - life.heartbeat_ms)
                    if life.beating_generation == life.generation
                    else None
                ),
                "cycles": life.cycles,
            }
        )
    found = {
        "store": str(store.resolve()),
        "supervisor_pid": run.supervisor_pid,
        "started_ms": run.started_ms,
        "run_directory": run.directory,
        "actors": actors,
        "positions": (values := positions.all()),
        "retention": _retention(values),
        "damaged": msgspec.to_builtins(
            load_quarantine(StorePaths(store)) if positions["read_only"] else []
        ),
        "endpoints": msgspec.to_builtins(run.endpoints),
    }
    positions.close()
    return found
