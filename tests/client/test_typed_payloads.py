"""Objects through a broker, by every way of sending there is: the reader can tell what they are."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import msgspec
import pytest

from penstock.client import BatchMessage, Consumer, GroupConsumer, Producer, aio
from penstock.shared.errors import InvalidMessage

MSGPACK = {"content-type": "application/msgpack"}


class Order(msgspec.Struct):
    number: int


@dataclasses.dataclass
class Bill:
    number: int


def read(broker: Any, topic: str, count: int) -> list[Any]:
    with Consumer(broker.consume, topic) as consumer:
        found: list[Any] = []
        while len(found) < count:
            found += consumer.poll(60.0)
        return found


def test_each_way_of_sending_takes_objects_beside_bytes(broker: Any) -> None:
    with Producer(broker.produce, group="payloads") as producer:
        producer.create_topic("payloads", 1)
        sent: list[Any] = [Order(0), Bill(1), {"number": 2}]
        for each in sent:
            producer.send("payloads", each, keys="k").result(60)
        producer.send("payloads", Order(3), properties=MSGPACK | {"own": "x"}).result(60)
        producer.send_batch("payloads", [Bill(4), BatchMessage(Order(5), "tag"), b"raw"]).result(60)
        producer.send_oneway("payloads", Order(7))
        producer.send("payloads", Order(8), delay=0.01).result(60)
        producer.flush(60)
        with producer.transaction("payloads") as transaction:
            transaction.send(Order(9))
    messages = read(broker, "payloads", 10)
    typed = [each for each in messages if each.body != b"raw"]
    assert sorted(each.decode(Order).number for each in typed) == [0, 1, 2, 3, 4, 5, 7, 8, 9]
    kinds = {each.properties["content-type"] for each in typed}
    assert kinds == {"application/json", "application/msgpack"}
    (packed,) = [each for each in typed if each.properties.get("own")]
    assert packed.body == msgspec.msgpack.encode(Order(3)) and packed.decode() == {"number": 3}
    (raw,) = [each for each in messages if each.body == b"raw"]
    assert "content-type" not in raw.properties
    with pytest.raises(InvalidMessage, match="payloads, queue 0, offset"):
        raw.decode(Order)


def test_a_large_object_is_compressed_as_bytes_are(broker: Any) -> None:
    with Producer(broker.produce, compression="zlib", compress_over_bytes=100) as producer:
        producer.create_topic("large", 1)
        producer.send("large", {"text": "a" * 5000}).result(60)
    (message,) = read(broker, "large", 1)
    assert message.compression == "zlib" and message.decode() == {"text": "a" * 5000}


def test_what_has_no_codec_is_refused_before_anything_is_sent(broker: Any) -> None:
    with Producer(broker.produce) as producer:
        producer.create_topic("wrong", 1)
        for body, said in (({"a": object()}, "cannot be encoded"), (Order, "body is not bytes")):
            wrong: Any = body
            with pytest.raises(InvalidMessage, match=said):
                producer.send("wrong", wrong)
        with pytest.raises(InvalidMessage, match=r"messages\[1\] is not a BatchMessage"):
            producer.send_batch("wrong", [Order(1), "text"])  # type: ignore[list-item]  # wrong on purpose
        assert "0 without an outcome" in repr(producer)


def test_groups_requests_and_coroutines_have_them_too(broker: Any) -> None:
    async def ask() -> tuple[Any, Any]:
        async with aio.Producer(broker.produce) as producer:
            await producer.create_topic("asked", 1)
            asking = asyncio.ensure_future(producer.request("asked", Order(20), timeout=60))
            async with aio.GroupConsumer(
                broker.produce, "askers", "asked", start="first"
            ) as consumer:
                async for message in consumer:
                    order = message.decode(Order)
                    await message.reply(Bill(order.number + 1))
                    message.ack()
                    break
            return order, (await asking).decode(Bill)

    assert asyncio.run(ask()) == (Order(20), Bill(21))


def test_a_group_message_is_decoded_in_a_handler(broker: Any) -> None:
    with Producer(broker.produce) as producer:
        producer.create_topic("handled", 1)
        producer.send("handled", Order(5)).result(60)
    consumer = GroupConsumer(broker.produce, "handlers", "handled", start="first")
    seen: list[Order] = []

    def handle(message: Any) -> None:
        seen.append(message.decode(Order))
        assert "Order" not in message._repr_html_() and "handled" in message._repr_html_()
        consumer.stop()

    consumer.run(handle, workers=1)
    assert seen == [Order(5)]
