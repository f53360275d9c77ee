"""A broker whose disk side stands still, with real processes: what producers see, and lose."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.client import Consumer, Producer, Receipt
from penstock.client.core.sending.busy_broker import MAX_BACK_OFF_MS, BusyBroker
from penstock.shared.errors import BrokerBusy, BrokerTimeout, FlushTimeout

WAIT_S = 60


@pytest.fixture
def slow_broker(start_broker: Callable[..., Any]) -> Any:
    """A small pool, and a supervisor that lets stopped actors stand for a while."""
    return start_broker(
        max_message_size_bytes=65536,
        transient_store_pool_bytes=4 << 20,
        mapped_file_size_commit_log_bytes=64 << 20,
        sync_flush_timeout_ms=1500,
        actor_stopped_timeout_ms=60_000,
        actor_stall_timeout_ms=60_000,
    )


@contextmanager
def stopped(broker: Any, actor: str) -> Iterator[None]:
    pid = next(each["pid"] for each in broker.status()["actors"] if each["name"] == actor)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def stored(broker: Any, topic: str) -> list[bytes]:
    with Consumer(broker.consume, topic, follow=False) as consumer:
        return [message.body for message in consumer]


@pytest.mark.parametrize(("asked_ms", "least_ms"), [(0, 1), (1, 1), (40, 40), (1 << 20, 1000)])
def test_a_broker_is_left_alone_as_long_as_it_says_and_at_most_a_quarter_longer(
    asked_ms: int, least_ms: int
) -> None:
    error = BrokerBusy("the pool is full", "orders", retry_after_ms=asked_ms)
    pauses = {BusyBroker().pause_ms(error) for _ in range(20_000)}
    assert (min(pauses), max(pauses)) == (least_ms, least_ms + least_ms // 4)


def test_each_time_in_turn_that_it_is_busy_it_is_left_alone_twice_as_long() -> None:
    error, broker = BrokerBusy("the pool is full", "orders", retry_after_ms=40), BusyBroker()
    for least_ms in (40, 80, 160, 320, 640, MAX_BACK_OFF_MS, MAX_BACK_OFF_MS):
        assert least_ms <= broker.pause_ms(error) <= least_ms + least_ms // 4
    broker.end()
    assert broker.error is None and broker.pause_ms(error) <= 50


def test_a_pool_that_stays_full_is_no_error_where_the_time_allows_to_wait(slow_broker: Any) -> None:
    with Producer(slow_broker.produce, ack="written") as producer:
        producer.create_topic("patient", 1)
        producer.send("patient", b"").result(WAIT_S)
        with stopped(slow_broker, "committer"):
            futures = [producer.send("patient", b"%8d" % i + bytes(4000)) for i in range(1500)]
            until(lambda: producer._core._busy is not None)
        receipts = [future.result(WAIT_S) for future in futures]
        assert [receipt.queue_offset for receipt in receipts] == list(range(1, 1501))
        producer.send("patient", b"", ack="durable").result(WAIT_S)
    bodies = stored(slow_broker, "patient")[1:-1]
    assert [int(body[:8]) for body in bodies] == list(range(1500)), "none lost, none twice"


def test_where_the_time_does_not_allow_it_the_broker_is_said_to_be_busy(slow_broker: Any) -> None:
    with Producer(slow_broker.produce) as patient:
        patient.create_topic("hasty", 1)
        patient.send("hasty", b"").result(WAIT_S)
    # long enough to fill the pool on a busy machine
    with Producer(slow_broker.produce, ack="written", timeout_ms=4000) as producer:
        with stopped(slow_broker, "committer"):
            futures = [producer.send("hasty", b"%8d" % i + bytes(4000)) for i in range(1500)]
            errors = [future.exception(WAIT_S) for future in futures]
        kinds = {type(error) for error in errors}
        assert kinds <= {type(None), BrokerBusy, BrokerTimeout} and BrokerBusy in kinds
        busy = next(error for error in errors if isinstance(error, BrokerBusy))
        assert busy.status in ("SYSTEM_BUSY", "OS_PAGE_CACHE_BUSY") and busy.retry_after_ms > 0
    with Producer(slow_broker.produce) as patient:
        patient.send("hasty", b"", ack="durable").result(WAIT_S)
    found = [int(body[:8]) for body in stored(slow_broker, "hasty")[1:-1]]
    assert found == sorted(set(found)), "none twice, and in order"
    assert set(found) >= {i for i, error in enumerate(errors) if error is None}
    assert not set(found) & {i for i, error in enumerate(errors) if isinstance(error, BrokerBusy)}


def test_what_the_disk_keeps_waiting_is_stored_and_what_does_not_wait_is_answered(
    slow_broker: Any,
) -> None:
    with Producer(slow_broker.produce) as producer:
        producer.send("late", b"first").result(WAIT_S)
        with stopped(slow_broker, "flusher"):
            quick = producer.send("late", b"quick", wait=False).result(WAIT_S)
            assert quick.status == "PUT_OK"
            with pytest.raises(FlushTimeout) as caught:
                producer.send("late", b"slow", queue=quick.queue_id).result(WAIT_S)
        receipt = caught.value.receipt
        assert isinstance(receipt, Receipt) and receipt.status == "FLUSH_DISK_TIMEOUT"
        assert receipt.queue_offset == quick.queue_offset + 1
        producer.send("late", b"last").result(WAIT_S)
    with Consumer(slow_broker.consume, "late", follow=False) as consumer:
        found = {message.body: message for message in consumer}
    assert set(found) == {b"first", b"quick", b"slow", b"last"}, "stored, each once"
    assert found[b"quick"].properties["WAIT"] == "false"
    assert found[b"slow"].message_id == receipt.message_id
