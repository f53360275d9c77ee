"""`penstock demo`: the main job on real input, from a CSV through the actors into Spark.

Every figure of the last line is counted where it happens, and the line is printed only if all
agree. The steps themselves are in flights.py and pipeline.py.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.printing.output import output_option, print_json, print_table
from penstock.cli.signals import end_in_order

if TYPE_CHECKING:
    from penstock.cli.demo.flights import Outcome
    from penstock.spark.delays import Result
    from penstock.spark.flights import CarrierRow, DayRow

FLIGHTS = 336_776


@click.command(
    epilog="""\b
Examples:
  penstock demo
  penstock demo --open                      show what the stream has found in a browser
  penstock demo --store ./flights-store     keep the store and look at it afterwards
"""
)
@click.option("--store", type=click.Path(path_type=Path), help="Keep the store here; must be new.")
@click.option(
    "--page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the page of delays into this file.  [default: demo.html in the user's cache]",
)
@click.option("--open", "show", is_flag=True, help="Open that page in a browser.")
@output_option
@click.pass_context
def demo(
    ctx: click.Context, store: Path | None, page: Path | None, show: bool, output: str
) -> None:
    """Stream 336,776 flights through a broker and Spark, and kill some of it half way.

    Starts a broker on a new store and publishes each flight out of New York in 2013 as a message,
    every one acknowledged from disk, while a group of two members sums them up exactly once, and
    streaming queries count the delays of each carrier and day, into Parquet, and write days that
    were late into topic delays. Half way the writer, one of the two members and the queries are
    killed. Each plane's order is checked. Then Spark reads the store, and its figures, the group's
    and the stream's are compared with the CSV file. A page shows what the stream has found.
    """
    end_in_order(ctx)
    if store is not None and store.exists() and any(store.iterdir()):
        raise click.UsageError(f"{store} is not empty; name a new directory")
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as place:
        written = _run(store or Path(place) / "store", Path(place) / "pipeline", page, output)
    if show:
        click.launch(str(written))


def _run(store: Path, place: Path, page: Path | None, output: str) -> Path:
    """Run the demo and print its results. Returns where the page is."""
    from penstock.bench.loads.stack import running_stack
    from penstock.cli.demo.flights import create_topics, publish_and_consume
    from penstock.cli.demo.flights_csv import flights_archive, read_flights
    from penstock.cli.demo.pipeline import read_alerts, running_pipeline
    from penstock.cli.printing.output import progress
    from penstock.spark.flights import csv_days, csv_report
    from penstock.spark.java import find_java

    # looked for first, or a missing package would be an error only after half a minute
    flights_archive()
    find_java()
    with running_stack(store) as stack:
        create_topics(stack)
        with running_pipeline(store, place) as pipeline:
            outcome = publish_and_consume(stack, FLIGHTS, pipeline.kill_half_way)
            with progress("Spark"):
                pipeline.end()
                flights = list(read_flights())
                expected, days = csv_report(flights), csv_days(flights)  # while Spark does the same
                found = pipeline.result()
        alerts = read_alerts(stack)
    _print(found.carriers, output)
    assert pipeline.kills == 1, "half of the flights came"
    if problems := _problems(outcome, found, alerts, expected, days):
        for problem in problems:
            click.echo(f"demo failed: {problem}", err=True)
        raise click.exceptions.Exit(1)
    counted = (
        f"{outcome.published} published, {outcome.consumed} consumed, "
        f"{FLIGHTS} in Spark, {outcome.restarts} actor killed and restarted, "
        f"{outcome.members_killed} of 2 consumers killed, "
        f"{len(found.days)} windows and {len(alerts)} alerts of a stream killed once"
    )
    written = _write_page(page, found, alerts, counted)
    click.echo(f"demo ok: {counted}")
    return written


def _problems(
    outcome: Outcome,
    found: Result,
    alerts: Sequence[DayRow],
    expected: Sequence[CarrierRow],
    days: Sequence[DayRow],
) -> list[str]:
    """What differs from the CSV file, or did not go as planned."""
    from penstock.spark.flights import same_report

    problems = list(outcome.problems)
    if not same_report(found.carriers, expected):
        problems.append("the figures from Spark differ from those of the CSV file")
    if not same_report(outcome.report(), expected):
        problems.append("the figures of the group differ from those of the CSV file")
    if found.days != days:
        texts = f"{len(found.days)} windows", f"the {len(days)} of the CSV file"
        problems.append(f"what the stream has written, {texts[0]}, differs from {texts[1]}")
    late = [day for day in days if day.is_late]
    if alerts != late:
        problems.append(f"{len(late)} days were late; topic delays has {len(alerts)} of them")
    in_spark = sum(row.flights for row in found.carriers)
    if not outcome.published == outcome.consumed == in_spark == FLIGHTS:
        problems.append(
            f"{FLIGHTS} flights: {outcome.published} published, {outcome.consumed} consumed, "
            f"{in_spark} in Spark"
        )
    if outcome.restarts != 1:
        problems.append(f"1 actor killed, {outcome.restarts} restarted")
    if outcome.members_killed != 1:
        problems.append(f"{outcome.members_killed} members of the group were killed")
    return problems


def _write_page(target: Path | None, found: Result, alerts: Sequence[DayRow], counted: str) -> Path:
    from penstock.cli.demo.page import page
    from penstock.spark.java import cached_file

    facts = [*counted.split(", "), f"{found.batches} batches"]
    text = page(found.days, alerts, facts)
    if target is None:
        target = cached_file("demo.html", text)
    else:
        target.write_text(text)
    click.echo(f"what the stream has found, as a page: {target}", err=True)
    return target


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
