"""A store that Penstock wrote, however it ended, is opened and served by a real broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.shared.formats.index_chains import key_hashes
from penstock.shared.formats.index_layout import Geometry
from penstock.shared.process.broker_status import read_status

pytestmark = pytest.mark.takes(110)

TOPICS = {"orders": 4, "batched": 2, "compressed": 1, "payments": 3}
MESSAGES = 5000  # in each of the topics orders and payments
UNDER_LOAD = 20_000  # this many are on their way when the kill comes, and not all get there
BATCHES, COMPRESSED = 100, 60

AT_ANY_HOUR = ";".join(f"{hour:02d}" for hour in range(24))
MAPPED = {"transient_store_pool_enable": False}
ASYNC = {"flush_disk_type": "async"}
SLOTS, ITEMS = 5000, 20_000
FEW_ITEMS = 5000  # of index files that are full, and on disk, long before a kill
# whether Penstock is killed, the items of an index file, and its other settings
WAYS: dict[str, tuple[bool, int, dict[str, object]]] = {
    "pool-sync-killed": (True, ITEMS, {}),
    "pool-async-crc-stopped": (False, ITEMS, {**ASYNC, "enabled_append_prop_crc": True}),
    "mapped-sync-ipv6-stopped": (False, ITEMS, {**MAPPED}),
    "mapped-async-few-items-killed": (True, FEW_ITEMS, {**MAPPED, **ASYNC}),
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
    killed, items, settings = WAYS[way]
    geometry = Geometry(SLOTS, items)
    if "ipv6" in way:
        place.ip = "::1"
    broker = penstock(place, max_hash_slot_num=SLOTS, max_index_num=items, **settings)
    for topic, queues in TOPICS.items():
        sides.create_topic(broker, topic, queues)
    known = produce(broker, make_wanted("orders", 4, MESSAGES, seed=1)).finish()
    known |= produce(broker, make_batches(BATCHES, 1) + make_compressible(COMPRESSED, 1)).finish()
    count = UNDER_LOAD if killed else MESSAGES
    if items == FEW_ITEMS:
        sides.await_full_index_file(place)
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

    again = sides.indexed_again(place, geometry) if killed else set()
    assert again or items != FEW_ITEMS
    # a start after a crash drops the newest index file; the safe way rebuilds it from the log
    index = {"maxHashSlotNum": SLOTS, "maxIndexNum": items}
    server = rocketmq(place, messageIndexSafe=str(killed).lower(), **index)
    client.open(place)
    queues = [(topic, queue) for topic, count in TOPICS.items() for queue in range(count)]
    served = sides.pulled(place, queues)
    holds(served, known)
    same(sides.viewed(place, served), served)
    queries, expected = by_key(served)
    expected = [with_twice(ids, query, again) for query, ids in zip(queries, expected, strict=True)]
    found = sides.queried(place, queries)
    different = [each for each in zip(queries, found, expected, strict=True) if each[1] != each[2]]
    assert different == []
    client.ask("close")
    if killed:
        server.kill()  # stopping in order takes a quarter of a minute
    else:
        server.stop()
    stored = sides.stored(place)
    same(sides.as_consumers_see(served, stored), served)
    sides.verify(place)
    record_property("messages", len(stored))


def with_twice(ids: list[str], query: dict[str, Any], again: set[tuple[int, int]]) -> list[str]:
    """The ids a query finds, in order, where these items are in the index a second time."""
    code = int(key_hashes([f"{query['topic']}#{query['key']}".encode()])[0])
    return [each for each in ids for _ in range(1 + ((code, int(each[-16:], 16)) in again))]


def test_a_real_broker_sees_nothing_of_the_earlier_life_of_a_segment_that_is_used_again(
    place: Any,
    penstock: Callable[..., Any],
    rocketmq: Callable[..., Any],
    client: Any,
    sides: Any,
    sizes: tuple[int, int],
    make_wanted: Callable[..., Any],
    produce: Callable[..., Any],
    holds: Callable[..., None],
) -> None:
    """It takes what lies past the log's end after a failure for messages, wherever these were."""
    soon = {"clean_resource_interval_ms": 50, "delete_commit_log_files_interval_ms": 1}
    broker = penstock(place, file_reserved_time_h=0, delete_when=AT_ANY_HOUR, **soon)
    for topic in ("orders", "payments"):
        sides.create_topic(broker, topic, 3)

    def position(name: str) -> int:
        return int(read_status(place.store)["positions"][name])

    sent = 0

    def send_orders(count: int) -> None:
        nonlocal sent
        sent += len(produce(broker, make_wanted("orders", 3, count, seed=1)).finish())

    while not position("recycled_segments"):
        send_orders(1000)
    begin = position("allocated") - sizes[0]
    while position("wrote") <= begin:
        send_orders(100)
    known = produce(broker, make_wanted("payments", 3, 500, seed=2)).finish()
    broker.kill()
    broker.forget_memory()
    server = rocketmq(place, messageIndexSafe="true")
    client.open(place)
    served = sides.pulled(place, [("payments", queue) for queue in range(3)])
    holds(served, known)
    orders = sides.pulled(place, [("orders", queue) for queue in range(3)])
    assert len(served) == len(known) and 0 < len(orders) < sent
    client.ask("close")
    server.kill()
    sides.verify(place)
