"""A store that Penstock wrote, however it ended, is opened and served by a real broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

TOPICS = {"orders": 4, "payments": 3}
MESSAGES = 6000  # in each topic

WAYS = {
    "pool-sync-killed": (True, "sync", True),
    "pool-async-stopped": (True, "async", False),
    "mapped-sync-stopped": (False, "sync", False),
    "mapped-async-killed": (False, "async", True),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_real_broker_serves_what_penstock_stored(
    way: str,
    place: Any,
    penstock: Callable[..., Any],
    rocketmq: Callable[..., Any],
    client: Any,
    sides: Any,
    make_wanted: Callable[..., Any],
    produce: Callable[..., Any],
    same: Callable[..., None],
    holds: Callable[..., None],
) -> None:
    pool, flush, killed = WAYS[way]
    broker = penstock(place, transient_store_pool_enable=pool, flush_disk_type=flush)
    for topic, queues in TOPICS.items():
        with_topic = make_wanted(topic, queues, MESSAGES, seed=len(topic))
        if topic == "orders":
            known = produce(broker, with_topic).finish()
            continue
        sent = produce(broker, with_topic)
        if killed:
            sent.await_acknowledged(MESSAGES // 3)
            broker.kill()
            known |= sent.abandon()
        else:
            known |= sent.finish()
            broker.stop()
    if killed:
        broker.forget_memory()

    server = rocketmq(place)
    client.open(place)
    queues = [(topic, queue) for topic, count in TOPICS.items() for queue in range(count)]
    served = sides.pulled(place, queues)
    holds(served, known)
    same(sides.viewed(place, served), served)
    client.ask("close")
    server.stop()
    same(sides.stored(place), served)
    sides.verify(place)
