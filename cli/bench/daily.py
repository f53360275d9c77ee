"""`penstock bench waits|page|export`: what a person waits for every day."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.options.option_types import COUNT, Finite
from penstock.cli.printing.output import output_option, print_json, print_table, progress


@click.command(
    "waits",
    epilog="""\b
Examples:
  penstock bench waits
  penstock bench waits --runs 51 -o json
""",
)
@click.option("--runs", type=COUNT, default=11, show_default=True, help="How often each.")
@output_option
def waits(runs: int, output: str) -> None:
    """How long commands, imports and a test's broker take.

    Each in a process of its own, on this machine; beside it what it is to stay below. The ways take
    turns. A test's broker is what the fixtures of pytest need: a broker, a topic, both clients.
    """
    from penstock.bench.seen.waits import bench_waits

    with progress("waiting") as moved:
        found = bench_waits(runs, moved)
    if output == "json":
        for each in found:
            print_json(each)
        return
    rows = [(each.what, each.p50_ms, each.max_ms, each.asked_ms or "") for each in found]
    print_table(("what", "p50 ms", "most", "asked"), rows)


@click.command(
    "page",
    epilog="""\b
Examples:
  penstock bench page
  penstock bench page --topics 200 --runs 5 --seconds 2 -o json
""",
)
@click.option(
    "--topics",
    type=click.IntRange(1, 20_000),
    default=2000,
    show_default=True,
    help="Of four queues; each has a group.",
)
@click.option("--runs", type=COUNT, default=11, show_default=True, help="How often each page.")
@click.option(
    "--seconds",
    type=Finite(1, 3600),
    default=20.0,
    show_default=True,
    help="How long the monitor's share of a core is counted.",
)
@output_option
def page(topics: int, runs: int, seconds: float, output: str) -> None:
    """How long the monitor's page takes, and what it costs, with many topics and groups.

    Its requests are timed; and where Chromium is installed, what the browser says of its first
    paint, and what the monitor takes of a core while the page is open. Beside each is what it is to
    stay below.
    """
    from penstock.bench.seen.page import bench_page

    with progress("looking") as moved:
        found = bench_page(topics, runs, seconds, moved)
    if output == "json":
        for each in found:
            print_json(each)
        return
    rows = [(each.what, each.p50, each.max, f"{each.asked:g} {each.unit}") for each in found]
    print_table(("what", "p50", "most", "asked"), rows)


@click.command(
    "export",
    epilog="""\b
Examples:
  penstock bench export --gib 1
  penstock bench export --store ./large --gib 10 --import -o json     make ./large, and keep it
""",
)
@click.option("--store", type=click.Path(path_type=Path), help="Made if it is not there.")
@click.option("--gib", type=Finite(0.001, 10_000), default=1, show_default=True, help="Its log.")
@click.option("--size", type=COUNT, default=1024, show_default=True, help="Bytes of a body.")
@click.option("--runs", type=COUNT, default=3, show_default=True, help="How often.")
@click.option("--import", "sends", is_flag=True, help="Send it to another broker, and compare.")
@output_option
def export(store: Path | None, gib: float, size: int, runs: int, sends: bool, output: str) -> None:
    """How fast a store is exported to Parquet, beside Arrow writing such rows from memory.

    Both take turns, write the same kind of file, and sync it.
    """
    from penstock.bench.stores.export import bench_export

    with progress("exporting") as moved:
        found = bench_export(store, gib, size, runs, sends, moved)
    if output == "json":
        print_json(found)
        return
    print_table(
        ("messages", "bytes", "seconds", "MB/s", "from memory", "ratio", "import s"),
        [
            (found.messages, found.body_bytes, found.seconds, found.mb_per_s)
            + (found.memory_mb_per_s, found.to_memory, found.import_s or "")
        ],
    )
