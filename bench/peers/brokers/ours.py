"""Penstock as one of the peers: its own broker, and its own client in a process of its own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from penstock.bench.loads.load import Receive, Send
from penstock.bench.loads.load_process import load_command
from penstock.bench.loads.stack import running_stack
from penstock.bench.peers.brokers.peer import (
    CONSUME,
    DURABLE,
    SINGLE,
    WRITTEN,
    Load,
    Read,
    Server,
    Way,
)
from penstock.client import Producer

KIND = {DURABLE: "sync", WRITTEN: "async"}


class Penstock:
    name = "Penstock"
    client = "its own, in Python"
    warm_s = 0.5
    ways: tuple[Way, ...] = (
        Way("Penstock"),
        Way("Penstock, batches of 64", batch=64),
        Way("Penstock", SINGLE, in_flight=64, acks=(WRITTEN,)),
        Way("Penstock", SINGLE, in_flight=512),
        Way("Penstock", CONSUME),
        Way("Penstock, bodies alone", CONSUME, bodies=True),
        Way("Penstock, by the socket", CONSUME, direct=False),
    )
    settings = {ack: f"flush_disk_type={kind}" for ack, kind in KIND.items()}

    def version(self) -> str:
        """The package's version, and the commit if there is one."""
        if (git := shutil.which("git")) is None:
            return version("penstock")
        asked = [git, "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
        return f"{version('penstock')} {commit}".strip()

    @contextmanager
    def serve(self, place: Path, ack: str) -> Iterator[Server]:
        place.mkdir()
        with running_stack(place / "store", flags={"flush_disk_type": KIND[ack]}) as stack:
            told = {"produce": stack.produce, "consume": stack.consume}
            yield Server({"broker": stack.process.pid}, told)

    def command(self, server: Server, load: Load | Read) -> list[str]:
        consume = server.told["consume"]
        if isinstance(load, Read):
            read = Receive(
                consume,
                load.topic,
                load.messages,
                load.seconds,
                body_bytes=load.size,
                direct=load.direct,
                bodies=load.bodies,
            )
            return load_command(read)
        with Producer(server.told["produce"]) as producer:
            producer.create_topic(load.topic, load.queues)
        order = Send(
            server.told["produce"],
            [load.topic],
            load.size,
            load.ack,
            load.in_flight,
            load.seconds,
            load.warm_s,
            load.messages,
            batch=load.batch,
            consume=consume,
        )
        return load_command(order)
