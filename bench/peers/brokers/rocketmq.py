"""Apache RocketMQ: name server and broker from Maven in one process, with its own client.

The two are started as in tests/interop, by a class that leaves out the replication, because that
would listen on every address of the machine.
"""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.bench.peers.brokers.java import HERE, SOURCES, Java
from penstock.bench.peers.brokers.peer import DURABLE, SINGLE, WRITTEN, Load, Read, Server, Way
from penstock.bench.peers.brokers.process import HOST, START_TIMEOUT_S, free_ports, stop
from penstock.remoting.codes import Request, Response
from penstock.remoting.command import Command, decode_command, encode_command
from penstock.shared.errors import StoreUnavailable

TESTS = HERE.parents[2] / "tests"
SERVERS = TESTS / "interop" / "rocketmq" / "java-5.3"
ENDING = TESTS / "interop" / "rocketmq" / "java"
MAKERS = (TESTS / "golden" / "maker" / "java", TESTS / "golden" / "maker" / "java-5.3")
SERVER_FLAGS = (
    *("-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=2g"),
    *("--add-opens", "java.base/java.nio=ALL-UNNAMED"),
    *("--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED"),
    *("--add-opens", "java.base/jdk.internal.ref=ALL-UNNAMED"),
)
ROUTE_TIMEOUT_S = 30
FLUSH = {DURABLE: "SYNC_FLUSH", WRITTEN: "ASYNC_FLUSH"}


class RocketMQ:
    name = "RocketMQ"
    client = "rocketmq-client, Java, asynchronous sends, pull consumer"
    warm_s = 2.5
    ways: tuple[Way, ...] = (
        Way("RocketMQ"),
        Way("RocketMQ, batches of 64", batch=64),
        Way("RocketMQ", SINGLE, in_flight=64, acks=(WRITTEN,)),
        Way("RocketMQ", SINGLE, in_flight=512, acks=(WRITTEN,)),
        Way("RocketMQ, 512 threads that wait", SINGLE, in_flight=512, threads=512, acks=(DURABLE,)),
    )
    settings = {ack: f"flushDiskType={kind}, pulls of up to 1 MiB" for ack, kind in FLUSH.items()}

    def __init__(self) -> None:
        servers = SERVERS / "penstock" / "interop" / "Servers.java"
        also = [servers, SOURCES / "RocketMQPacer.java"]
        self._java = Java("rocketmq", "RocketMQ", also, [SERVERS, ENDING, *MAKERS])

    def version(self) -> str:
        self._java.build()
        return self._java.library_version("rocketmq-broker")

    @contextmanager
    def serve(self, place: Path, ack: str) -> Iterator[Server]:
        place.mkdir()
        names, port = free_ports(2)
        common: dict[str, object] = {"bindAddress": HOST}
        name_server = _properties(place / "names.properties", common | {"listenPort": names})
        broker: dict[str, object] = {
            "brokerName": "peer",
            "brokerIP1": HOST,
            "listenPort": port,
            "namesrvAddr": f"{HOST}:{names}",
            "storePathRootDir": place / "store",
            "storePathCommitLog": place / "store" / "commitlog",
            "flushDiskType": FLUSH[ack],
            # it must not refuse messages because the machine is busy
            "waitTimeMillsInSendQueue": 20_000,
            "osPageCacheBusyTimeOutMills": 20_000,
            # so that one answer to a pull has many messages
            "maxTransferCountOnMessageInMemory": 1024,
            "maxTransferBytesOnMessageInMemory": 1 << 20,
        }
        flags = (*SERVER_FLAGS, f"-Duser.home={place}", f"-Drocketmq.home.dir={place}")
        servers = ["penstock.interop.Servers", str(name_server)]
        servers.append(str(_properties(place / "broker.properties", common | broker)))
        command = ["java", *flags, "-cp", self._java.class_path, *servers]
        told = {"endpoint": f"{HOST}:{names}", "broker": f"{HOST}:{port}"}
        with (place / "said.txt").open("wb") as said:
            process = subprocess.Popen(
                command, cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said
            )
        try:
            _await_ready(process, place / "said.txt")
            yield Server({"broker": process.pid}, told)
        finally:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()  # then it ends at once; an orderly stop takes it 15 s
            stop(process)
            process.stdout.close()

    def command(self, server: Server, load: Load | Read) -> list[str]:
        return self._java.command(load, server.told)


def _properties(file: Path, values: dict[str, object]) -> Path:
    file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return file


def _await_ready(process: subprocess.Popen[Any], said: Path) -> None:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        line = process.stdout.readline() if selector.select(START_TIMEOUT_S) else b""
    if not line or json.loads(line) != {"ready": True}:
        raise StoreUnavailable(
            f"RocketMQ did not serve within {START_TIMEOUT_S} s", line, said.read_text()[-2000:]
        )


def make_topic(server: Server, topic: str, queues: int) -> None:
    """Make a topic as RocketMQ's tools do, and wait until the name server has its route.

    Raises StoreUnavailable.
    """
    count = str(queues)
    fields = {"topic": topic, "readQueueNums": count, "writeQueueNums": count, "perm": "6"}
    fields |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
    made = _ask(server.told["broker"], Request.UPDATE_AND_CREATE_TOPIC, fields)
    if made.code != Response.SUCCESS:
        raise StoreUnavailable("RocketMQ made no topic", topic, made.remark)
    until = time.monotonic() + ROUTE_TIMEOUT_S
    asked = server.told["endpoint"], Request.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}
    while (route := _ask(*asked)).code != Response.SUCCESS:
        if time.monotonic() > until:
            raise StoreUnavailable("RocketMQ's name server has no such topic", topic, route.remark)
        time.sleep(0.05)


def _ask(address: str, code: int, fields: dict[str, str]) -> Command:
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), ROUTE_TIMEOUT_S) as peer,
        peer.makefile("rb") as stream,
    ):
        peer.sendall(encode_command(Command(code, 1, fields)))
        return decode_command(stream.read(int.from_bytes(stream.read(4), "big")))
