"""A store that is copied file by file while its broker takes messages."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.chaos.broker import SMALL, Broker, running
from penstock.chaos.history import digest
from penstock.chaos.load import QUEUES, TOPIC, Load
from penstock.chaos.under_load import await_acked, make_topics
from penstock.client.reading.consumer import Consumer
from penstock.client.sending.producer import Producer

pytestmark = pytest.mark.takes(10)

COPIES, MESSAGES = 3, 500


def _read(broker: Broker) -> dict[tuple[int, int], bytes]:
    """The digest of each message, by queue and offset."""
    with Consumer(broker.consume, TOPIC, follow=False) as consumer:
        return {(each.queue_id, each.queue_offset): digest(each.body) for each in consumer}


def _acknowledged(load: Load) -> dict[tuple[int, int], bytes]:
    return {(sent.queue_id, sent.queue_offset): sent.digest for sent in load.acked[: load.count()]}


def test_a_copy_whose_log_comes_last_has_all_that_was_acknowledged_before(tmp_path: Path) -> None:
    with running(tmp_path / "first", SMALL) as broker:
        make_topics(broker)
        load = Load("first", broker.produce, ack="durable")
        try:
            for number in range(COPIES):
                await_acked([load], MESSAGES)
                (place := tmp_path / f"copy{number}").mkdir()
                subprocess.run(["cp", "-a", broker.store, place], check=True)
                before = _acknowledged(load)
                log = broker.store / "commitlog"
                subprocess.run(["cp", "-a", log, place / broker.store.name], check=True)
                with running(place, SMALL) as second:
                    found = _read(second)
                    assert before.items() <= found.items()
                    with Producer(second.produce) as producer:
                        for queue in range(QUEUES):
                            end = producer.send(TOPIC, b"more", queue=queue).result(60)
                            assert (queue, end.queue_offset) not in found, "no offset comes again"
                            assert (queue, end.queue_offset - 1) in found
                    second.stop()
        finally:
            load.finish()
        broker.await_dispatched()
        assert _read(broker) == _acknowledged(load)
        assert not any(actor["restarts"] for actor in broker.status()["actors"])
