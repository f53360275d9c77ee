"""Topics are described, updated and deleted while producers and consumers use them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Consumer, Producer, aio
from penstock.client.core import consumer_core
from penstock.errors import NoPermission, PenstockError, QueueNotFound, TopicNotFound
from penstock.maintenance.verify.check import verify_store
from penstock.shared.layout import StorePaths
from penstock.shared.queue.deleted_topics import load_deleted_topics

WAIT_S = 60


def bodies(consume: str, topic: str) -> list[tuple[int, int, bytes]]:
    """Queue, offset and body of all that a topic has."""
    with Consumer(consume, topic, follow=False) as consumer:
        return sorted((m.queue_id, m.queue_offset, bytes(m.body)) for m in consumer)


def await_true(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def send(producer: Producer, topic: str, count: int, body: bytes = b"x", **to: Any) -> None:
    for future in [producer.send(topic, b"%s-%d" % (body, n), **to) for n in range(count)]:
        future.result(WAIT_S)


def test_what_is_set_of_a_topic_is_told_and_changed(broker: Any) -> None:
    with Producer(broker.produce) as producer:
        producer.create_topic("set", 4)
        assert producer.update_topic("set", read_queues=8).read_queues == 8
        said = producer.update_topic("set", attributes={"+message.type": "FIFO"}, order=True)
        assert (said.write_queues, said.order) == (4, True)
        assert producer.describe_topic("set") == said.__class__(
            **{name: getattr(said, name) for name in said.__struct_fields__}
            | {"request": producer.describe_topic("set").request - 1}
        )
        with pytest.raises(TopicNotFound, match="nowhere"):
            producer.describe_topic("nowhere")
        with pytest.raises(TopicNotFound):
            producer.update_topic("nowhere", perm=4)


def test_an_asyncio_program_does_the_same(broker: Any) -> None:
    async def program() -> None:
        async with aio.Producer(broker.produce) as producer:
            await producer.create_topic("aio", 2)
            said = await producer.update_topic("aio", perm=4)
            assert (said.read_queues, said.write_queues, said.perm) == (2, 2, 4)
            assert (await producer.describe_topic("aio")).perm == 4
            assert (await producer.delete_topic("aio")).deleted
            with pytest.raises(TopicNotFound):
                await producer.describe_topic("aio")

    asyncio.run(program())


def test_permission_is_kept_by_route_and_pull(broker: Any) -> None:
    with Producer(broker.produce) as producer:
        producer.create_topic("rights", 2)
        send(producer, "rights", 3)
        producer.update_topic("rights", perm=4)
        assert len(bodies(broker.consume, "rights")) == 3
        with Producer(broker.produce) as other, pytest.raises(NoPermission, match="takes no"):
            other.send("rights", b"x").result(WAIT_S)
        producer.update_topic("rights", perm=2)
        with pytest.raises(NoPermission, match="cannot be read"):
            bodies(broker.consume, "rights")
        producer.update_topic("rights", perm=6)
        assert len(bodies(broker.consume, "rights")) == 3


def test_a_consumer_that_waits_is_told_when_it_may_not_read_any_more(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_s = 30
    monkeypatch.setattr(consumer_core, "WAIT_MS", held_s * 1000)
    with Producer(broker.produce) as producer:
        producer.create_topic("held", 1)
        send(producer, "held", 1)
        for change, error in (
            (lambda: producer.update_topic("held", perm=2), NoPermission),
            (lambda: producer.delete_topic("held"), TopicNotFound),
        ):
            told: list[PenstockError] = []
            with Consumer(broker.consume, "held", timeout_ms=4 * held_s * 1000) as consumer:
                assert len(consumer.poll(WAIT_S)) == 1

                def read(from_: Consumer = consumer, to: list[PenstockError] = told) -> None:
                    try:
                        from_.poll(WAIT_S)
                    except PenstockError as refused:
                        to.append(refused)

                reading = threading.Thread(target=read)
                reading.start()
                time.sleep(0.2)  # so that it is held, mostly: it is told either way
                began = time.monotonic()
                change()
                reading.join()
                assert [type(each) for each in told] == [error]
                assert time.monotonic() - began < held_s - 5, "it did not wait for the pull's end"
            if error is NoPermission:
                producer.update_topic("held", perm=6)


def test_a_consumer_of_all_queues_goes_on_when_some_go(broker: Any) -> None:
    with Producer(broker.produce) as producer:
        producer.create_topic("fewer", 4)
        send(producer, "fewer", 8)
        with Consumer(broker.consume, "fewer") as consumer:
            with Consumer(broker.consume, "fewer", queues=[3]) as of_one:
                seen = 0
                while seen < 8:
                    seen += len(consumer.poll(WAIT_S))
                while not of_one.poll(WAIT_S):
                    pass
                producer.update_topic("fewer", read_queues=2, write_queues=2)
                with pytest.raises(QueueNotFound, match="queues 0 to 1"):
                    of_one.poll(WAIT_S)
            with Producer(broker.produce) as other:
                send(other, "fewer", 4)
            while seen < 12:
                found = consumer.poll(WAIT_S)
                assert found and {message.queue_id for message in found} <= {0, 1}
                seen += len(found)
        assert len(bodies(broker.consume, "fewer")) < 12, "what was in the others is hidden"
        producer.update_topic("fewer", read_queues=4)
        assert len(bodies(broker.consume, "fewer")) == 12, "and was not deleted"


def test_a_topic_that_is_created_again_begins_at_0_and_has_nothing_of_the_old(
    broker_in: Callable[..., Any], tmp_path: Path
) -> None:
    broker = broker_in(tmp_path)
    paths = StorePaths(broker.store)
    with Producer(broker.produce) as producer:
        producer.create_topic("orders", 2)
        send(producer, "orders", 20, b"old")
        send(producer, "other", 5, b"kept")
        other = bodies(broker.consume, "other")
        assert producer.delete_topic("orders").deleted
        await_true(
            lambda: (
                not (paths.consume_queue / "orders").exists()
                and paths.deleted_queues.is_dir()
                and not any(paths.deleted_queues.iterdir())
            ),
            "the files are freed",
        )
        with pytest.raises(TopicNotFound):
            bodies(broker.consume, "orders")
        producer.create_topic("orders", 2)
        assert bodies(broker.consume, "orders") == []
        send(producer, "orders", 6, b"new")
    new = bodies(broker.consume, "orders")
    assert len(new) == 6 and {body[:3] for _, _, body in new} == {b"new"}
    assert {offset for _, offset, _ in new} <= set(range(6)) and (0, 0) in {k[:2] for k in new}
    assert bodies(broker.consume, "other") == other
    for ends in ("kill", "stop", "kill"):
        getattr(broker, ends)()
        assert verify_store(broker.store).problems == [], ends
        broker = broker_in(tmp_path)
        assert bodies(broker.consume, "orders") == new
        assert bodies(broker.consume, "other") == other
        with Producer(broker.produce) as producer:
            assert producer.send("orders", b"new-more", queue=1).result(WAIT_S).queue_offset >= 0
        new = bodies(broker.consume, "orders")
    (row,) = load_deleted_topics(paths.deleted_topics).rows
    assert row.topic == "orders" and row.is_done
