"""A store that is copied file by file while its broker takes messages."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.chaos.broker import SMALL, Broker, running
from penstock.client.reading.consumer import Consumer
from penstock.client.sending.producer import Producer

pytestmark = pytest.mark.takes(10)

AT_ONCE, COPIES = 100, 3


@contextmanager
def _sending(broker: Broker) -> Iterator[list[int]]:
    """The numbers of the messages that are acknowledged, while they are sent."""
    acknowledged, is_over = list[int](), threading.Event()

    def send() -> None:
        with Producer(broker.produce) as producer:
            producer.create_topic("orders", 2)
            while not is_over.is_set():
                first = len(acknowledged)
                numbers = range(first, first + AT_ONCE)
                for each in [producer.send("orders", b"%d" % n + bytes(200)) for n in numbers]:
                    each.result(60)
                acknowledged.extend(numbers)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield acknowledged
    finally:
        is_over.set()
        sender.join()


def _numbers(broker: Broker) -> list[int]:
    with Consumer(broker.consume, "orders", follow=False) as consumer:
        return sorted(int(bytes(message.body).rstrip(b"\0")) for message in consumer)


def _await(acknowledged: list[int], count: int) -> None:
    while len(acknowledged) < count:
        threading.Event().wait(0.01)


def test_a_copy_whose_log_comes_last_has_all_that_was_acknowledged_before(tmp_path: Path) -> None:
    with running(tmp_path / "first", SMALL) as broker:
        with _sending(broker) as acknowledged:
            for number in range(COPIES):
                _await(acknowledged, len(acknowledged) + 10 * AT_ONCE)
                (place := tmp_path / f"copy{number}").mkdir()
                subprocess.run(["cp", "-a", broker.store, place], check=True)
                before = len(acknowledged)
                log = broker.store / "commitlog"
                subprocess.run(["cp", "-a", log, place / broker.store.name], check=True)
                with running(place, SMALL) as second:
                    found = _numbers(second)
                    assert found == [*range(len(found))] and len(found) >= before
                    with Producer(second.produce) as producer:
                        ends = {producer.send("orders", b"-1").result(60) for _ in range(2)}
                    assert sum(end.queue_offset for end in ends) == len(found), (
                        "no offset is reused"
                    )
                    second.stop()
        broker.await_dispatched()
        assert _numbers(broker) == acknowledged
        assert not any(actor["restarts"] for actor in broker.status()["actors"])
