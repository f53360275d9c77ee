"""`penstock bench`: the product's own measurements, on this machine."""

from __future__ import annotations

import click

from penstock.cli.bench.bytes import bytes_
from penstock.cli.bench.core import core
from penstock.cli.bench.daily import export, page, waits
from penstock.cli.bench.group import group
from penstock.cli.bench.idle import idle
from penstock.cli.bench.load import COMMANDS
from penstock.cli.bench.spark import rebuild, spark
from penstock.cli.options.option_types import COUNT, QUEUES, Finite
from penstock.cli.options.settings import set_option
from penstock.cli.printing.output import output_option, print_json, print_table, progress
from penstock.cli.printing.suggestions import Group
from penstock.cli.signals import end_in_order
from penstock.cli.streams import stop_when_unread


@click.group(cls=Group)
@click.pass_context
def bench(ctx: click.Context) -> None:
    """Measure this installation on this machine."""
    stop_when_unread()
    end_in_order(ctx)


for _command in (bytes_, core, export, group, idle, page, rebuild, spark, waits, *COMMANDS):
    bench.add_command(_command)


@bench.command(
    "index",
    epilog="""\b
Examples:
  penstock bench index
  penstock bench index --keys 20000000 --batch 3000 -o json
""",
)
@click.option(
    "--keys", type=COUNT, default=2_000_000, show_default=True, help="How many keys in all."
)
@click.option("--batch", type=COUNT, default=3500, show_default=True, help="Keys at once.")
@click.option("--runs", type=COUNT, default=3, show_default=True, help="How often it is measured.")
@output_option
def index(keys: int, batch: int, runs: int, output: str) -> None:
    """How many keys a second go into an index file, hashing included; one process.

    The batch is what the reput walks at once of messages of 1 KiB.
    """
    from penstock.bench.log.index import bench_index
    from penstock.shared.config import Config
    from penstock.shared.index.directory import index_geometry

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


def _sizes(ctx: click.Context, parameter: click.Parameter, text: str) -> list[float]:
    kind = Finite(0.001, 100_000)
    return [kind.convert(each, parameter, ctx) for each in text.split(",")]


@bench.command(
    "restart",
    epilog="""\b
Examples:
  penstock bench restart
  penstock bench restart --gib 1,100 --queues 1000 --runs 10 -o json
  penstock bench restart --power --set max_index_num=20
""",
)
@click.option(
    "--gib",
    default="1,100",
    show_default=True,
    callback=_sizes,
    help="Sizes of stores in GiB, with commas.",
)
@click.option("--queues", type=QUEUES, default=8, show_default=True, help="Queues of each store.")
@click.option(
    "--messages",
    type=COUNT,
    default=20_000,
    show_default=True,
    help="Sent right before each kill, of 1000 bytes.",
)
@click.option("--runs", type=COUNT, default=5, show_default=True, help="How often it is measured.")
@click.option("--power", is_flag=True, help="Shared memory is lost, as with a power failure.")
@set_option
@output_option
def restart(
    gib: list[float],
    queues: int,
    messages: int,
    runs: int,
    power: bool,
    settings: tuple[tuple[str, str], ...],
    output: str,
) -> None:
    """From the start of a killed broker to its first acknowledgement, by size of its store; then to
    a query by key, and its memory.

    The stores are sparse: each takes some GiB of disk. The sizes take turns.
    """
    from penstock.bench.stores.restart import bench_restart, medians

    results = []
    with progress("killing") as moved:
        for result in bench_restart(
            gib, queues, messages, runs, dict(settings), memory=not power, moved=moved
        ):
            results.append(result)
            if output == "json":
                print_json(result)
    if output == "table":
        columns = ("GiB", "of", "acknowledged s", "most", "ready s", "CPU s", "recovery s", "read")
        print_table((*columns, "key query ms", "memory MiB"), medians(results))


@bench.command(
    "delay",
    epilog="""\b
Examples:
  penstock bench delay
  penstock bench delay --messages 100000 --seconds 10 -o json
  penstock bench delay --pending 10000000
  penstock bench delay --kills 50
""",
)
@click.option(
    "--messages", type=COUNT, default=1_000_000, show_default=True, help="To be delivered."
)
@click.option(
    "--seconds", type=Finite(0.1, 3600), default=60, show_default=True, help="Within this time."
)
@click.option(
    "--pending",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Others that wait meanwhile, for an hour to 39 days.",
)
@click.option(
    "--kills",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How many kills of actors or the broker while messages come due.",
)
@click.option("--size", type=COUNT, default=100, show_default=True, help="Bytes of a body.")
@output_option
def delay(messages: int, seconds: float, pending: int, kills: int, size: int, output: str) -> None:
    """How late messages come that are delayed to random times, and what waiting ones cost.

    None may come early, none may be missing, none may come twice. With --pending the broker is
    killed once they wait, and its start is measured too, against one without them.
    """
    from penstock.bench.groups.delay import bench_delay

    with progress("delaying") as moved:
        result = bench_delay(messages, seconds, pending, kills, size, moved)
    if output == "json":
        print_json(result)
        return
    columns = ("messages", "p50 ms", "p99 ms", "most", "early", "lost", "twice", "MB", "start s")
    row = (result.messages, result.p50_ms, result.p99_ms, result.max_ms, result.early)
    print_table(columns, [(*row, result.lost, result.twice, result.memory_mb, result.start_s)])
    if result.sent_late:
        click.echo(
            f"{result.sent_late} messages were due when the producer had sent them: "
            "they count as late from when they were stored"
        )


@bench.command(
    "exactly",
    epilog="""\b
Examples:
  penstock bench exactly
  penstock bench exactly --batch 1000 --runs 5 -o json
""",
)
@click.option(
    "--messages", type=COUNT, default=100_000, show_default=True, help="Inputs of each way."
)
@click.option("--batch", type=COUNT, default=500, show_default=True, help="Inputs of a block.")
@click.option("--size", type=COUNT, default=100, show_default=True, help="Bytes of a body.")
@click.option("--runs", type=COUNT, default=3, show_default=True, help="How often it is measured.")
@output_option
def exactly(messages: int, batch: int, size: int, runs: int, output: str) -> None:
    """How fast a program copies exactly once, and how fast one that may store outputs twice.

    Both wait for each batch, and then both have some batches on their way; the four take turns. In
    the end each way must have made as many outputs as there are inputs.
    """
    from penstock.bench.groups.exactly import bench_exactly

    with progress("copying") as moved:
        results = bench_exactly(messages, batch, size, runs, moved)
    if output == "json":
        for result in results:
            print_json(result)
        return
    columns = ("exactly/s", "without/s", "ratio", "ahead/s", "without/s", "ratio")
    rows = [
        (each.exactly_per_s, each.least_per_s, each.ratio)
        + (each.exactly_ahead_per_s, each.least_ahead_per_s, each.ratio_ahead)
        for each in results
    ]
    print_table(columns, rows)
