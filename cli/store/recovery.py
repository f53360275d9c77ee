"""`penstock recovery`: what a store's last starts after a crash found and did."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from penstock.cli.options.endpoints import store_of
from penstock.cli.options.option_types import store_option
from penstock.cli.printing.output import (
    few,
    print_json,
    print_table,
    print_text,
    rows_alone,
    rows_option,
)
from penstock.cli.printing.suggestions import Group


@click.group(cls=Group)
def recovery() -> None:
    """What starts after a crash have found and done."""


@recovery.command(
    epilog="""\b
Examples:
  penstock recovery show --store ./store
  penstock recovery show --store ./store -o json
"""
)
@store_option
@rows_option
def show(store: Path | None, output: str) -> None:
    """Show the last starts that were not clean, oldest first. Needs no broker."""
    from penstock.shared.layout import StorePaths
    from penstock.shared.recovery.history import load_recoveries

    paths = StorePaths(store_of(store))
    rows = load_recoveries(paths)
    if output == "json":
        for row in rows:
            print_json(row)
        return
    if not rows and not rows_alone():
        click.echo(f"{paths.root}: no start has had to recover anything")
        return
    print_table(
        ("start", "mode", "from", "to", "segments", "messages", "files", "read", "pool", "torn")
        + ("damaged", "s"),
        [
            (
                datetime.fromtimestamp(row.at_ms / 1000, UTC).isoformat(timespec="seconds"),
                row.found.mode,
                row.found.scanned_from,
                row.found.log_end,
                row.found.segments,
                row.found.messages,
                row.found.read_files,
                row.found.read_bytes,
                row.found.pool_bytes,
                row.found.torn_bytes,
                len(row.found.quarantined),
                round(row.found.seconds, 3),
            )
            for row in rows
        ],
    )
    for line in few(f"damaged: {damage}" for row in rows[-1:] for damage in row.found.quarantined):
        print_text(line)
