"""Thousands of RocketMQ's clients that only keep their connections: what they cost the gateway.

python -m penstock.bench.peers.crowd --connections 10000 --of consumers

Each connection sends a heartbeat every 30 s, as clients do. Consumers are members, ten in each
group, which the coordinator has as well; producers are in a hundred groups.
"""

from __future__ import annotations

import json
import resource
import selectors
import socket
import time

import click

from penstock.bench.loads.stack import Stack, running_stack
from penstock.chaos.machine.usage import cpu_seconds
from penstock.remoting.codes import Request
from penstock.remoting.command import Command, encode_command
from penstock.shared.errors import BrokerTimeout, StoreUnavailable
from penstock.shared.process.broker_status import read_status

HEARTBEAT_S, ANSWER_S = 30, 60
_PRODUCER_GROUPS, _MEMBERS = 100, 10


class Crowd:
    """Connections to one gateway."""

    def __init__(self, address: str, count: int, are_consumers: bool) -> None:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self._are_consumers = are_consumers
        self._selector = selectors.DefaultSelector()
        self._peers: list[socket.socket] = []
        self.said = self.heard = 0
        for number in range(count):
            self._peers.append(socket.create_connection((host, int(port)), ANSWER_S))
            self._peers[-1].setblocking(False)
            self._selector.register(self._peers[-1], selectors.EVENT_READ)
            self.beat()
            if number % 50 == 0:
                self.hear(0)

    def beat(self) -> None:
        """Send a heartbeat by the next connection."""
        number = self.said % len(self._peers)
        body: dict[str, object] = {"clientID": f"10.0.0.1@{number}"}
        if self._are_consumers:
            wanted = {"topic": "orders", "subString": "*", "subVersion": 1, "expressionType": "TAG"}
            group = {
                "groupName": f"CG-{number // _MEMBERS}", "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [wanted],
            }  # fmt: skip
            body["consumerDataSet"] = [group]
        else:
            body["producerDataSet"] = [{"groupName": f"PG-{number % _PRODUCER_GROUPS}"}]
        said = Command(Request.HEART_BEAT, number, {}, json.dumps(body).encode())
        self._peers[number].send(encode_command(said))
        self.said += 1

    def hear(self, timeout_s: float) -> None:
        """Take answers. Raises StoreUnavailable if a connection has been closed."""
        for key, _ in self._selector.select(timeout_s):
            assert isinstance(key.fileobj, socket.socket)
            data = key.fileobj.recv(1 << 16)
            if not data:
                raise StoreUnavailable("the gateway has closed a connection of the crowd")
            self.heard += data.count(b'"flag":1')

    def close(self) -> None:
        self._selector.close()
        for peer in self._peers:
            peer.close()


def _memory_bytes(pid: int) -> int:
    """Resident memory, with shared pages."""
    with open(f"/proc/{pid}/statm") as sizes:
        return int(sizes.read().split()[1]) * resource.getpagesize()


def _measure(stack: Stack, crowd: Crowd, count: int, seconds: float) -> None:
    deadline = time.monotonic() + ANSWER_S
    while crowd.heard < count:
        if time.monotonic() > deadline:
            raise BrokerTimeout("not all heartbeats have an answer", crowd.heard, "try fewer")
        crowd.hear(0.1)
    actors = read_status(stack.store)["actors"]
    pids = {each["name"]: each["pid"] for each in actors}
    names = ("gateway", "coordinator")
    before = {name: cpu_seconds([pids[name]]) for name in names}
    began, first = time.monotonic(), crowd.said
    while (passed := time.monotonic() - began) < seconds:
        while crowd.said - first < passed * count / HEARTBEAT_S:
            crowd.beat()
        crowd.hear(0.01)
    for name in names:
        share = (cpu_seconds([pids[name]]) - before[name]) / passed
        size = _memory_bytes(pids[name])
        click.echo(f"{name:<12} {size / 2**20:.0f} MiB resident, {100 * share:.1f} % of a core")
    click.echo(
        f"{crowd.said - first} heartbeats said, {crowd.heard} of {crowd.said} answered in all"
    )


@click.command()
@click.option("--connections", type=click.IntRange(min=1), default=10_000, show_default=True)
@click.option("--of", type=click.Choice(["consumers", "producers"]), default="consumers")
@click.option("--seconds", type=click.FloatRange(min=1), default=20, show_default=True)
def main(connections: int, of: str, seconds: float) -> None:
    """Measure what a crowd of clients costs that do nothing."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    flags = {"gateway_enable": "true", "gateway_port": "0", "gateway_name_server_port": "0"}
    flags["max_connections"] = str(connections + 100)
    with running_stack(None, flags=flags) as stack:
        crowd = Crowd(stack.endpoints["remoting"], connections, of == "consumers")
        try:
            _measure(stack, crowd, connections, seconds)
        finally:
            crowd.close()


if __name__ == "__main__":
    main()
