"""A connection that breaks is noticed when it breaks, and not when an answer is overdue."""

from __future__ import annotations

import time
from pathlib import Path
from signal import SIGKILL, SIGSTOP

import pytest

from penstock.chaos.broker import Broker
from penstock.client import Producer
from penstock.client.core.sending import busy_broker

WAIT_S = 60


def test_a_producer_asks_the_next_writer_at_once_what_the_last_one_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(tmp_path, {"flush_disk_type": "sync", "actor_stopped_timeout_ms": 1000})
    for pause in ("PROBE_MS", "MOST_MS"):
        monkeypatch.setattr(busy_broker, pause, 10 * WAIT_S * 1000)
    try:
        broker.start()
        with Producer(broker.produce) as producer:
            producer.send("orders", b"first", queue=0).result(WAIT_S)
            # until the flusher is replaced the writer takes the message, and does not answer
            broker.strike("flusher", SIGSTOP)
            before = broker.status()["positions"]["wrote"]
            future = producer.send("orders", b"second", queue=0)
            deadline = time.monotonic() + WAIT_S
            while broker.status()["positions"]["wrote"] == before:
                assert time.monotonic() < deadline
            broker.strike("writer", SIGKILL)
            assert future.result(WAIT_S).queue_offset == 1
        broker.stop()
    finally:
        broker.clear()
