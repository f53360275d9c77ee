"""`penstock bench group`: consumer groups, how fast a member reads and how soon many rebalance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli.options.option_types import COUNT, QUEUES, Finite
from penstock.cli.options.settings import set_option
from penstock.cli.printing.output import output_option, print_json, print_table, progress

if TYPE_CHECKING:
    from penstock.bench.groups.crowd import Rebalance
    from penstock.bench.groups.group import Speed

_ANY = click.IntRange(min=0)


@click.command(
    "group",
    epilog="""\b
Examples:
  penstock bench group
  penstock bench group --messages 3000000 --groups 0 --runs 5
  penstock bench group --messages 0 --groups 200 --members 10 -o json
""",
)
@click.option(
    "--messages",
    type=_ANY,
    default=1_000_000,
    show_default=True,
    help="To be read by each way; 0: only the rebalance is measured.",
)
@click.option("--size", type=COUNT, default=100, show_default=True, help="Bytes of a body.")
@click.option("--queues", type=QUEUES, default=10, show_default=True, help="Of each topic.")
@click.option(
    "--workers", type=COUNT, default=1, show_default=True, help="Threads that run the handler."
)
@click.option("--runs", type=COUNT, default=3, show_default=True, help="How often it is read.")
@click.option(
    "--groups",
    type=click.IntRange(0, 2000),
    default=100,
    show_default=True,
    help="That rebalance, on a topic each; 0: none.",
)
@click.option(
    "--members",
    type=click.IntRange(2, 100),
    default=10,
    show_default=True,
    help="Of each group, in processes that have one of each.",
)
@click.option(
    "--seconds",
    type=Finite(1, 3600),
    default=15,
    show_default=True,
    help="How long the groups are left alone.",
)
@set_option
@output_option
def group(
    messages: int,
    size: int,
    queues: int,
    workers: int,
    runs: int,
    groups: int,
    members: int,
    seconds: float,
    settings: tuple[tuple[str, str], ...],
    output: str,
) -> None:
    """How fast a group's member reads, and how soon many groups share their queues.

    A backlog is read by a plain consumer, by handlers of batches with and without commits, and by a
    handler that does nothing. Then all members of many groups join at once, are left alone, and
    lose one of each group by a kill.
    """
    from penstock.bench.groups.crowd import bench_rebalance
    from penstock.bench.groups.group import bench_speed
    from penstock.bench.loads.target import Where

    if not messages and not groups:
        raise click.UsageError("nothing to measure: both --messages and --groups are 0")
    where = Where(settings=settings)
    speeds: list[Speed] = []
    rebalance: Rebalance | None = None
    with progress("measuring") as moved:
        if messages:
            for speed in bench_speed(messages, size, queues, workers, runs, where, moved):
                speeds.append(speed)
                _print(speed, output)
        if groups:
            rebalance = bench_rebalance(groups, members, queues, seconds, where, moved)
            _print(rebalance, output)
    if output == "table":
        _print_tables(speeds, rebalance)


def _print(result: Any, output: str) -> None:
    if output == "json":
        print_json(result)


def _print_tables(speeds: list[Speed], rebalance: Rebalance | None) -> None:
    from penstock.bench.groups.group import medians

    if speeds:
        plain, batches, handler, never, share, cost = medians(speeds)
        rates = [round(each) for each in (plain, batches, never, handler)]
        print_table(
            ("plain/s", "batches/s", "without commits", "handler/s", "of plain", "commits cost %"),
            [(*rates, round(share, 2), round(cost, 2))],
        )
    if rebalance is not None:
        r = rebalance
        cold = (r.cold_s, r.cold_coordinator_cpu_s)
        killed = (r.killed_s, r.killed_coordinator_cpu_s)
        quiet = (r.quiet_coordinator_percent, r.quiet_broker_percent)
        print_table(
            ("groups", "members", "cold s", "CPU s", "killed s", "CPU s", "quiet %", "all %"),
            [(r.groups, r.members, *cold, *killed, *quiet)],
        )
