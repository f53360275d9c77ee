"""Apache Kafka: one broker that is its own controller, from Maven, with its own client."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.bench.peers.brokers.java import Java
from penstock.bench.peers.brokers.peer import DURABLE, WRITTEN, Load, Read, Server, Way
from penstock.bench.peers.brokers.process import HOST, free_ports, serving
from penstock.shared.errors import StoreUnavailable

# 16 bytes in base 64, as Kafka requires
CLUSTER_ID = "cGVuc3RvY2stcGVlcnMtMQ"
HEAP = ("-Xms1g", "-Xmx1g")  # as Kafka's own start script has it
PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@{host}:{controller}
log.dirs={place}/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
num.partitions={partitions}
"""
# of a topic that its first message creates
PARTITIONS = 8


class Kafka:
    name = "Kafka"
    client = "kafka-clients, Java"
    warm_s = 2.5
    ways: tuple[Way, ...] = (Way("Kafka"),)
    settings = {
        DURABLE: "flush.messages=1, acks=all, batch.size=256 KiB",
        WRITTEN: "acks=all, batch.size=256 KiB",
    }

    def __init__(self) -> None:
        self._java = Java("kafka", "Kafka")

    def version(self) -> str:
        self._java.build()
        return self._java.library_version("kafka_2.13")

    @contextmanager
    def serve(self, place: Path, ack: str) -> Iterator[Server]:
        place.mkdir()
        port, controller = free_ports(2)
        file = place / "server.properties"
        ports = {"host": HOST, "port": port, "controller": controller}
        file.write_text(PROPERTIES.format(**ports, place=place, partitions=PARTITIONS))
        run = ["java", *HEAP, "-cp", self._java.class_path]
        done = subprocess.run(
            [*run, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(file)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode != 0:
            said = (done.stdout + done.stderr)[-2000:]
            raise StoreUnavailable(
                "Kafka did not format its storage", f"exit code {done.returncode}", said
            )
        with serving([*run, "kafka.Kafka", str(file)], place, port) as pid:
            yield Server({"broker": pid}, {"endpoint": f"{HOST}:{port}"})

    def command(self, server: Server, load: Load | Read) -> list[str]:
        return self._java.command(load, server.told)
