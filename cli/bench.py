"""`penstock bench`: the product's own measurements, on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.output import output_option, print_json, print_table, progress


@click.group()
def bench() -> None:
    """Measure this installation on this machine."""


@bench.command(
    "produce",
    epilog="""\b
Examples:
  penstock bench produce
  penstock bench produce --messages 500000 --body-bytes 100 --runs 5
  penstock bench produce --flush async --no-pool -o json
""",
)
@click.option("--messages", type=click.IntRange(min=1), default=300_000, show_default=True)
@click.option("--body-bytes", type=click.IntRange(min=0), default=1024, show_default=True)
@click.option("--queues", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--flush", type=click.Choice(["sync", "async"]), default="sync", show_default=True)
@click.option("--pool/--no-pool", default=True, show_default=True, help="The transient store pool.")
@click.option("--store", type=click.Path(path_type=Path), help="Keep the store here.")
@output_option
def produce(
    messages: int,
    body_bytes: int,
    queues: int,
    runs: int,
    flush: str,
    pool: bool,
    store: Path | None,
    output: str,
) -> None:
    """How many messages a second one client sends; packed, each acknowledged.

    Every run starts a broker of its own. With --flush sync an acknowledgement means on disk.
    """
    from penstock.bench.produce import bench_produce

    results = []
    with progress("sending") as moved:
        for run in range(runs):
            results.append(
                bench_produce(
                    messages,
                    body_bytes,
                    queues,
                    flush=flush,
                    pool=pool,
                    store=None if store is None else store / str(run),
                    moved=moved,
                )
            )
            if output == "json":
                print_json(results[-1])
    if output == "table":
        print_table(
            ("messages", "body bytes", "flush", "pool", "seconds", "messages/s", "MB/s"),
            [
                (
                    r.messages,
                    r.body_bytes,
                    r.flush_disk_type,
                    "on" if pool else "off",
                    round(r.seconds, 2),
                    round(r.messages_per_second),
                    round(r.body_megabytes_per_second),
                )
                for r in results
            ],
        )


@bench.command(
    "index",
    epilog="""\b
Examples:
  penstock bench index
  penstock bench index --keys 20000000 --batch 3000 -o json
""",
)
@click.option("--keys", type=click.IntRange(min=1), default=2_000_000, show_default=True)
@click.option(
    "--batch", type=click.IntRange(min=1), default=3500, show_default=True, help="Keys at once."
)
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True)
@output_option
def index(keys: int, batch: int, runs: int, output: str) -> None:
    """How many keys a second go into an index file, hashing included; one process.

    The batch is what the reput walks at once of messages of 1 KiB.
    """
    from penstock.bench.index import bench_index
    from penstock.shared.config import Config
    from penstock.shared.index_files import index_geometry

    results = []
    with progress("putting") as moved:
        for _ in range(runs):
            results.append(bench_index(keys, batch, index_geometry(Config()), moved))
            if output == "json":
                print_json(results[-1])
    if output == "table":
        print_table(
            ("keys", "batch", "slots", "seconds", "keys/s"),
            [
                (r.keys, r.batch, r.slots, round(r.seconds, 2), round(r.keys_per_second))
                for r in results
            ],
        )
