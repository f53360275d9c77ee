"""A producer whose broker is not there, or goes away: every message gets its outcome in time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator

import pytest
import zmq

from penstock.client import Consumer, MessageQuery, Producer, aio
from penstock.shared.errors import BrokerTimeout, ConnectError

NOBODY = "tcp://127.0.0.1:1"


def test_a_message_that_cannot_leave_fails_after_the_timeout() -> None:
    producer = Producer(NOBODY, timeout_ms=300)
    future = producer.send("orders", b"x")
    with pytest.raises(ConnectError, match=NOBODY):
        future.result(5)
    with pytest.raises(ConnectError):
        producer.topics(timeout=0.1)
    producer.close()  # the failure was seen: there is nothing left to say


def test_closing_reports_a_failure_that_nobody_has_seen() -> None:
    producer = Producer(NOBODY, timeout_ms=200)
    producer.send("orders", b"x")
    with pytest.raises(ConnectError):
        producer.close()


def test_a_consumer_says_that_nobody_answers() -> None:
    with Consumer(NOBODY, "orders", timeout_ms=200) as consumer, pytest.raises(ConnectError):
        consumer.poll(5)


@pytest.fixture
def silent() -> Iterator[str]:
    """An endpoint where somebody listens and never answers."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        yield f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"


@pytest.mark.parametrize("is_there", [True, False])
def test_whatever_takes_too_long_is_a_timeout_that_says_so(silent: str, is_there: bool) -> None:
    endpoint = silent if is_there else NOBODY
    with (
        Producer(endpoint, timeout_ms=400) as producer,
        Consumer(endpoint, "orders", timeout_ms=300) as consumer,
        MessageQuery(endpoint, timeout_ms=300) as query,
    ):
        future = producer.send("orders", b"x")
        calls: dict[str, Callable[[], object]] = {
            "0.05 s": lambda: future.result(0.05),
            "0.06 s": lambda: future.exception(0.06),
            "1 message has no outcome after 0.07 s": lambda: producer.flush(0.07),
            "0.08 s": lambda: producer.topics(0.08),
            "0.09 s": lambda: producer.create_topic("orders", 1, 0.09),
            "300 ms": lambda: consumer.poll(5),
            "not answered for 300 ms": lambda: query.by_key("orders", "k"),
            "400 ms": lambda: future.result(5),
        }
        for said, call in calls.items():
            with pytest.raises(TimeoutError, match=re.escape(said)) as caught:
                call()
            error = caught.value
            assert isinstance(error, BrokerTimeout) and isinstance(error, ConnectError)
            assert error.status == "BROKER_TIMEOUT" and endpoint in str(error)
            assert "penstock status" in error.hint
        assert ("there is no connection" in str(future.exception(0))) != is_there


def test_the_same_for_asyncio(silent: str) -> None:
    async def test() -> None:
        async with (
            aio.Producer(silent, timeout_ms=400) as producer,
            aio.Consumer(silent, "orders", timeout_ms=300) as consumer,
            aio.MessageQuery(silent, timeout_ms=300) as query,
        ):
            future = producer.send("orders", b"x")
            for call in (
                producer.flush(0.05),
                producer.topics(0.05),
                producer.create_topic("orders", 1, 0.05),
                consumer.poll(5),
                query.by_id("00" * 16),
                future,
            ):
                with pytest.raises(TimeoutError) as caught:
                    await call
                assert isinstance(caught.value, BrokerTimeout), caught.value

    asyncio.run(asyncio.wait_for(test(), 30))
