"""A broker that goes away while clients have it: every message gets its outcome in time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client import Consumer, MessageQuery, Producer, aio
from penstock.shared.errors import BrokerTimeout, ConnectError


@pytest.fixture
def gone(broker_in: Any, tmp_path: Any) -> Any:
    """Has a broker, which is killed when it is called."""
    return broker_in(tmp_path)


def test_a_message_that_cannot_leave_fails_after_the_timeout(gone: Any) -> None:
    producer = Producer(gone.produce, timeout_ms=300)
    gone.kill()
    future = producer.send("orders", b"x")
    with pytest.raises(ConnectError, match=gone.produce):
        future.result(5)
    with pytest.raises(ConnectError):
        producer.topics(timeout=0.1)
    producer.close()  # the failure was seen: there is nothing left to say


def test_closing_reports_a_failure_that_nobody_has_seen(gone: Any) -> None:
    producer = Producer(gone.produce, timeout_ms=200)
    gone.kill()
    producer.send("orders", b"x")
    with pytest.raises(ConnectError):
        producer.close()


def test_a_consumer_and_a_query_say_that_nobody_answers(gone: Any) -> None:
    with (
        Consumer(gone.consume, "orders", timeout_ms=200) as consumer,
        MessageQuery(gone.consume, timeout_ms=200) as query,
    ):
        gone.kill()
        with pytest.raises(ConnectError, match=gone.consume):
            consumer.poll(5)
        with pytest.raises(ConnectError, match=gone.consume):
            query.by_key("orders", "k")


def test_a_client_of_a_store_names_the_store(gone: Any) -> None:
    with Consumer(store=gone.store, topic="orders", timeout_ms=200) as consumer:
        gone.kill()
        with pytest.raises(ConnectError, match=str(gone.store)):
            consumer.poll(5)


@pytest.mark.parametrize("is_there", [True, False])
def test_whatever_takes_too_long_is_a_timeout_that_says_so(
    mute: Any, gone: Any, is_there: bool
) -> None:
    met = mute if is_there else gone
    with (
        Producer(met.produce, timeout_ms=3000) as producer,
        Consumer(met.consume, "orders", timeout_ms=300) as consumer,
        MessageQuery(met.consume, timeout_ms=300) as query,
    ):
        # within the producer's time a busy machine has made the connection that is asked about
        gone.kill()
        future = producer.send("orders", b"x")
        calls: dict[str, Callable[[], object]] = {
            "0.05 s": lambda: future.result(0.05),
            "0.06 s": lambda: future.exception(0.06),
            "1 message has no outcome after 0.07 s": lambda: producer.flush(0.07),
            "0.08 s": lambda: producer.topics(0.08),
            "0.09 s": lambda: producer.create_topic("orders", 1, 0.09),
            "300 ms": lambda: consumer.poll(5),
            "not answered for 300 ms": lambda: query.by_key("orders", "k"),
            "3000 ms": lambda: future.result(30),
        }
        for said, call in calls.items():
            with pytest.raises(TimeoutError, match=re.escape(said)) as caught:
                call()
            error = caught.value
            assert isinstance(error, BrokerTimeout) and isinstance(error, ConnectError)
            assert error.status == "BROKER_TIMEOUT" and ("127.0.0.1" in str(error))
            assert "penstock status" in error.hint
        assert ("there is no connection" in str(future.exception(0))) != is_there


def test_the_same_for_asyncio(mute: Any) -> None:
    async def test() -> None:
        async with (
            aio.Producer(mute.produce, timeout_ms=400) as producer,
            aio.Consumer(mute.consume, "orders", timeout_ms=300) as consumer,
            aio.MessageQuery(mute.consume, timeout_ms=300) as query,
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


def test_an_asyncio_producer_says_that_there_is_no_connection(gone: Any) -> None:
    async def test() -> None:
        async with aio.Producer(gone.produce, timeout_ms=3000) as producer:
            gone.kill()
            with pytest.raises(ConnectError, match="there is no connection"):
                await producer.send("orders", b"x")

    asyncio.run(asyncio.wait_for(test(), 60))
