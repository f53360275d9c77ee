"""`penstock bench`: the product's own measurements, on this machine."""

from __future__ import annotations

import click

from penstock.cli.bench_load import COMMANDS
from penstock.cli.output import output_option, print_json, print_table, progress


@click.group()
def bench() -> None:
    """Measure this installation on this machine."""


for _command in COMMANDS:
    bench.add_command(_command)


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
    from penstock.shared.index_directory import index_geometry

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
