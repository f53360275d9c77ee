"""`penstock spark stats` and `compact`: a store's statistics, and the last message of each key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

import penstock
from penstock.cli.printing.output import (
    MOST_LISTED,
    output_option,
    print_json,
    print_table,
    printable,
    progress,
    time_left,
)
from penstock.cli.spark.session import master_option, spark_session
from penstock.cli.store.changes import directory_argument
from penstock.shared.errors import StoreLocked
from penstock.shared.names import listed

if TYPE_CHECKING:
    from penstock.spark.jobs.putting import Target

new_directory = click.Path(path_type=Path)


@click.command()
@directory_argument
@click.option("--topics", default="", help="Only these, with commas between.")
@click.option("--parquet", type=new_directory, help="Write the tables there too; a new directory.")
@click.option("--html", type=new_directory, help="Write a page with tables and plots; a new file.")
@master_option
@output_option
def stats(
    directory: Path,
    topics: str,
    parquet: Path | None,
    html: Path | None,
    master: str,
    output: str,
) -> None:
    """Count a store's messages by topic, queue, tag and hour: bytes, sizes, latencies, gaps, keys.

    A latency is the time of storing less the time of making, by two clocks. The page of --html is
    one file and loads nothing from elsewhere.

    \b
    Examples:
      penstock spark stats ./store
      penstock spark stats ./store --topics orders --html ./store.html
      penstock spark stats ./store --parquet ./figures -o json | jq .tables.keys
    """
    from penstock.shared.errors import InvalidArgument
    from penstock.spark.jobs.stats import COLUMNS, store_stats, write_parquet
    from penstock.spark.jobs.stats_page import stats_page

    for place in (parquet, html):
        if place is not None and place.exists():
            raise InvalidArgument(
                "there is something in the place of the figures", place, "name a new one"
            )
    with (
        spark_session(master, "stats") as session,
        progress("counting", text=time_left()) as moved,
    ):
        found = store_stats(session, directory, topics=listed(topics), progress=moved)
    if parquet is not None:
        write_parquet(found, parquet)
    if html is not None:
        html.write_text(stats_page(found), encoding="utf-8")
    if output == "json":
        print_json(found)
        return
    click.echo(f"{found.messages} messages, {found.bytes} bytes of bodies")
    for name, columns in COLUMNS.items():
        rows = found.tables[name]
        if rows:
            click.echo(f"\n{name}")
            cells = [[row[column] for column in columns] for row in rows[:MOST_LISTED]]
            print_table([column.replace("_", " ") for column in columns], cells)
        if len(rows) > MOST_LISTED:
            click.echo(f"and {len(rows) - MOST_LISTED} more")


@click.command()
@directory_argument
@click.option("--topic", required=True, help="The topic that is read.")
@click.option("--into", required=True, help="The topic that the last messages go into.")
@click.option("--to", "to_store", type=new_directory, help="Another store, made if it is new.")
@click.option("--endpoint", help="The broker's, as workers reach it, in place of a store.")
@click.option("--again", default="", metavar="NAME", help="Once more, under another name.")
@master_option
@output_option
def compact(
    directory: Path,
    topic: str,
    into: str,
    to_store: Path | None,
    endpoint: str | None,
    again: str,
    master: str,
    output: str,
) -> None:
    """Put the last message of each key of a topic into another topic, or into another store.

    A key is the property KEYS as a whole, and the last message is the last in the log. One with an
    empty body is a tombstone: its key is left out, and so are messages without a key. The topic
    goes to the broker that runs on the store, to that of --endpoint, or to the store --to, on which
    a broker runs meanwhile if none does.

    \b
    Examples:
      penstock spark compact ./store --topic prices --into prices-last
      penstock spark compact ./store --topic prices --into prices --to ./prices-store
    """
    from penstock.shared.errors import InvalidArgument
    from penstock.spark.jobs.compact import compact_topic

    if endpoint and to_store:
        raise InvalidArgument(
            "both an endpoint and a store are named", f"{endpoint} and {to_store}", "leave out one"
        )
    with (
        _target(into, directory, to_store, endpoint) as target,
        spark_session(master, "compact") as session,
        progress("compacting", text=time_left()) as moved,
    ):
        done = compact_topic(session, directory, topic, target, write_id=again, progress=moved)
    if output == "json":
        print_json(done)
    else:
        click.echo(
            f"{done.kept} of {done.messages} messages are in {printable(into)}: the last of "
            f"{done.keys} keys, without {done.tombstones} tombstones; {done.without_key} messages "
            "have no key"
        )


@contextmanager
def _target(
    topic: str, store: Path, to_store: Path | None, endpoint: str | None
) -> Iterator[Target]:
    """The target topic. For another store, this runs a broker on it meanwhile if none does."""
    from penstock.spark.jobs.putting import Target

    if endpoint or to_store is None:
        yield Target(topic, "" if endpoint else str(store.absolute()), endpoint or "")
        return
    target = Target(topic, str(to_store.absolute()))
    with ExitStack() as stack:
        with suppress(StoreLocked):  # a broker runs on it already
            stack.enter_context(penstock.open(to_store))
        yield target
