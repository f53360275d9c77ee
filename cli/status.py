"""`penstock status`: what the shared memory of a running broker says. Asks no actor anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from penstock.cli.output import output_option, print_json, print_table, shown_time

# the newest; -o json has all that are kept
SHOWN_DELETIONS = 5


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
    from penstock.shared.broker_status import read_status
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
    if found["deletions"]:
        click.echo()
        print_table(
            ("deleted", "why", "segments", "log end", "messages", "stored before"),
            [_deletion(row) for row in found["deletions"][-SHOWN_DELETIONS:]],
        )
    click.echo()
    print_table(("endpoint", "address"), list(found["endpoints"].items()))
    if found["damaged"]:
        click.echo("\nread-only; the log is damaged:")
        columns = ("position", "size", "file", "offset", "reason")
        print_table(columns, [[row[name] for name in columns] for row in found["damaged"]])
        click.echo(f"stop the broker and run: penstock store repair {found['store']}")


def _deletion(row: dict[str, Any]) -> tuple[object, ...]:
    times = shown_time(row["at_ms"]), shown_time(row["stored_before_ms"])
    least = "at least " if row["uncounted_queues"] else ""
    messages = f"{least}{row['messages']}" if least else row["messages"]
    return times[0], row["why"], row["segments"], row["log_end"], messages, times[1]


def _table() -> tuple[Any, ...]:
    from penstock.shared.positions import POSITIONS

    return POSITIONS
