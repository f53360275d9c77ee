"""From a producer to a consumer at a pace, on Penstock and other brokers; Python on both sides.

    python -m penstock.bench.peers.paced
    python -m penstock.bench.peers.paced --rates 10,1000,10000 --beside-busy 0,1,2

A latency is the time from when a message was due at the producer until its consumer had it. The CPU
time is a message's share of that of all processes of the broker. Brokers take turns, so a slow
minute of the machine meets all of them, and the ratios are of medians.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click
import msgspec
import psutil

from penstock.bench.loads.accounts import ran
from penstock.bench.loads.busy import busy
from penstock.bench.loads.load import Receive, Seen, Send
from penstock.bench.loads.load_process import load_command, measured, started
from penstock.bench.loads.percentile import percentile
from penstock.bench.peers.brokers.peer import DURABLE, WRITTEN, Server
from penstock.bench.peers.python.python_load import Order
from penstock.bench.peers.python.python_peers import BROKERS, OURS, named, say, served
from penstock.shared.errors import PenstockError

BESIDE = "redis"
WARM_S = 0.5


class Pace(NamedTuple):
    """One load."""

    ack: str
    size: int
    rate_per_s: int
    busy: int
    seconds: float


class Paced(NamedTuple):
    """The figures of one run."""

    p50_ms: float
    p99_ms: float
    broker_us: float  # CPU time for a message


def commands(name: str, server: Server, topic: str, pace: Pace) -> list[list[str]]:
    """The commands of the processes that send and that read."""
    BROKERS[name].make_topic(server, topic)
    if name == OURS:
        send = Send(
            server.told["produce"], [topic], pace.size, pace.ack, 4096, pace.seconds, WARM_S,
            rate_per_s=pace.rate_per_s,
        )  # fmt: skip
        warm, count = (round(each * pace.rate_per_s) for each in (WARM_S, pace.seconds))
        receive = Receive(
            server.told["consume"], topic, count, pace.seconds, stamped=True, warm=warm
        )
        return [load_command(send), load_command(receive)]
    order = Order(
        server.told["endpoint"], topic, pace.size, pace.seconds, rate_per_s=pace.rate_per_s,
        in_flight=1, warm_s=WARM_S,
    )  # fmt: skip
    orders = order, msgspec.structs.replace(order, reads=True)
    load = [sys.executable, "-m", "penstock.bench.peers.python.python_load", BROKERS[name].client]
    return [[*load, msgspec.json.encode(each).decode()] for each in orders]


def _ran_ns(pid: int) -> int:
    """How long a process and its descendants have run."""
    found = 0
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        with suppress(FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
            found += ran(process.pid).ns
    return found


def measure(name: str, server: Server, topic: str, pace: Pace) -> Paced:
    (pid,) = server.pids.values()
    seen: list[Seen]
    with busy(pace.busy), started(commands(name, server, topic, pace)) as processes:
        before = _ran_ns(pid)
        seen = measured(processes, pace.seconds, lambda done, total: None)
        broker_ns = _ran_ns(pid) - before
    latencies = seen[1].latencies_ms
    p50_ms, p99_ms = (percentile(latencies, part) or 0.0 for part in (50, 99))
    return Paced(p50_ms, p99_ms, broker_ns / 1000 / seen[1].messages)


def rows(found: dict[tuple[str, Pace], list[Paced]]) -> list[list[object]]:
    """A row for each load on each broker; ratios are to Redis under the same load."""
    table: list[list[object]] = []
    for name, pace in sorted(found, key=lambda each: (each[1], each[0])):
        runs = found[name, pace]
        p50_ms, p99_ms, broker_us = (median(each) for each in zip(*runs, strict=True))
        other = found.get((BESIDE, pace))
        ratios: list[object] = ["–", "–"]
        if other and name != BESIDE:
            beside = [median(each) for each in zip(*other, strict=True)]
            ratios = [round(p50_ms / beside[0], 2), round(broker_us / beside[2], 2)]
        load = pace.ack, pace.rate_per_s, pace.busy, name, len(runs)
        figures = round(p50_ms, 2), round(p99_ms, 2), round(broker_us)
        table.append([*load, *figures, *ratios])
    return table


HEADS = (
    *("acknowledged", "messages/s", "busy", "broker", "runs", "p50 ms", "p99 ms"),
    *("broker CPU us", "p50 to Redis", "CPU to Redis"),
)


def markdown(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [heads, ["--:" for _ in heads], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _numbers(ctx: click.Context, parameter: click.Parameter, value: str) -> list[int]:
    try:
        return [int(each) for each in value.split(",")]
    except ValueError as error:
        raise click.BadParameter("numbers with commas between them are wanted") from error


def _turns(peers: Sequence[str], paces: Sequence[Pace], runs: int, place: Path, ack: str,
           found: dict[tuple[str, Pace], list[Paced]]) -> None:  # fmt: skip
    """All rounds of one kind of acknowledgement."""
    with served(peers, BROKERS, place, ack) as servers:
        for run in range(runs):
            for pace in paces:
                for name, server in servers.items():
                    topic = f"paced-{run}-{pace.rate_per_s}-{pace.busy}"
                    try:
                        one = measure(name, server, topic, pace)
                    except PenstockError as error:
                        say(f"{name}, {pace}: {error}")
                        continue
                    found.setdefault((name, pace), []).append(one)
                    say(f"{name}, {pace.ack}, {pace.rate_per_s}/s beside {pace.busy} busy: "
                        f"p50 {one.p50_ms:.2f} ms, {one.broker_us:.0f} us")  # fmt: skip


@click.command()
@click.option("--peers", default=f"{OURS},{BESIDE}", callback=named(BROKERS), show_default=True,
              help=", ".join(BROKERS))  # fmt: skip
@click.option("--acks", default=f"{WRITTEN},{DURABLE}", show_default=True)
@click.option("--rates", callback=_numbers, default="1000", show_default=True, help="A second.")
@click.option("--beside-busy", "busies", callback=_numbers, default="0,1", show_default=True,
              help="Processes that keep a processor busy each.")  # fmt: skip
@click.option("--size", type=click.IntRange(32), default=1024, show_default=True)
@click.option("--seconds", type=click.FloatRange(min=0.2), default=3.0, show_default=True)
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True)
def main(peers: list[str], acks: str, rates: list[int], busies: list[int], size: int,
         seconds: float, runs: int) -> None:  # fmt: skip
    """Measure how long a message takes that is sent when it is due."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    found: dict[tuple[str, Pace], list[Paced]] = {}
    for ack in acks.split(","):
        paces = [Pace(ack, size, rate, many, seconds) for rate in rates for many in busies]
        with tempfile.TemporaryDirectory(prefix="penstock-peers-") as place:
            _turns(peers, paces, runs, Path(place), ack, found)
    print(f"{size} bytes, {seconds:g} s a run, load average {os.getloadavg()[0]:.1f}\n")
    print(markdown(HEADS, rows(found)))


if __name__ == "__main__":
    main()
