"""Batches, compressed bodies, IPv6 addresses and checksums, from a producer through a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client import BatchMessage, Consumer, Producer, aio
from penstock.maintenance.verify.check import verify_store
from penstock.shared.errors import InvalidMessage
from penstock.shared.formats.message_id import parse_message_id
from penstock.shared.formats.record_crc import Checksum

WAIT_S = 60


def consume(broker: Any, topic: str) -> list[Any]:
    with Consumer(broker.consume, topic, follow=False) as consumer:
        return sorted(consumer, key=lambda message: message.physical_offset)


def test_a_batch_is_stored_together_with_one_receipt(broker: Any) -> None:
    """The first one also: its topic's queues are not known yet when it is sent."""
    messages = [BatchMessage(b"%d" % i, tags="t", keys=f"k{i}", flag=i) for i in range(5)]
    with Producer(broker.produce) as producer:
        for number in range(3):
            receipt = producer.send_batch("batches", messages, shard="s").result(WAIT_S)
            producer.send("batches", b"single", shard="s")
            assert receipt.queue_offset == number * 6
        ids, keys = receipt.message_id.split(","), receipt.unique_key.split(",")
        with pytest.raises(InvalidMessage, match="retry"):
            producer.send_batch("%RETRY%g", [b"x"])
        with pytest.raises(InvalidMessage, match="holds no message"):
            producer.send_batch("batches", [])
        with pytest.raises(InvalidMessage, match="the batch is larger than"):
            producer.send_batch("batches", [bytes(40_000)] * 2)
    found = [message for message in consume(broker, "batches") if message.message_id in ids]
    assert [message.message_id for message in found] == ids
    assert [message.unique_key for message in found] == keys
    assert [message.body for message in found] == [b"0", b"1", b"2", b"3", b"4"]
    assert [(m.tags, m.keys, m.flag) for m in found] == [("t", f"k{i}", i) for i in range(5)]


def test_a_batch_from_a_coroutine(broker: Any) -> None:
    async def run() -> Any:
        async with aio.Producer(broker.produce, compression="zstd") as producer:
            first = producer.send_batch("aio-batches", [b"a", b"b"], queue=0)
            single = producer.send("aio-batches", b"c" * 9000, queue=0, wait=False)
            found = await first, await single
            await producer.send("aio-batches", b"on disk, as all before it", queue=0)
            return found

    receipt, single = asyncio.run(run())
    assert (receipt.queue_offset, single.queue_offset) == (0, 2)
    assert receipt.message_id.count(",") == 1
    last = consume(broker, "aio-batches")[2]
    assert (last.body, last.compression, last.properties["WAIT"]) == (b"c" * 9000, "zstd", "false")


@pytest.mark.parametrize("compression", ["zlib", "lz4", "zstd"])
def test_large_bodies_are_compressed_and_come_back(broker: Any, compression: str) -> None:
    topic, text = f"small-{compression}", b"all work and no play " * 250
    with Producer(broker.produce, compression=compression) as producer:
        receipt = producer.send(topic, text).result(WAIT_S)
        producer.send(topic, b"x" * 4095).result(WAIT_S)
        producer.send(topic, bytes(range(256)) * 16, ack="durable").result(WAIT_S)
    large, small, _ = consume(broker, topic)
    assert (large.body, large.compression) == (text, compression)
    assert large.message_id == receipt.message_id and len(large.stored_body) < 1000
    assert (small.compression, len(small.stored_body)) == (None, 4095)


@pytest.mark.parametrize("prop_crc", [False, True])
def test_a_broker_with_an_ipv6_address_and_checksums(
    start_broker: Callable[..., Any], prop_crc: bool
) -> None:
    settings = {"broker_ip": '"2001:db8::2"', "enabled_append_prop_crc": str(prop_crc).lower()}
    broker = start_broker(**settings)
    with Producer(broker.produce) as producer:
        early = producer.send("v6", b"before the broker has said what it wants", queue=0)
        batch = producer.send_batch("v6", [b"a", b"b"], queue=0)
        receipt = early.result(WAIT_S)
        assert batch.result(WAIT_S).queue_offset == 1
        receipts = [producer.send("v6", b"%d" % i, queue=0).result(WAIT_S) for i in range(3)]
    assert len(receipt.message_id) == 56
    host, position = parse_message_id(receipts[-1].message_id)
    assert host[:4] == b"\x20\x01\x0d\xb8" and position == receipts[-1].physical_offset
    found = consume(broker, "v6")
    assert [message.message_id for message in found][-3:] == [r.message_id for r in receipts]
    assert found[0].store_host.startswith("[2001:db8::2]:")
    assert ("__CRC32#" in found[0].properties) is prop_crc
    report = verify_store(broker.store, checksum=Checksum.RECORD if prop_crc else Checksum.BODY)
    assert report.ok and report.messages == 6


def test_a_delayed_message_comes_where_topics_have_all_queues_that_there_may_be(
    start_broker: Callable[..., Any],
) -> None:
    """It waits in one of RocketMQ's own queues, which count for nobody. For want of a place for
    that one the reput ended again and again, and the broker with it."""
    broker = start_broker(max_queues=2)
    with Producer(broker.produce) as producer:
        producer.create_topic("full", 2)
        for queue in range(2):
            producer.send("full", b"now", queue=queue).result(60)
        producer.send("full", b"later", delay=0.01).result(60)
    found: list[bytes] = []
    with Consumer(broker.consume, "full") as consumer:
        while len(found) < 3:
            found += [message.body for message in consumer.poll(60.0)]
    assert sorted(found) == [b"later", b"now", b"now"]
