"""The limit of any broker: RocketMQ's protocol as far as a send needs it, with nothing stored.

It is one small program in C (discard.c), so that nearly all of a send is its client's work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.bench.peers.brokers.gateway import ways
from penstock.bench.peers.brokers.peer import CONSUME, PACED, Load, Read, Server
from penstock.bench.peers.brokers.process import HOST, free_ports, serving
from penstock.bench.peers.brokers.rocketmq import RocketMQ
from penstock.bench.peers.plan import Plan
from penstock.chaos.interposed.preload import compile_c

SOURCE = Path(__file__).with_name("discard.c")


class Discard(RocketMQ):
    """Answers sends, and claims that everything is stored. Nobody can read from it."""

    name = "Discard"
    ways = tuple(way for way in ways("Discard") if way.kind not in (CONSUME, PACED))
    settings: dict[str, str] = {}

    @contextmanager
    def serve(self, place: Path, ack: str) -> Iterator[Server]:
        place.mkdir()
        program = compile_c(SOURCE, place / SOURCE.stem)
        (port,) = free_ports(1)
        with serving([str(program), str(port), str(Plan().queues)], place, port) as pid:
            endpoint = f"{HOST}:{port}"
            yield Server({"broker": pid}, {"endpoint": endpoint, "broker": endpoint})

    def command(self, server: Server, load: Load | Read) -> list[str]:
        return self._java.command(load, server.told)
