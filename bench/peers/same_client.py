"""The official Java client with the same load on Penstock's gateway and on RocketMQ, in turns.

    python -m penstock.bench.peers.same_client                 prints a table, and what is asked
    python -m penstock.bench.peers.same_client --to docs       puts both on the page as well

One program loads both brokers, and only the address differs. So the table compares brokers, and not
clients. `make bench-peers` measures this after everything else.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from penstock.bench.peers import both
from penstock.bench.peers.bars import bars_table
from penstock.bench.peers.brokers.gateway import Gateway, Real
from penstock.bench.peers.brokers.ours import Penstock
from penstock.bench.peers.client_bars import client_bars
from penstock.bench.peers.page import save
from penstock.bench.peers.plan import PHASES, Plan
from penstock.bench.peers.rounds import in_turns
from penstock.bench.peers.table import Comparison, SameClient
from penstock.shared.errors import MissingDependency


def measure(plan: Plan, say: Callable[[str], None]) -> SameClient:
    """All loads on both; nothing if RocketMQ or its client cannot be had."""
    peers = Gateway(), Real()
    found = SameClient()
    try:
        for peer in peers:
            say(f"RocketMQ's client on {peer.name}: {peer.version()}")
    except MissingDependency as error:
        say(str(error))
        return found
    for phase in plan.phases:
        with tempfile.TemporaryDirectory(prefix="penstock-peers-") as place:
            found.rows += in_turns(peers, phase, plan, Path(place), found.machines, say)
    sizes = ",".join(map(str, plan.sizes))
    found.command = (
        f"python -m penstock.bench.peers.same_client --runs {plan.runs} --seconds {plan.seconds:g} "
        f"--phases {','.join(plan.phases)} --sizes {sizes}  # {Penstock().version()}"
    )
    found.finished = datetime.now(UTC).isoformat(timespec="minutes")
    return found


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def body_sizes(ctx: click.Context, parameter: click.Parameter, given: str) -> list[int]:
    """The sizes in bytes that an option lists, separated by commas. Raises BadParameter."""
    found = [int(each) for each in given.split(",") if each.isdecimal() and int(each)]
    if len(found) != len(given.split(",")):
        raise click.BadParameter(f"{given!r} is no list of sizes, as 100,1024", ctx, parameter)
    return found


# shared by two commands
sizes_option = click.option(
    "--sizes",
    default="100,1024",
    show_default=True,
    callback=body_sizes,
    help="Of bodies, in bytes.",
)


@click.command()
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--seconds", type=click.FloatRange(min=0.2), default=1.5, show_default=True)
@click.option("--phases", default=",".join(PHASES), show_default=True, help="Which of these.")
@sizes_option
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    help="Where performance.md and performance.json are, which are to have it.",
)
def main(runs: int, seconds: float, phases: str, sizes: list[int], to: Path | None) -> None:
    """Measure both brokers with RocketMQ's Java client."""
    # so that servers are stopped on the way out, also when this is terminated
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    plan = Plan(runs=runs, seconds=seconds, phases=phases.split(","), sizes=sizes)
    compared = Comparison([], [], {}, runs, seconds, plan.in_flight, plan.queues)
    if to is not None:
        compared = msgspec.json.decode((to / "performance.json").read_bytes(), type=Comparison)
    compared.same_client = measure(plan, say)
    if to is not None:
        save(compared, to)
    loads = [machine.load_average for machine in compared.same_client.machines]
    print(f"{runs} rounds of {seconds:g} s, load average {min(loads):.1f} to {max(loads):.1f}\n")
    print(both.table(compared.same_client.rows))
    print(f"\n{bars_table(compared, client_bars())}")


if __name__ == "__main__":
    main()
