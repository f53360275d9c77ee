"""Redis Streams with an append-only file: Debian's server, with Jedis and pipelines."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.bench.peers.brokers.java import Java
from penstock.bench.peers.brokers.peer import DURABLE, WRITTEN, Load, Read, Server, Way
from penstock.bench.peers.brokers.process import HOST, free_ports, serving
from penstock.shared.errors import MissingDependency

SYNC = {DURABLE: "always", WRITTEN: "everysec"}


class Redis:
    name = "Redis Streams"
    client = "Jedis, Java, 2 connections with pipelines; XREAD COUNT 1000"
    warm_s = 2.5
    ways: tuple[Way, ...] = (Way("Redis Streams"),)
    settings = {ack: f"appendonly yes, appendfsync {sync}" for ack, sync in SYNC.items()}

    def __init__(self) -> None:
        self._java = Java("redis", "Redis")

    def server(self) -> str:
        """The server's program. Raises MissingDependency."""
        found = shutil.which("redis-server")
        if found is None:
            raise MissingDependency(
                "redis-server is not installed", None, "apt-get install redis-server"
            )
        return found

    def version(self) -> str:
        said = subprocess.run([self.server(), "--version"], capture_output=True, text=True).stdout
        self._java.build()
        return str(re.findall(r"v=(\S+)", said)[0])

    @contextmanager
    def serve(self, place: Path, ack: str) -> Iterator[Server]:
        (port,) = free_ports(1)
        flags = {
            "bind": HOST,
            "port": str(port),
            "dir": str(place),
            "appendonly": "yes",
            "appendfsync": SYNC[ack],
            "save": "",
        }
        words = [word for key, value in flags.items() for word in (f"--{key}", value)]
        with serving([self.server(), *words], place, port) as pid:
            yield Server({"broker": pid}, {"endpoint": f"{HOST}:{port}"})

    def command(self, server: Server, load: Load | Read) -> list[str]:
        return self._java.command(load, server.told)
