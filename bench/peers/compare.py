"""Penstock and other brokers under the same load, in turns: `make bench-peers`.

All brokers of one kind of acknowledgement are up at once, and only one is under load. Each is
warmed up first; then every run measures every broker once, so that a slow minute of the machine
meets all of them. A broker that cannot be had is a row that says so, and so is a load that failed.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from penstock.bench.accounts import Accounts, cpu_s_per_million
from penstock.bench.load_process import measured, started
from penstock.bench.machine import Machine, measure_machine
from penstock.bench.peers.kafka import Kafka
from penstock.bench.peers.nats import Nats
from penstock.bench.peers.ours import Penstock
from penstock.bench.peers.page import write_page
from penstock.bench.peers.peer import DURABLE, WRITTEN, Load, Peer, Server, Variant
from penstock.bench.peers.rabbitmq import RabbitMQ
from penstock.bench.peers.redis import Redis
from penstock.bench.peers.rocketmq import RocketMQ
from penstock.bench.peers.table import Comparison, Known, Row, table
from penstock.bench.report import percentile
from penstock.bench.sweeps import sweep
from penstock.shared.errors import MissingDependency, PenstockError, StoreUnavailable

PEERS: dict[str, Callable[[], Peer]] = {
    "penstock": Penstock,
    "rocketmq": RocketMQ,
    "kafka": Kafka,
    "nats": Nats,
    "redis": Redis,
    "rabbitmq": RabbitMQ,
}
# a range has many points, and each is only one run
SWEEP_S = 2.0
DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


class Plan(msgspec.Struct, frozen=True):
    """What is to be measured."""

    acks: Sequence[str] = (WRITTEN, DURABLE)
    sizes: Sequence[int] = (100, 1024)
    runs: int = 5
    seconds: float = 3.0
    in_flight: int = 4096
    queues: int = 4


def known(peers: Sequence[Peer]) -> list[Known]:
    """What can be had of each: its version, or why not."""
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
    """Measure all that is there. Stores are in `place`, one folder a broker."""
    have = known(peers)
    rows = [Row(each.name, ack, 0, why=each.missing) for each in have for ack in plan.acks]
    rows = [row for row in rows if row.why]
    machines: list[Machine] = []
    there = [peer for peer, each in zip(peers, have, strict=True) if not each.missing]
    for ack in plan.acks:
        machines.append(measure_machine(place))
        rows += _in_turns(there, ack, plan, place, machines)
    return Comparison(have, rows, machines, plan.runs, plan.seconds, plan.in_flight, plan.queues)


def _in_turns(
    peers: Sequence[Peer], ack: str, plan: Plan, place: Path, machines: list[Machine]
) -> Iterator[Row]:
    with ExitStack() as servers:
        up: list[tuple[Peer, Server, Variant]] = []
        for peer in peers:
            try:
                serving = peer.serve(place / f"{peer.name}-{ack}".replace(" ", "-"), ack)
                server = servers.enter_context(serving)
            except PenstockError as error:
                say(f"{peer.name}, {ack}: {error}")
                yield Row(peer.name, ack, 0, why=str(error)[:300])
            else:
                up += [(peer, server, variant) for variant in peer.variants]
        for run in range(-1, plan.runs):
            for size in plan.sizes if run >= 0 else plan.sizes[-1:]:
                for peer, server, variant in up:
                    row = _measure(peer, server, variant, ack, size, run, plan)
                    if run >= 0 or row.why:
                        yield row
        machines.append(measure_machine(place))


def _measure(
    peer: Peer, server: Server, variant: Variant, ack: str, size: int, run: int, plan: Plan
) -> Row:
    """One load on one broker. Run -1 warms the broker up."""
    topic = f"t{size}x{variant.batch}r{run + 1}"
    load = Load(
        topic, size, ack, plan.in_flight, plan.queues, plan.seconds, peer.warm_s, variant.batch
    )
    accounts = Accounts(server.pids)
    try:
        with started([peer.command(server, load)]) as processes:
            before = accounts.cpu_s()
            (seen,) = measured(processes, plan.seconds, lambda done, total: None)
            after = accounts.cpu_s()
        sent = seen.messages + seen.warm_messages
        if seen.stored < sent:
            raise StoreUnavailable(f"all {sent} acknowledged messages are stored", seen.stored)
    except PenstockError as error:
        say(f"{variant.name}, {ack}, {size} bytes: {error}")
        return Row(variant.name, ack, size, run, why=str(error)[:300])
    row = Row(
        variant.name,
        ack,
        size,
        run,
        seen.messages,
        seen.stored - sent,
        round(seen.seconds, 3),
        round(seen.messages / seen.seconds, 1),
        percentile(seen.latencies_ms, 50),
        percentile(seen.latencies_ms, 99),
        cpu_s_per_million(before, after, seen.cpu_s, seen.messages),
    )
    warming = " (warming up)" if run < 0 else ""
    say(f"{variant.name}, {ack}, {size} bytes: {row.messages_per_s:.0f}/s{warming}")
    return row


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def _chosen(ctx: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    names = [name.strip() for name in value.split(",")]
    if unknown := [name for name in names if name not in PEERS]:
        raise click.BadParameter(f"{unknown[0]} is none of {', '.join(PEERS)}")
    return ["penstock", *(name for name in names if name != "penstock")]


@click.command()
@click.option("--only", callback=_chosen, default=",".join(PEERS), help="For example redis,nats.")
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--seconds", type=click.FloatRange(min=0.2), default=3.0, show_default=True)
@click.option("--in-flight", type=click.IntRange(min=64), default=4096, show_default=True)
@click.option("--sweeps/--no-sweeps", default=True, help="Penstock by itself too, for the plots.")
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    default=DOCS,
    show_default="docs",
    help="Where performance.md, performance.json and the plots go.",
)
def main(
    only: list[str], runs: int, seconds: float, in_flight: int, sweeps: bool, to: Path
) -> None:
    """Compare Penstock with the brokers that are installed, and write what was found."""
    plan = Plan(runs=runs, seconds=seconds, in_flight=in_flight)
    # servers are stopped on the way out, also when somebody ends this
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="penstock-peers-") as place:
        compared = compare([PEERS[name]() for name in only], plan, Path(place))
    compared.command = (
        f"python -m penstock.bench.peers.compare --only {','.join(only)} --runs {runs} "
        f"--seconds {seconds} --in-flight {in_flight}"
    )
    _write(compared, to)
    if sweeps:
        compared.sweeps = sweep(min(seconds, SWEEP_S), say)
        _write(compared, to)
    print(table(compared))


def _write(compared: Comparison, to: Path) -> None:
    compared.finished = datetime.now(UTC).isoformat(timespec="minutes")
    to.mkdir(parents=True, exist_ok=True)
    pretty = msgspec.json.format(msgspec.json.encode(compared), indent=1)
    (to / "performance.json").write_bytes(pretty + b"\n")
    write_page(compared, to)


if __name__ == "__main__":
    main()
