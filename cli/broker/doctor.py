"""`penstock doctor`: whether this machine has what a broker, its clients and Spark need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.options.settings import config_option, set_option
from penstock.cli.printing.output import print_json, print_table, print_text, rows_option

if TYPE_CHECKING:
    from penstock.maintenance.machine.need import Check
    from penstock.shared.config import Config


@click.command(
    epilog="""\b
Examples:
  penstock doctor
  penstock doctor --set produce_port=30911 -o json
  penstock doctor --fix
"""
)
@config_option
@set_option
@click.option("--fix", is_flag=True, help="Mend what can be mended without a risk, then look.")
@rows_option
def doctor(
    file: Path | None, settings: tuple[tuple[str, str], ...], fix: bool, output: str
) -> None:
    """Look whether this machine has what a broker, its clients and Spark need.

    Ports, limits, shared memory and what killed runs of stores that are gone have left there, disk,
    clock, compiled loops, Java; each that is not fine with what to do. --fix removes that memory,
    and nothing else. Nothing is started. Exits with 1 where there is a problem; what only costs
    speed, or a part that may not be needed, is a warning.
    """
    import os

    from penstock.maintenance.machine.need import PROBLEM, WARNING
    from penstock.shared.config_sources import load_config

    config = load_config(file, dict(settings), os.environ).config
    if fix:
        _remove_abandoned()
    rows = list(_checks(config))
    if output == "json":
        for row in rows:
            print_json(row)
    else:
        columns = ("what", "is", "found", "what to do")
        print_table(columns, [(row.name, row.state, row.found, row.remedy) for row in rows])
        count = {state: sum(row.state == state for row in rows) for state in (PROBLEM, WARNING)}
        print_text(f"problems: {count[PROBLEM]}, warnings: {count[WARNING]}")
    if any(row.state == PROBLEM for row in rows):
        raise click.exceptions.Exit(1)


def _remove_abandoned() -> None:
    from penstock.shared.memory.run_directory import abandoned_runs, remove_directory

    for directory in abandoned_runs():
        try:
            remove_directory(directory)
        except FileNotFoundError:
            continue  # another `doctor --fix` is removing it
        click.echo(f"removed {directory}", err=True)


def _checks(config: Config) -> Iterator[Check]:
    from penstock.maintenance.machine.checks import check_machine

    yield from check_machine(config)
    yield _java()


def _java() -> Check:
    from penstock.maintenance.machine.need import FINE, WARNING, Check
    from penstock.shared.errors import PenstockError
    from penstock.spark.java import find_java

    try:
        return Check("Java for Spark", FINE, str(find_java()))
    except PenstockError as error:
        return Check("Java for Spark", WARNING, error.what, error.hint)
