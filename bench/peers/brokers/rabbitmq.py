"""RabbitMQ streams: Debian's server with its stream plugin, and the stream protocol's client."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.bench.peers.brokers.java import Java
from penstock.bench.peers.brokers.peer import DURABLE, WRITTEN, Load, Read, Server, Way
from penstock.bench.peers.brokers.process import HOST, free_ports, serving
from penstock.shared.errors import MissingDependency

# the scripts that the wrappers in /usr/sbin call; these would change to another user
SCRIPTS = Path("/usr/lib/rabbitmq/bin")
LOOPBACK = "-kernel inet_dist_use_interface {127,0,0,1}"
CONFIG = """\
listeners.tcp = none
stream.listeners.tcp.1 = {host}:{port}
stream.advertised_host = {host}
stream.advertised_port = {port}
"""


class RabbitMQ:
    name = "RabbitMQ streams"
    client = "stream-client, Java; 10 chunks of credit"
    warm_s = 2.5
    ways: tuple[Way, ...] = (Way("RabbitMQ streams"),)
    settings = {WRITTEN: "one node, no replicas"}

    def __init__(self) -> None:
        self._java = Java("rabbitmq", "RabbitMQ")

    def server(self) -> str:
        """The server's program. Raises MissingDependency."""
        if not (SCRIPTS / "rabbitmq-server").exists() or shutil.which("epmd") is None:
            raise MissingDependency(
                "rabbitmq-server is not installed", None, "apt-get install rabbitmq-server"
            )
        return str(SCRIPTS / "rabbitmq-server")

    def version(self) -> str:
        self.server()
        self._java.build()
        (found,) = SCRIPTS.parent.glob("lib/rabbitmq_server-*")
        return found.name.removeprefix("rabbitmq_server-")

    @contextmanager
    def serve(self, place: Path, ack: str) -> Iterator[Server]:
        if ack == DURABLE:
            raise MissingDependency(
                "RabbitMQ confirms messages of a stream before they are synced",
                None,
                "compare it with acks that are written, not durable",
            )
        server = self.server()
        place.mkdir()
        port, names, distribution = free_ports(3)
        (place / "rabbitmq.conf").write_text(CONFIG.format(host=HOST, port=port))
        (place / "plugins").write_text("[rabbitmq_stream].\n")
        environment = {
            "HOME": str(place),  # where Erlang's cookie is kept
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": str(names),
            "RABBITMQ_NODENAME": "peer@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_CONFIG_FILE": str(place / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(place / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(place / "data"),
            "RABBITMQ_LOG_BASE": str(place / "log"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": LOOPBACK,
        }
        # started here, because the epmd that the server would start goes on as a daemon
        with (
            serving(["epmd"], place / "names", names, environment),
            serving([server], place, port, environment) as pid,
        ):
            yield Server({"broker": pid}, {"endpoint": f"{HOST}:{port}"})

    def command(self, server: Server, load: Load | Read) -> list[str]:
        return self._java.command(load, server.told)
