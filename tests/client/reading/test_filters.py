"""Filters against a broker: a filtered consumer sees what a plain filter over all messages sees."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock.cli.store.info import gather
from penstock.client import Consumer, Message, Producer, aio
from penstock.shared.errors import FilterError, InvalidArgument
from penstock.shared.store.directory import StoreDirectory

WAIT_S = 60
MESSAGES = 3000
QUEUES = 3
# Aa and BB share their hash, and so do AaAa, BBBB, AaBB
TAGS = ["Aa", "BB", "AaAa", "paid", "sent", None]


@pytest.fixture(scope="module")
def orders(broker: Any) -> list[Message]:
    """Topic `orders` with many tags and properties: all its messages, as they lie in queues."""
    with Producer(broker.produce) as producer:
        producer.create_topic("orders", QUEUES)
        for number in range(MESSAGES):
            properties = {"amount": str(number % 97), "region": "eu" if number % 3 else "us"}
            if number % 50 == 0:
                properties = {"amount": "a lot"}
            tags = TAGS[number * 7 % 13 % len(TAGS)]
            producer.send("orders", b"%d" % number, tags=tags, properties=properties)
        producer.flush(WAIT_S)
    with Consumer(broker.consume, "orders", follow=False) as consumer:
        found = list(consumer)
    assert len(found) == MESSAGES
    return found


def amount(message: Message) -> int:
    text = message.properties["amount"]
    return int(text) if text.isdigit() else -1


FILTERS: list[tuple[dict[str, str], Callable[[Message], bool]]] = [
    ({"tags": "paid"}, lambda m: m.tags == "paid"),
    ({"tags": "Aa"}, lambda m: m.tags == "Aa"),
    ({"tags": "BB || sent"}, lambda m: m.tags in ("BB", "sent")),
    ({"tags": "nobody || AaBB"}, lambda m: False),
    ({"tags": "*"}, lambda m: True),
    ({"sql": "amount > 90"}, lambda m: amount(m) > 90),
    (
        {"sql": "region IN ('us') AND amount BETWEEN 10 AND 20 OR TAGS = 'paid'"},
        # an amount that is no number makes the message not match, whatever follows
        lambda m: (
            amount(m) >= 0
            and (m.tags == "paid" or m.properties["region"] == "us" and 10 <= amount(m) <= 20)
        ),
    ),
    ({"sql": "region IS NULL"}, lambda m: "region" not in m.properties),
    ({"sql": "amount = 'no such'"}, lambda m: False),
]


def by_queue(found: list[Message]) -> dict[int, list[bytes]]:
    return {
        queue: [message.body for message in found if message.queue_id == queue]
        for queue in range(QUEUES)
    }


@pytest.mark.parametrize(("chosen", "plain"), FILTERS, ids=[str(each) for each, _ in FILTERS])
@pytest.mark.parametrize("start", ["earliest", 400])
def test_a_filtered_consumer_sees_what_a_plain_filter_sees(
    broker: Any,
    orders: list[Message],
    chosen: dict[str, str],
    plain: Callable[[Message], bool],
    start: Any,
) -> None:
    first = 0 if start == "earliest" else start
    wanted = [m for m in orders if plain(m) and m.queue_offset >= first]
    with Consumer(broker.consume, "orders", start=start, follow=False, **chosen) as consumer:
        assert by_queue(list(consumer)) == by_queue(wanted)
        assert sum(consumer.positions.values()) == MESSAGES, "it has passed what did not match"

    async def collect() -> list[Message]:
        async with aio.Consumer(
            broker.consume, "orders", start=start, follow=False, **chosen
        ) as consumer:
            return [message async for message in consumer]

    assert by_queue(asyncio.run(asyncio.wait_for(collect(), WAIT_S))) == by_queue(wanted)


@pytest.mark.parametrize("chosen", [{"tags": "paid"}, {"sql": "TAGS = 'paid'"}])
def test_a_follower_is_woken_by_what_matches_and_stays_behind_what_does_not(
    broker: Any, chosen: dict[str, str]
) -> None:
    topic = "follow-" + next(iter(chosen))
    seen: list[bytes] = []

    def follow() -> None:
        with Consumer(broker.consume, topic, **chosen) as consumer:
            while len(seen) < 5:
                seen.extend(message.body for message in consumer.poll(WAIT_S))

    follower = threading.Thread(target=follow)
    with Producer(broker.produce) as producer:
        producer.create_topic(topic, 2)
        follower.start()
        for number in range(500):
            tags = "paid" if number % 100 == 7 else "sent"
            producer.send(topic, b"%d" % number, tags=tags).result(WAIT_S)
    follower.join(WAIT_S)
    assert sorted(map(int, seen)) == [7, 107, 207, 307, 407]


@pytest.mark.parametrize(
    ("chosen", "kind", "said"),
    [
        ({"tags": " || "}, FilterError, "names no tag"),
        ({"sql": "a >"}, FilterError, "at its end"),
        ({"sql": "a = 1", "tags": "x"}, FilterError, "both tags and an SQL92 filter"),
        ({"sql": "a = 1", "group": "no good"}, InvalidArgument, "group"),
    ],
)
def test_a_filter_that_cannot_be_understood_is_refused_before_anybody_is_asked(
    chosen: dict[str, str], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        Consumer("tcp://127.0.0.1:1", "orders", **chosen)


def test_a_broker_that_does_not_filter_by_sql92_says_so(start_broker: Callable[..., Any]) -> None:
    broker = start_broker(enable_property_filter="false")
    with Producer(broker.produce) as producer:
        for tags in ("a", "b"):
            producer.send("orders", b"", tags=tags).result(WAIT_S)
    with (
        Consumer(broker.consume, "orders", sql="a = 1", follow=False) as consumer,
        pytest.raises(FilterError, match="enable_property_filter"),
    ):
        list(consumer)
    with Consumer(broker.consume, "orders", tags="b", follow=False) as consumer:
        assert [message.tags for message in consumer] == ["b"]


def test_a_named_sql92_filter_is_written_down_and_shown(start_broker: Callable[..., Any]) -> None:
    broker = start_broker()
    with Producer(broker.produce) as producer:
        producer.send("orders", b"", properties={"n": "7"}).result(WAIT_S)
    chosen = {"sql": "n > 5", "group": "billing", "follow": False}
    with Consumer(broker.consume, "orders", **chosen) as consumer:
        assert len(list(consumer)) == 1
    with Consumer(broker.consume, "orders", tags="a", group="tagged", follow=False) as consumer:
        assert list(consumer) == []
    assert broker.stop() == 0
    with StoreDirectory(broker.store) as store:
        (shown,) = gather(store)["consumer_filters"]
    assert shown == {
        "topic": "orders",
        "group": "billing",
        "type": "SQL92",
        "expression": "n > 5",
        "dead": False,
        "problem": "",
    }


@pytest.mark.parametrize("chosen", [{}, {"tags": "a"}])
def test_a_consumer_behind_the_end_of_a_queue_goes_on_at_that_end(
    broker: Any, chosen: dict[str, str]
) -> None:
    """After a loss a queue is shorter than a consumer remembers: what comes next is not missed."""
    topic = "behind" + "".join(chosen)
    with Producer(broker.produce) as producer:
        producer.create_topic(topic, 1)
        producer.send(topic, b"0", tags="a").result(WAIT_S)
        with Consumer(broker.consume, topic, start=7, **chosen) as consumer:
            while consumer.positions != {0: 1}:
                assert consumer.poll(0.1) == []
            producer.send(topic, b"1", tags="a").result(WAIT_S)
            assert [message.body for message in consumer.poll(WAIT_S)] == [b"1"]
