"""`penstock bench idle`: what an unused broker costs."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.options.option_types import Finite
from penstock.cli.options.settings import set_option
from penstock.cli.printing.output import output_option, print_json, print_table, progress


@click.command(
    "idle",
    epilog="""\b
Examples:
  penstock bench idle
  penstock bench idle --consumers 100 --seconds 60 -o json
""",
)
@click.option(
    "--consumers",
    type=click.IntRange(0, 10_000),
    default=1,
    show_default=True,
    help="That wait for a message.",
)
@click.option(
    "--seconds",
    type=Finite(1, 86_400),
    default=20.0,
    show_default=True,
    help="How long nothing happens.",
)
@click.option(
    "--store",
    type=click.Path(path_type=Path),
    help="The broker that runs on this store; else one is started on it, and it is kept.",
)
@set_option
@output_option
def idle(
    consumers: int,
    seconds: float,
    store: Path | None,
    settings: tuple[tuple[str, str], ...],
    output: str,
) -> None:
    """What a broker costs while consumers wait and no message comes.

    Percent of one processor, of each process, and how often it wakes up; then one message is sent,
    and every consumer must get it. All actors run that run by default.
    """
    from penstock.bench.loads.target import Where
    from penstock.bench.log.idle import bench_idle

    with progress("waiting") as moved:
        found = bench_idle(consumers, seconds, Where(store, None, settings), moved)
    if output == "json":
        print_json(found)
        return
    rows = [(row.process, row.percent, row.wakes_per_s) for row in found.processes]
    rows.append(("all", found.percent, found.wakes_per_s))
    print_table(("process", "% of a core", "wakes/s"), rows)
    click.echo(
        f"\n{found.consumers} waiting for {found.seconds:g} s; a message then took "
        f"{found.woken_ms:g} ms to the last; load average {found.load_1m:g}"
    )
