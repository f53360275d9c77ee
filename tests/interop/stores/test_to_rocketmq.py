"""A store that Penstock wrote, however it ended, is opened and served by a real broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

TOPICS = {"orders": 4, "batched": 2, "compressed": 1, "payments": 3}
MESSAGES = 5000  # in each of the topics orders and payments
UNDER_LOAD = 20_000  # so many are on their way when the kill comes, and not all get there
BATCHES, COMPRESSED = 100, 60

# whether Penstock is killed, and its settings
MAPPED = {"transient_store_pool_enable": False}
ASYNC = {"flush_disk_type": "async"}
# whether Penstock is killed, and its settings
WAYS: dict[str, tuple[bool, dict[str, object]]] = {
    "pool-sync-killed": (True, {}),
    "pool-async-crc-stopped": (False, {**ASYNC, "enabled_append_prop_crc": True}),
    "mapped-sync-ipv6-stopped": (False, {**MAPPED}),
    "mapped-async-killed": (True, {**MAPPED, **ASYNC}),
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
    make_batches: Callable[..., Any],
    make_compressible: Callable[..., Any],
    by_key: Callable[..., Any],
    produce: Callable[..., Any],
    same: Callable[..., None],
    holds: Callable[..., None],
    record_property: Callable[[str, object], None],
) -> None:
    killed, settings = WAYS[way]
    if "ipv6" in way:
        place.ip = "::1"
    broker = penstock(place, **settings)
    for topic, queues in TOPICS.items():
        sides.create_topic(broker, topic, queues)
    known = produce(broker, make_wanted("orders", 4, MESSAGES, seed=1)).finish()
    known |= produce(broker, make_batches(BATCHES, 1) + make_compressible(COMPRESSED, 1)).finish()
    count = UNDER_LOAD if killed else MESSAGES
    sent = produce(broker, make_wanted("payments", 3, count, seed=2))
    if killed:
        sent.await_acknowledged(100)
        broker.kill()
        broker.forget_memory()
        acknowledged = sent.abandon()
        assert 100 <= len(acknowledged) < count, "the kill came too late"
        known |= acknowledged
    else:
        known |= sent.finish()
        broker.stop()

    # a start after a crash drops the newest index file; the safe way rebuilds it from the log
    server = rocketmq(place, messageIndexSafe=str(killed).lower())
    client.open(place)
    queues = [(topic, queue) for topic, count in TOPICS.items() for queue in range(count)]
    served = sides.pulled(place, queues)
    holds(served, known)
    same(sides.viewed(place, served), served)
    queries, expected = by_key(served)
    assert sides.queried(place, queries) == expected
    client.ask("close")
    if killed:
        server.kill()  # stopping in order takes a quarter of a minute
    else:
        server.stop()
    stored = sides.stored(place)
    same(sides.as_consumers_see(served, stored), served)
    sides.verify(place)
    record_property("messages", len(stored))
