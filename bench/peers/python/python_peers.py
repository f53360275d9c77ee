"""The brokers that Python programs are measured with, each with the client for it.

A broker that cannot be had here is left out with a message, and the others are measured.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import click

from penstock.bench.peers.brokers.kafka import Kafka
from penstock.bench.peers.brokers.nats import Nats
from penstock.bench.peers.brokers.ours import Penstock
from penstock.bench.peers.brokers.peer import Peer, Server
from penstock.bench.peers.brokers.rabbitmq import RabbitMQ
from penstock.bench.peers.brokers.redis import Redis
from penstock.bench.peers.brokers.rocketmq import RocketMQ, make_topic
from penstock.bench.peers.python.python_clients import require
from penstock.client import Producer
from penstock.shared.errors import PenstockError

OURS = "penstock"
QUEUES = 4
TOPIC_TIMEOUT_S = 60


def _topic_of_ours(server: Server, topic: str) -> None:
    with Producer(server.told["produce"]) as producer:
        producer.create_topic(topic, QUEUES)


def _topic_of_rocketmq(server: Server, topic: str) -> None:
    make_topic(server, topic, QUEUES)


def _topic_of_kafka(server: Server, topic: str) -> None:
    """Make it first: a consumer that comes before the first message finds no partition to read."""
    require("confluent-kafka")  # needed even if only kafka-python is measured
    admin = import_module("confluent_kafka.admin")
    client = admin.AdminClient({"bootstrap.servers": server.told["endpoint"]})
    (made,) = client.create_topics([admin.NewTopic(topic, QUEUES)]).values()
    made.result(TOPIC_TIMEOUT_S)


def _none(server: Server, topic: str) -> None:
    """Nothing: a client makes the topic, or the first message does."""


class PythonPeer(NamedTuple):
    """A broker, its client (in python_clients.py), and how to make a topic.

    Brokers that come from Maven are fetched before they are served.
    """

    make: Callable[[], Peer]
    client: str = ""
    make_topic: Callable[[Server, str], None] = _none
    is_fetched: bool = False


BROKERS = {
    OURS: PythonPeer(Penstock, "", _topic_of_ours),
    "redis": PythonPeer(Redis, "redis"),
    "kafka": PythonPeer(Kafka, "confluent-kafka", _topic_of_kafka, is_fetched=True),
    "nats": PythonPeer(Nats, "nats-py"),
    "rabbitmq": PythonPeer(RabbitMQ, "rstream"),
    "rocketmq": PythonPeer(RocketMQ, "rocketmq", _topic_of_rocketmq, is_fetched=True),
}
# the same by client, of which Kafka has two
CLIENTS = {peer.client or name: peer for name, peer in BROKERS.items()}
CLIENTS["kafka-python"] = CLIENTS["confluent-kafka"]._replace(client="kafka-python")


def named(peers: Mapping[str, PythonPeer]) -> Callable[..., list[str]]:
    """A callback for an option: names of these, with commas. Raises BadParameter."""

    def check(ctx: click.Context, parameter: click.Parameter, value: str) -> list[str]:
        names = value.split(",")
        for name in names:
            if name not in peers:
                raise click.BadParameter(f"{name!r} is not one of: {', '.join(peers)}")
        return names

    return check


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


@contextmanager
def served(
    names: Sequence[str], peers: Mapping[str, PythonPeer], place: Path, ack: str
) -> Iterator[dict[str, Server]]:
    """The brokers that can be had here, by name; clients of one broker share it."""
    with ExitStack() as stack:
        made: dict[Callable[[], Peer], Server] = {}
        found = {}
        for name in names:
            peer = peers[name]
            try:
                if peer.client:
                    require(peer.client)
                if peer.make not in made:
                    broker = peer.make()
                    if peer.is_fetched:
                        broker.version()
                    serving = broker.serve(place / f"{peer.make.__name__}-{ack}", ack)
                    made[peer.make] = stack.enter_context(serving)
            except PenstockError as error:
                say(f"{name} is not measured, {ack}: {error}")
            else:
                found[name] = made[peer.make]
        yield found
