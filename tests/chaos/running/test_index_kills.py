"""The reput, or everything, killed under load: every acknowledged key is found, exactly once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from penstock.client.reading.query import MessageQuery
from penstock.client.sending.producer import Producer

TOPIC = "chaos"


def _send(producer: Producer, start: int, count: int) -> list[Any]:
    return [
        producer.send(TOPIC, b"%d/0/0/" % number, keys=f"k{number} all", queue=0)
        for number in range(start, start + count)
    ]


def _check(endpoint: str, receipts: dict[int, Any], dice: random.Random) -> None:
    with MessageQuery(endpoint) as query:
        for number in dice.sample(sorted(receipts), min(200, len(receipts))):
            receipt = receipts[number]
            (found,) = query.by_key(TOPIC, f"k{number}")
            assert found.physical_offset == receipt.physical_offset
            assert query.by_unique_key(TOPIC, receipt.unique_key) == [found]
            assert query.by_id(receipt.message_id) == found
        assert len(query.by_key(TOPIC, "all", 1000)) == 64
        assert query.by_key(TOPIC, "none") == []


@pytest.mark.parametrize("victims", ["reput", "all"])
def test_every_key_is_found_once_after_kills_in_the_middle_of_load(
    broker: Callable[..., Any], check_store: Callable[..., None], victims: str
) -> None:
    running, dice = broker(), random.Random(20)
    running.start()
    receipts: dict[int, Any] = {}
    for round_ in range(3):
        with Producer(running.produce) as producer:
            producer.create_topic(TOPIC, 1)
            futures = _send(producer, 5000 * round_, 5000)
            for _ in range(4):
                time.sleep(dice.uniform(0, 0.05))  # the moment is what the test varies
                if victims == "reput" and (pid := running.actors()["reput"]):
                    with suppress(ProcessLookupError):  # of the one that was just killed
                        os.kill(pid, signal.SIGKILL)
            for number, future in enumerate(futures, 5000 * round_):
                receipts[number] = future.result(60)
        if victims == "all":
            running.kill()
            running.start()
        running.await_dispatched()
        _check(running.consume, receipts, dice)
    running.stop()
    check_store(running)
