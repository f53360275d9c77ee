"""`penstock bench core`: what the hot loops cost, compiled and in Python."""

from __future__ import annotations

import click

from penstock.cli.options.option_types import COUNT
from penstock.cli.printing.output import output_option, print_json, print_table


@click.command(
    "core",
    epilog="""\b
Examples:
  penstock bench core
  penstock bench core --size 1024 --runs 21 -o json
""",
)
@click.option(
    "--size",
    "sizes",
    type=click.IntRange(min=0, max=1 << 22),
    multiple=True,
    help="Body bytes; may be given more than once.  [default: 100, 1024, 10240]",
)
@click.option("--runs", type=COUNT, default=9, show_default=True, help="How often it is measured.")
@output_option
def core(sizes: tuple[int, ...], runs: int, output: str) -> None:
    """What the loops that run once per message cost: compiled, and their twin in Python.

    CPU time of one thread on frames of 256 KiB, the median of the runs.
    """
    from penstock.bench.log.core import bench_core

    costs = []
    for size in sizes or (100, 1024, 10240):
        for cost in bench_core(size, runs):
            costs.append(cost)
            if output == "json":
                print_json(cost)
    if output == "table":
        print_table(
            ("loop", "body bytes", "form", "ns/message", "MB/s"),
            [
                (
                    c.loop,
                    c.body_bytes,
                    "native" if c.native else "pure",
                    c.ns_per_message,
                    c.mb_per_s,
                )
                for c in costs
            ],
        )
