"""A server that answers with more than anybody asked for: what a client takes of it is bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from penstock.client import Consumer, MessageQuery, Producer, aio
from penstock.shared.errors import PenstockError, ProtocolError
from penstock.shared.wire import introduction, messages

LONG = bytes(80 << 20)
TIMEOUT_MS = 60_000


class Server(threading.Thread):
    """Says that it is a broker, and answers each question for messages or topics with LONG."""

    def __init__(self) -> None:
        super().__init__()
        self.context: zmq.Context[Any] = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.linger = 0
        port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self.serves: Any = "consumers"
        self.stopping = False
        self.asked = 0

    def run(self) -> None:
        while not self.stopping:
            if self.socket.poll(20):
                peer, header, *_ = self.socket.recv_multipart()
                self.socket.send_multipart((peer, *self.answer(header)))
        self.socket.close()
        self.context.term()

    def answer(self, header: bytes) -> tuple[bytes, ...]:
        if introduction.decode_greet(header) is not None:
            here = self.endpoint
            return (
                introduction.encode(
                    introduction.Greeted(
                        introduction.PROTOCOL, "1", self.serves, here, here, "run", "/store", 1
                    )
                ),
            )
        try:
            request = messages.decode_consume_request(header)
        except ProtocolError:
            request = messages.decode_produce_request(header)
        number = getattr(request, "request", 0)
        if isinstance(request, messages.Describe):
            queue = messages.QueueRange(0, 0, 1000, 0)
            return (messages.encode(messages.Described(number, request.topic, True, (queue,))),)
        self.asked += 1
        return messages.encode(messages.Pulled(number, (), (0,), "run", ())), LONG


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    made.start()
    yield made
    made.stopping = True
    made.join()


def consume(endpoint: str) -> None:
    with Consumer(endpoint, "orders", timeout_ms=TIMEOUT_MS) as consumer:
        for _ in range(2):  # it asks again, and is told again
            with pytest.raises(ProtocolError, match="longer than 68157440 bytes"):
                consumer.poll(None)


async def consume_async(endpoint: str) -> None:
    async with aio.Consumer(endpoint, "orders", timeout_ms=TIMEOUT_MS) as consumer:
        for _ in range(2):
            with pytest.raises(ProtocolError, match="longer than"):
                await consumer.poll(None)


def query(endpoint: str) -> None:
    with MessageQuery(endpoint, timeout_ms=TIMEOUT_MS) as asks:
        for _ in range(2):
            with pytest.raises(ProtocolError, match="longer than"):
                asks.by_key("orders", "key")


async def query_async(endpoint: str) -> None:
    async with aio.MessageQuery(endpoint, timeout_ms=TIMEOUT_MS) as asks:
        with pytest.raises(ProtocolError, match="longer than"):
            await asks.by_key("orders", "key")


@pytest.mark.parametrize("ask", [consume, consume_async, query, query_async])
def test_an_answer_that_is_too_long_is_an_error_and_the_next_is_asked_for(
    server: Server, ask: Callable[[str], Any]
) -> None:
    done = ask(server.endpoint)
    if done is not None:
        asyncio.run(done)
    assert server.asked >= 1


def test_a_producer_dials_again_behind_an_answer_that_is_too_long(server: Server) -> None:
    server.serves = "producers"
    with Producer(server.endpoint, timeout_ms=3000) as producer, pytest.raises(PenstockError):
        producer.topics(6)
    assert server.asked >= 2, "it has asked again by another connection"
