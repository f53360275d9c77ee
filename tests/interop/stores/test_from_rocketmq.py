"""A store that a real broker wrote, with every kind of record, is opened, served and extended."""

from __future__ import annotations

import json
import random
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest

from penstock.shared.messaging.system_topics import TRANSACTION_GROUP
from penstock.shared.store.rocketmq_json import load_document

pytestmark = pytest.mark.takes(75)

ORDINARY = 12_000
BATCHES, COMPRESSED = 300, 90
ASKED = 2000  # keys and ids that our client is asked for
APPENDED = 3000
GROUP = "billing"
TOPICS = {"orders": 4, "batched": 2, "compressed": 1, "later": 1, "transacted": 1}

ToSend = dict[str, Any]


def delayed(level: int, count: int) -> list[ToSend]:
    return [
        {
            "topic": "later",
            "queue": 0,
            "body": b64encode(f"level {level} number {number}".encode()).decode(),
            "delay_level": level,
            "keys": [f"delayed-{level}-{number}"],
        }
        for number in range(count)
    ]


def transactions() -> list[ToSend]:
    outcomes = ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW")
    return [
        {
            "topic": "transacted",
            "body": b64encode(f"{outcomes[number % 3]} {number}".encode()).decode(),
            "outcome": outcomes[number % 3],
            "keys": [f"transaction-{number}"],
        }
        for number in range(60)
    ]


def write_every_kind(
    place: Any,
    client: Any,
    sides: Any,
    ordinary: list[ToSend],
) -> dict[Any, Any]:
    """Every kind of record a broker writes; what is known of those that a client placed."""
    for topic, queues in TOPICS.items():
        client.ask("create", topic=topic, queues=queues)
    known: dict[Any, Any] = sides.send(place, ordinary)
    known |= sides.send(place, delayed(1, 20) + delayed(18, 20))
    wanted, receipts = place.file("transactions.jsonl"), place.file("receipts.jsonl")
    wanted.write_text("".join(json.dumps(each) + "\n" for each in transactions()))
    assert client.ask("transact", messages=wanted, receipts=receipts) == 60
    back = {"topic": "orders", "queue": 0, "group": GROUP}
    assert client.ask("send_back", offsets=list(range(15)), level=1, **back) == 15
    assert client.ask("send_back", offsets=list(range(15, 20)), level=-1, **back) == 5
    sides.await_offset("later", 0, 20)
    sides.await_offset("transacted", 0, 20)
    sides.await_offset(f"%RETRY%{GROUP}", 0, 15)
    sides.await_offset(f"%DLQ%{GROUP}", 0, 5)
    return known


ENDINGS = {"stopped-ipv6": {}, "killed-crc": {"enabledAppendPropCRC": "true"}}


@pytest.mark.parametrize("ending", ENDINGS)
def test_penstock_serves_and_extends_what_a_real_broker_stored(
    ending: str,
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
    if "ipv6" in ending:
        place.ip = "::1"
    server = rocketmq(place, **ENDINGS[ending])
    client.open(place)
    ordinary = make_wanted("orders", 4, ORDINARY, seed=1)
    ordinary += make_batches(BATCHES, 1) + make_compressible(COMPRESSED, 1)
    known = write_every_kind(place, client, sides, ordinary)
    server_queues = queues_of(place)
    pulled = sides.pulled(place, server_queues)
    holds(pulled, known)
    assert {row["born_host"][0] for row in pulled.values()} == {"[" if "ipv6" in ending else "1"}
    if ending == "stopped-ipv6":
        server.stop()
        client.ask("close")
    else:
        more = make_wanted("orders", 4, 20_000, seed=2)
        sides.begin_sending(place, more)
        sides.await_receipts(3000)
        server.kill()
        outcome, acknowledged = sides.end_sending(place, more)
        assert "failure" in outcome
        known |= acknowledged
        client.ask("close")
        # It saves these every 10 s. Without them RocketMQ would deliver all delayed ones once more:
        # here the index says which have come.
        for name in ("delayOffset.json", "delayOffset.json.bak"):
            (place.store / "config" / name).unlink(missing_ok=True)

    stored = sides.stored(place)
    same(stored, sides.opened_by_classes(place, "5.3"))
    if ending == "stopped-ipv6":
        sides.verify(place)

    groups, offsets = kept(place)
    broker = penstock(place)
    topics = sorted({topic for topic, _, _ in stored})
    served = sides.consumed(broker, topics)
    same(served, sides.as_consumers_see(pulled, stored))
    known |= produce(broker, make_wanted("orders", 4, APPENDED, seed=3)).finish()
    served = sides.consumed(broker, topics)
    holds(served, known)
    ask_for_some(broker, sides, served, by_key, same)
    broker.stop()
    sides.verify(place)
    same(sides.as_consumers_see(pulled, sides.stored(place)), served)
    groups_then, offsets_then = kept(place)
    assert groups <= groups_then and offsets.items() <= offsets_then.items()
    record_property("messages", len(served))


def ask_for_some(
    broker: Any, sides: Any, served: Any, by_key: Callable[..., Any], same: Callable[..., None]
) -> None:
    """Our client finds messages by key and by id, those RocketMQ indexed and our own."""
    dice = random.Random(1)
    queries, expected = by_key(
        {key: row for key, row in served.items() if row["unique_key"] is not None}
    )
    chosen = dice.sample(range(len(queries)), ASKED)
    found = sides.found(broker, [queries[number] for number in chosen])
    different = [
        (queries[number], ids, expected[number])
        for number, ids in zip(chosen, found, strict=True)
        if ids != expected[number]
    ]
    assert different == []
    some = {key: served[key] for key in dice.sample(sorted(served), ASKED)}
    same(sides.found_by_id(broker, [row["message_id"] for row in some.values()]), some)


def kept(place: Any) -> tuple[set[str], dict[str, Any]]:
    """The groups, and the offsets of those whose place is not moved by the broker itself."""
    config = place.store / "config"
    groups = load_document(config / "subscriptionGroup.json", lambda document: document)
    offsets = load_document(config / "consumerOffset.json", lambda document: document)
    table = offsets.get("offsetTable", {}).items()
    names = set(groups["subscriptionGroupTable"])
    assert names, "the broker has built-in groups"
    return names, {key: row for key, row in table if not key.endswith(f"@{TRANSACTION_GROUP}")}


def queues_of(place: Any) -> list[tuple[str, int]]:
    found = (place.store / "consumequeue").glob("*/*")
    return sorted((each.parent.name, int(each.name)) for each in found)
