"""NATS JetStream: Debian's server or a newer one on PATH or in ~/go/bin, with its Java client."""

from __future__ import annotations

import os
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

# earlier versions cannot sync before they acknowledge
SYNCS_SINCE = (2, 10)
NEWER = "go install github.com/nats-io/nats-server/v2@latest"
SYNC = {DURABLE: "always", WRITTEN: "2m"}


class Nats:
    name = "NATS JetStream"
    client = "jnats, Java, publishAsync and ordered consumer"
    warm_s = 2.5
    ways: tuple[Way, ...] = (Way("NATS JetStream"),)
    settings = {ack: f"storage in files, sync_interval: {sync}" for ack, sync in SYNC.items()}

    def __init__(self) -> None:
        self._java = Java("nats", "Nats")

    def server(self) -> str:
        """The server's program. Raises MissingDependency."""
        path = f"{Path.home() / 'go' / 'bin'}{os.pathsep}{os.environ['PATH']}{os.pathsep}/usr/sbin"
        found = shutil.which("nats-server", path=path)
        if found is None:
            raise MissingDependency(
                "nats-server is not installed", None, f"apt-get install nats-server, or {NEWER}"
            )
        return found

    def _server_version(self) -> str:
        said = subprocess.run([self.server(), "--version"], capture_output=True, text=True).stdout
        return said.split()[-1].removeprefix("v")

    def version(self) -> str:
        self.server()
        self._java.build()
        return self._server_version()

    @contextmanager
    def serve(self, place: Path, ack: str) -> Iterator[Server]:
        (port,) = free_ports(1)
        version = tuple(map(int, re.findall(r"\d+", self._server_version())[:2]))
        if ack == DURABLE and version < SYNCS_SINCE:
            raise MissingDependency(
                "this nats-server does not sync before it acknowledges",
                ".".join(map(str, version)),
                NEWER,
            )
        place.mkdir()
        sync = f"sync_interval: {SYNC[ack]}" if version >= SYNCS_SINCE else ""
        file = place / "nats.conf"
        file.write_text(
            f'listen: "{HOST}:{port}"\njetstream {{ store_dir: "{place}/data"\n{sync}\n}}\n'
        )
        with serving([self.server(), "-c", str(file)], place, port) as pid:
            yield Server({"broker": pid}, {"endpoint": f"{HOST}:{port}"})

    def command(self, server: Server, load: Load | Read) -> list[str]:
        return self._java.command(load, server.told)
