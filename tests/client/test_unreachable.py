"""A producer whose broker is not there, or goes away: every message gets its outcome in time."""

from __future__ import annotations

import pytest

from penstock.client import Consumer, Producer
from penstock.shared.errors import ConnectError

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
