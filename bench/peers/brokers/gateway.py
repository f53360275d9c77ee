"""Penstock as RocketMQ's clients see it: its gateway, under the same Java program as RocketMQ."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.bench.loads.stack import running_stack
from penstock.bench.peers.brokers.ours import KIND
from penstock.bench.peers.brokers.peer import (
    CONSUME,
    DURABLE,
    PACED,
    SINGLE,
    WRITTEN,
    Load,
    Read,
    Server,
    Way,
)
from penstock.bench.peers.brokers.rocketmq import RocketMQ

RATE_PER_S = 1000
PACE = f"{RATE_PER_S:,} a second, end to end"


def ways(broker: str) -> tuple[Way, ...]:
    """What an official client does, the same with both brokers."""
    return (
        Way(f"{broker}, 64 in flight", in_flight=64, acks=(WRITTEN,)),
        Way(f"{broker}, 512 in flight", in_flight=512, acks=(WRITTEN,)),
        Way(f"{broker}, batches of 64", batch=64, acks=(WRITTEN,)),
        Way(f"{broker}, 1 thread that waits", SINGLE, in_flight=1, threads=1, acks=(WRITTEN,)),
        Way(f"{broker}, 64 threads that wait", SINGLE, in_flight=64, threads=64),
        Way(
            f"{broker}, 512 threads that wait", SINGLE, in_flight=512, threads=512, acks=(DURABLE,)
        ),
        Way(f"{broker}, {PACE}", PACED, rate_per_s=RATE_PER_S),
        Way(f"{broker}, pull of a backlog", CONSUME),
    )


class Real(RocketMQ):
    """RocketMQ's broker."""

    ways = ways("RocketMQ")


class Gateway(RocketMQ):
    """Penstock's broker, by its gateway."""

    name = "Penstock"
    ways = ways("Penstock")
    settings = {ack: f"flush_disk_type={kind}" for ack, kind in KIND.items()}

    @contextmanager
    def serve(self, place: Path, ack: str) -> Iterator[Server]:
        place.mkdir()
        flags = {"flush_disk_type": KIND[ack], "gateway_enable": "true"}
        flags |= {"gateway_port": "0", "gateway_name_server_port": "0"}
        with running_stack(place / "store", flags=flags) as stack:
            host = {name: at.removeprefix("tcp://") for name, at in stack.endpoints.items()}
            told = {"endpoint": host["name_server"], "broker": host["remoting"]}
            yield Server({"broker": stack.process.pid}, told)

    def command(self, server: Server, load: Load | Read) -> list[str]:
        return self._java.command(load, server.told)
