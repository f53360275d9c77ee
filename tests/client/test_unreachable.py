"""A broker that goes away while clients have it: every message gets its outcome in time."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.client import Consumer, MessageQuery, Producer
from penstock.shared.errors import ConnectError

WAIT_S = 30


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
