"""Penstock and other brokers under the same load, in turns: `make bench-peers`.

It finds out which brokers are there, has them measured phase by phase (rounds.py), and writes the
results (page.py). A broker that cannot be had gets a row that says so.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from penstock.bench.log.sweeps import sweep
from penstock.bench.peers import same_client
from penstock.bench.peers.bars import bars_table
from penstock.bench.peers.brokers.kafka import Kafka
from penstock.bench.peers.brokers.nats import Nats
from penstock.bench.peers.brokers.ours import Penstock
from penstock.bench.peers.brokers.peer import CONSUME, PACKED, SINGLE, Peer
from penstock.bench.peers.brokers.rabbitmq import RabbitMQ
from penstock.bench.peers.brokers.redis import Redis
from penstock.bench.peers.brokers.rocketmq import RocketMQ
from penstock.bench.peers.page import save
from penstock.bench.peers.plan import Plan
from penstock.bench.peers.rounds import in_turns, not_measured
from penstock.bench.peers.table import Comparison, Known, table
from penstock.shared.errors import MissingDependency

PEERS: dict[str, Callable[[], Peer]] = {
    "penstock": Penstock,
    "rocketmq": RocketMQ,
    "kafka": Kafka,
    "nats": Nats,
    "redis": Redis,
    "rabbitmq": RabbitMQ,
}
# a range has many points, and each is a single run
SWEEP_S = 1.5
DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


def known(peers: Sequence[Peer]) -> list[Known]:
    """What can be had of each: its version, or why it is missing."""
    found = []
    for peer in peers:
        try:
            version, missing = peer.version(), ""
        except MissingDependency as error:
            version, missing = "", str(error)
        say(f"{peer.name}: {version or missing}")
        found.append(Known(peer.name, version, missing, peer.client, dict(peer.settings)))
    return found


def compare(peers: Sequence[Peer], plan: Plan, place: Path) -> Comparison:
    """Measure every broker that is there. Stores in `place` are removed with their phase."""
    have = known(peers)
    found = Comparison(have, [], {}, plan.runs, plan.seconds, plan.in_flight, plan.queues)
    found.backlog = {str(size): plan.backlog(size) for size in plan.sizes}
    pairs = list(zip(peers, have, strict=True))
    for phase in plan.phases:
        for peer, each in pairs:
            if each.missing:
                found.rows += not_measured(peer, phase, each.missing)
        there = [peer for peer, each in pairs if not each.missing]
        machines = found.machines[phase] = []
        with tempfile.TemporaryDirectory(dir=place) as stores:
            found.rows += in_turns(there, phase, plan, Path(stores), machines, say)
    return found


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def _chosen(ctx: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    names = [name.strip() for name in value.split(",")]
    if unknown := [name for name in names if name not in PEERS]:
        raise click.BadParameter(f"there is no {unknown[0]}; choose of {', '.join(PEERS)}")
    return ["penstock", *(name for name in names if name != "penstock")]


@click.command()
@click.option("--only", callback=_chosen, default=",".join(PEERS), help="For example redis,nats.")
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--seconds", type=click.FloatRange(min=0.2), default=1.5, show_default=True)
@click.option("--in-flight", type=click.IntRange(min=64), default=4096, show_default=True)
@click.option("--sweeps/--no-sweeps", default=True, help="Penstock by itself too, for the plots.")
@click.option(
    "--long-seconds",
    type=click.FloatRange(min=0),
    default=600,
    show_default=True,
    help="Of a run at full rate that shows whether memory grows; takes tens of GB. 0: none.",
)
@click.option(
    "--keep-peers",
    is_flag=True,
    help="Measure Penstock by itself again; the rows of a comparison stay as they are there.",
)
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    default=DOCS,
    show_default="docs",
    help="Where performance.md, performance.json and the plots go.",
)
def main(
    only: list[str],
    runs: int,
    seconds: float,
    in_flight: int,
    sweeps: bool,
    long_seconds: float,
    keep_peers: bool,
    to: Path,
) -> None:
    """Compare Penstock with the brokers that are installed, and write what was found."""
    plan = Plan(runs=runs, seconds=seconds, in_flight=in_flight)
    # so that servers are stopped on the way out, also when this is terminated
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    command = f"python -m penstock.bench.peers.compare --long-seconds {long_seconds:g}"
    if keep_peers:
        compared = msgspec.json.decode((to / "performance.json").read_bytes(), type=Comparison)
        before = compared.command.partition("\n")[0]
        compared.command = f"{before}\n{command} --keep-peers  # {Penstock().version()}"
    else:
        with tempfile.TemporaryDirectory(prefix="penstock-peers-") as place:
            compared = compare([PEERS[name]() for name in only], plan, Path(place))
        compared.command = (
            f"{command} --only {','.join(only)} --runs {runs} --seconds {seconds} "
            f"--in-flight {in_flight}"
        )
        _write(compared, to)
        if "rocketmq" in only:
            compared.same_client = same_client.measure(plan, say)
            _write(compared, to)
    if sweeps:
        compared.sweeps = sweep(min(seconds, SWEEP_S), long_seconds, say)
        _write(compared, to)
    print("\n\n".join(table(compared, kind) for kind in (PACKED, SINGLE, CONSUME)))
    print(f"\n{bars_table(compared)}")


def _write(compared: Comparison, to: Path) -> None:
    compared.finished = datetime.now(UTC).isoformat(timespec="minutes")
    save(compared, to)


if __name__ == "__main__":
    main()
