"""`penstock demo`: the main job on real input, from a CSV through the actors into Spark.

Every figure of the last line is counted where it happens, and the line is printed only when all
agree. The steps themselves are in demo_flights.py.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.output import output_option, print_json, print_table
from penstock.cli.signals import end_in_order

if TYPE_CHECKING:
    from penstock.spark.flights import CarrierRow

FLIGHTS = 336_776


@click.command(
    epilog="""\b
Examples:
  penstock demo
  penstock demo --store ./flights-store     keep the store and look at it afterwards
"""
)
@click.option("--store", type=click.Path(path_type=Path), help="Keep the store here; must be new.")
@output_option
@click.pass_context
def demo(ctx: click.Context, store: Path | None, output: str) -> None:
    """Send 336,776 flights through a broker, kill its writer half way, analyse them in Spark.

    Starts a broker on a new store and publishes each flight out of New York in 2013 as a message,
    every one acknowledged from disk, while a group of two members sums them up exactly once, and
    one of the two is killed half way. Each plane's order is checked. Then Spark reads the store,
    and its figures and the group's are compared with the CSV file.
    """
    end_in_order(ctx)
    if store is not None and store.exists() and any(store.iterdir()):
        raise click.UsageError(f"{store} is not empty; name a new directory")
    if store is not None:
        _run(store, output)
        return
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as place:
        _run(Path(place) / "store", output)


def _run(store: Path, output: str) -> None:
    from penstock.bench.stack import running_stack
    from penstock.cli.demo_flights import publish_and_consume
    from penstock.cli.flights_csv import flights_archive, read_flights
    from penstock.cli.output import progress
    from penstock.spark.flights import carrier_report, csv_report, same_report
    from penstock.spark.session import local_session

    # looked for first: else a missing package is an error after half a minute
    flights_archive()
    # Java takes seconds to start; the flights are sent meanwhile
    session = _Background(local_session)
    with running_stack(store) as stack:
        outcome = publish_and_consume(stack, FLIGHTS)
    with progress("Spark"):
        spark = session.result()
        report = _Background(lambda: carrier_report(spark, str(store)))
        expected = csv_report(read_flights())
        rows = report.result()
    spark.stop()
    _print(rows, output)
    problems = list(outcome.problems)
    in_spark = sum(row.flights for row in rows)
    if not same_report(rows, expected):
        problems.append("the figures from Spark differ from those of the CSV file")
    if not same_report(outcome.report(), expected):
        problems.append("the figures of the group differ from those of the CSV file")
    if not outcome.published == outcome.consumed == in_spark == FLIGHTS:
        problems.append(
            f"{FLIGHTS} flights: {outcome.published} published, {outcome.consumed} consumed, "
            f"{in_spark} in Spark"
        )
    if outcome.restarts != 1:
        problems.append(f"1 actor killed, {outcome.restarts} restarted")
    if outcome.members_killed != 1:
        problems.append(f"{outcome.members_killed} members of the group were killed")
    if problems:
        for problem in problems:
            click.echo(f"demo failed: {problem}", err=True)
        raise click.exceptions.Exit(1)
    click.echo(
        f"demo ok: {outcome.published} published, {outcome.consumed} consumed, "
        f"{in_spark} in Spark, {outcome.restarts} actor killed and restarted, "
        f"{outcome.members_killed} of 2 consumers killed"
    )


def _print(rows: list[CarrierRow], output: str) -> None:
    if output == "json":
        for row in rows:
            print_json(row)
        return
    print_table(
        ("carrier", "flights", "mean departure delay", "mean arrival delay", "cancelled %"),
        [
            (
                row.carrier,
                row.flights,
                round(row.mean_departure_delay_minutes or 0, 2),
                round(row.mean_arrival_delay_minutes or 0, 2),
                round(100 * row.cancelled_share, 2),
            )
            for row in rows
        ],
    )
    sys.stdout.flush()


class _Background:
    """A call in a thread of its own; `result` waits for it and raises what it raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value
