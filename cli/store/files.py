"""`penstock store export` and `import`: messages as files that other programs read."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import click

from penstock.cli.options.completing import topic_names
from penstock.cli.options.endpoints import broker_of, broker_options, wait_option
from penstock.cli.printing.output import output_option, print_json, progress

FORMS = ("parquet", "arrow", "jsonl", "csv")
_to = click.option(
    "--to", "form", type=click.Choice(FORMS), help="The file's form; else its name tells it."
)


@click.command()
@click.argument("source")
@click.argument("topics", nargs=-1, shell_complete=topic_names)
@_to
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="File.")
@click.option("--columns", help="Their names between commas; all without.")
@click.option(
    "--start", default="earliest", show_default=True, help="earliest, latest, group:NAME, JSON by "
    "topic and queue, or a time of storing: ms since 1970, ISO text, -15m."
)  # fmt: skip
@click.option("--end", default="latest", show_default=True, help="The same, for the end.")
@click.option("--tags", default="", help="TagA || TagB.")
@click.option("--sql", default="", help="An SQL92 condition on the properties.")
@output_option
def export(
    source: str,
    topics: tuple[str, ...],
    form: str | None,
    out: Path,
    columns: str | None,
    start: str,
    end: str,
    tags: str,
    sql: str,
    output: str,
) -> None:
    """Write messages of TOPICS (all without) to one Parquet, Arrow, JSON lines or CSV file.

    SOURCE is a store directory, Penstock's or RocketMQ's, running or not, or the endpoint of a
    broker. The file appears when it is whole. Of CSV bodies are base64; JSON lines are those of
    `penstock consume -o json` as far as the columns go. Needs the extra [arrow].

    \b
    Examples:
      penstock store export ./store orders --out orders.parquet
      penstock store export ./store orders --out last-hour.jsonl --start -1h
      penstock store export tcp://127.0.0.1:20912 --columns topic,body --out all.arrow -o json
    """
    from penstock.dataframes import Store
    from penstock.dataframes.export import write_file
    from penstock.dataframes.store import in_log_order

    form = _form(form, out)
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    began = time.monotonic()
    selection = Store(source).select(
        *topics, columns=names, start=start, end=end, tags=tags, sql=sql
    )
    with progress("exporting", text=_rows(began)) as bar:
        written = write_file(
            out, form, selection.schema, in_log_order(selection), lambda n: bar(n, selection.rows)
        )
    row = {"file": str(out), "form": form, **written._asdict()}
    _told(row | {"seconds": round(time.monotonic() - began, 3)}, output)


@click.command(name="import")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@_to
@click.option("--topic", default="", help="Send all to this one, instead of each row's own.")
@broker_options
@wait_option
@output_option
def import_(
    file: Path,
    form: str | None,
    topic: str,
    store: Path | None,
    endpoint: str | None,
    wait: float,
    output: str,
) -> None:
    """Send the rows of a file, such as `export` writes, to a running broker.

    Each message goes to its topic and queue, or where its sharding key leads, in the file's order;
    topics and queues that are missing are made first. Offsets, store times and unique keys are new.
    Other files will do that have a column `body`. Nothing is sent of a file with a row that cannot
    be read; what was sent before a crash stays, and a second import sends all of it again. The
    checksum is that of the export.

    \b
    Examples:
      penstock store import orders.parquet --store ./other
      penstock store import orders.jsonl --topic copies --endpoint tcp://127.0.0.1:20911
    """
    from penstock.client import Producer
    from penstock.dataframes.importing import import_file

    form = _form(form, file)
    began = time.monotonic()
    where = broker_of(store, endpoint, "producers", wait)
    with (
        Producer(**where, wait_for_broker_ms=int(wait * 1000)) as producer,
        progress("importing", text=_rows(began)) as bar,
    ):
        sent = import_file(file, form, producer, topic, bar)
    row = {"file": str(file), "form": form, **sent._asdict()}
    _told(row | {"seconds": round(time.monotonic() - began, 3)}, output)


def _form(form: str | None, file: Path) -> str:
    """The given form, or that of the file's name. Raises InvalidArgument."""
    from penstock.shared.errors import InvalidArgument

    found = form or file.suffix.removeprefix(".").lower()
    if found not in FORMS:
        raise InvalidArgument(
            "the file's name does not tell its form", file, f"say it: --to {', '.join(FORMS)}"
        )
    return found


def _rows(began: float) -> Callable[[int, int], str]:
    """The text of a bar: rows, of how many, how fast, and the time left."""

    def text(done: int, total: int) -> str:
        rate = done / max(time.monotonic() - began, 1e-3)
        if total <= 0 or not done:
            return f"{done:,} rows, {rate:,.0f}/s"
        return f"{done:,} of {total:,} rows, {rate:,.0f}/s, {(total - done) / rate:.0f} s left"

    return text


def _told(row: dict[str, object], output: str) -> None:
    if output == "json":
        print_json(row)
    else:
        click.echo(", ".join(f"{name} {value}" for name, value in row.items() if value != ""))
