"""How much faster than RocketMQ could any broker be with its Java client? One that discards shows.

    python -m penstock.bench.peers.ceiling

Most of a send is the client's work, and the client uses the same processors. So even a broker that
costs nothing is only some times as fast as RocketMQ, and no broker can be faster.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import click

from penstock.bench.peers.brokers.gateway import Gateway, Real
from penstock.bench.peers.brokers.peer import WRITTEN
from penstock.bench.peers.brokers.rocketmq import RocketMQ
from penstock.bench.peers.ceiling.discard import Discard
from penstock.bench.peers.ceiling.table import HEADS, rows
from penstock.bench.peers.paced import markdown
from penstock.bench.peers.plan import Plan
from penstock.bench.peers.rounds import in_turns
from penstock.bench.peers.same_client import say, sizes_option
from penstock.bench.reports.machine import Machine
from penstock.shared.errors import MissingDependency


@click.command()
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--seconds", type=click.FloatRange(min=0.2), default=3.0, show_default=True)
@click.option(
    "--warm-seconds", type=click.FloatRange(min=0), default=RocketMQ.warm_s, show_default=True
)
@sizes_option
@click.option("--only", default="", help="For example: batches. What has this in its name.")
def main(runs: int, seconds: float, warm_seconds: float, sizes: list[int], only: str) -> None:
    """Measure sends of RocketMQ's Java client to Penstock, RocketMQ and a program that discards."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    peers = Gateway(), Real(), Discard()
    sends = {way.kind for way in Discard.ways}
    for peer in peers:
        peer.ways = tuple(way for way in peer.ways if way.kind in sends and only in way.name)
        if not peer.ways:
            raise click.UsageError(f"nothing that is measured has {only!r} in its name")
        peer.warm_s = warm_seconds
        try:
            peer.version()
        except MissingDependency as error:
            raise click.ClickException(str(error)) from error
    machines: list[Machine] = []
    plan = Plan(runs=runs, seconds=seconds, sizes=sizes)
    with tempfile.TemporaryDirectory(prefix="penstock-peers-") as place:
        found = list(in_turns(peers, WRITTEN, plan, Path(place), machines, say))
    load_average = os.getloadavg()[0]
    print(f"{seconds:g} s a run after {warm_seconds:g} s, load average {load_average:.1f}\n")
    print(markdown(HEADS, list(rows(found))))


if __name__ == "__main__":
    main()
