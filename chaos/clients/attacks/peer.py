"""The attackers' connections: ZeroMQ and the protocol, as far as both let anybody send."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import zmq

from penstock.chaos.broker import Broker
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.layout import StorePaths
from penstock.shared.memory.run_directory import read_run
from penstock.shared.wire import messages
from penstock.shared.wire.messages import Append, Hello, QueueRun, encode
from penstock.shared.wire.sockets import dial

ANSWER_MS = 60_000
# Connections of a client that has several.
CONSUMERS = 20
VICTIM, EVIL, EMPTY = "victim", "evil", "empty"


class Peer:
    """A connection that sends anything."""

    def __init__(self, context: zmq.Context[Any], endpoint: str) -> None:
        self.socket = dial(context, endpoint)
        self.producer = random.getrandbits(60)
        self.session = 0
        self._seq = count(1)

    def send(self, *parts: bytes) -> bool:
        """Send a message. Returns whether there was room in time."""
        if not self.socket.poll(ANSWER_MS, zmq.POLLOUT):
            return False
        self.socket.send_multipart(parts)
        return True

    def answer(self) -> Any:
        """The next answer of the produce endpoint; None if there is none in time."""
        if not self.socket.poll(ANSWER_MS):
            return None
        return messages.decode_produce_answer(self.socket.recv_multipart()[0])

    def drain(self) -> None:
        while self.socket.poll(0):
            self.socket.recv_multipart()

    def create(self, topic: str) -> None:
        self.send(encode(messages.CreateTopic(1, topic, 1)))
        self.answer()

    def hello(self, stored_after: int = 0) -> Any:
        self.session += 1
        self._seq = count(1)
        self.send(encode(Hello(self.producer, self.session, 1, stored_after)))
        return self.answer()

    def append(self, topic: str, raw: bytes, count: int = 1, *, retry: bool = False) -> None:
        """Send a frame of `count` records."""
        run = (QueueRun(topic, 0, count),)
        header = Append(self.producer, self.session, next(self._seq), run, "written", retry)
        self.send(encode(header), raw)


@contextmanager
def peers(endpoint: str, number: int = 1) -> Iterator[list[Peer]]:
    context: zmq.Context[Any] = zmq.Context()
    made = [Peer(context, endpoint) for _ in range(number)]
    try:
        yield made
    finally:
        for each in made:
            each.socket.close(linger=0)
        context.term()


def message(topic: str, body: bytes, key: str) -> bytes:
    return encode_record(Record(topic, body, encode_properties({"UNIQ_KEY": key})))


def endpoints(broker: Broker) -> tuple[str, ...]:
    """The endpoints of all actors that serve ZeroMQ clients."""
    run = read_run(StorePaths(broker.store))
    assert run is not None, "the broker runs"
    found = run.endpoints
    return found.produce, found.consume, found.group, found.transaction


def make_attacked_topics(broker: Broker) -> None:
    """Make the topics, before attackers have made as many as there may be."""
    with peers(broker.produce) as (peer,):
        for topic in (VICTIM, EVIL, EMPTY):
            peer.create(topic)
