"""A queue that cannot be read keeps nobody from the others, and goes on when it is mended."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from penstock.client import Consumer, GroupConsumer, Producer, aio
from penstock.client.connecting.asker import Asker
from penstock.client.connecting.where import Where
from penstock.client.reading.one_message import pull_one
from penstock.shared.errors import QueueUnreadable
from penstock.shared.wire.messages import decode_consume_answer

pytestmark = pytest.mark.takes(90)

COUNT, QUEUES, BAD = 400, 3, 1
FILE_ENTRIES = 100
BODIES = {queue: [b"%d:%d" % (queue, n) for n in range(COUNT)] for queue in range(QUEUES)}
# what comes before the file that has changed is read
READABLE = BODIES | {BAD: BODIES[BAD][:FILE_ENTRIES]}
TIMEOUT_S = 60
WAYS = [{"direct": True}, {"direct": False}, {"tags": "all"}, {"sql": "n >= 0"}]


@pytest.fixture(scope="module")
def filled(start_shared_broker: Callable[..., Any]) -> Any:
    running = start_shared_broker(mapped_file_size_consume_queue_bytes=20 * FILE_ENTRIES)
    with Producer(store=running.store) as producer:
        producer.create_topic("orders", QUEUES)
        for n in range(COUNT):
            for queue, bodies in BODIES.items():
                number = {"n": str(n)}
                producer.send("orders", bodies[n], queue=queue, tags="all", properties=number)
    with Consumer(store=running.store, topic="orders", follow=False) as consumer:
        assert _by_queue(consumer) == BODIES, "the queues have their files"
    return running


@pytest.fixture(params=["zeros", "another queue's"])
def mend(request: Any, filled: Any) -> Iterator[Callable[[], None]]:
    """The second file of a queue has other bytes until this is called."""
    directory = filled.store / "consumequeue" / "orders"
    file = directory / str(BAD) / f"{20 * FILE_ENTRIES:020}"
    whole, other = file.read_bytes(), (directory / "0" / file.name).read_bytes()
    file.write_bytes(bytes(len(whole)) if request.param == "zeros" else other)
    yield lambda: None if file.write_bytes(whole) else None
    file.write_bytes(whole)


def _by_queue(messages: Iterable[Any]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {queue: [] for queue in BODIES}
    for each in messages:
        found[each.queue_id].append(each.body)
    return found


@pytest.mark.parametrize("way", WAYS)
def test_all_that_the_others_have_comes_before_the_error(
    filled: Any, mend: Callable[[], None], way: dict[str, Any]
) -> None:
    found: list[Any] = []
    with Consumer(store=filled.store, topic="orders", follow=False, **way) as consumer:
        with pytest.raises(QueueUnreadable) as raised:
            found += consumer  # a list takes what comes before the error
        assert f"topic orders, queue {BAD}, offset {FILE_ENTRIES}" in str(raised.value)
        assert "penstock store" in raised.value.hint
        assert consumer.positions[BAD] == FILE_ENTRIES and consumer.skipped == 0
        assert consumer.poll(0.1) == [], "it is not asked for at full speed"
        mend()
        found += consumer
    assert _by_queue(found) == BODIES


@pytest.mark.parametrize("mend", ["zeros"], indirect=True)
def test_a_message_that_is_pulled_alone_from_there_is_an_error(
    filled: Any, mend: Callable[[], None]
) -> None:
    where = Where(None, filled.consume, None).arguments("consumers")
    with closing(Asker("consumers", decode_consume_answer, **where)) as asker:
        with pytest.raises(QueueUnreadable, match="orders"):
            pull_one(asker, "orders", BAD, FILE_ENTRIES)
        mend()
        found = pull_one(asker, "orders", BAD, FILE_ENTRIES)
        assert found is not None and BODIES[BAD][FILE_ENTRIES] in found[1]


def test_a_consumer_that_follows_is_told_once_and_goes_on_with_what_comes_in_the_others(
    filled: Any,
) -> None:
    with Producer(store=filled.store) as producer:
        producer.create_topic("growing", 2)
        for n in range(2 * FILE_ENTRIES):
            producer.send("growing", b"%d" % n, queue=n % 2)
        producer.flush()
        with Consumer(store=filled.store, topic="growing", queues=[0], follow=False) as consumer:
            assert len(list(consumer)) == FILE_ENTRIES
        file = filled.store / "consumequeue" / "growing" / "0" / f"{0:020}"
        file.write_bytes(bytes(len(file.read_bytes())))
        with Consumer(store=filled.store, topic="growing") as consumer:
            found: list[Any] = []
            with pytest.raises(QueueUnreadable):
                while True:
                    found += consumer.poll(TIMEOUT_S)
            assert [each.queue_id for each in found] == [1] * FILE_ENTRIES
            producer.send("growing", b"new", queue=1)
            assert [each.body for each in consumer.poll(TIMEOUT_S)] == [b"new"]
            assert consumer.positions == {0: 0, 1: FILE_ENTRIES + 1}


def test_an_asyncio_consumer_gets_the_same(filled: Any, mend: Callable[[], None]) -> None:
    found: list[Any] = []

    async def read() -> None:
        async with aio.Consumer(store=filled.store, topic="orders", follow=False) as consumer:
            with pytest.raises(QueueUnreadable):
                async for each in consumer:
                    found.append(each)
            assert _by_queue(found) == READABLE
            mend()
            async for each in consumer:
                found.append(each)

    asyncio.run(read())
    assert _by_queue(found) == BODIES


@pytest.mark.parametrize("tags", ["", "all"])
def test_a_group_commits_what_the_others_have_and_where_the_queue_waits(
    filled: Any, mend: Callable[[], None], request: Any, tags: str
) -> None:
    found: list[Any] = []
    errors = 0
    deadline = time.monotonic() + TIMEOUT_S
    group = f"g{abs(hash(request.node.name))}"
    with GroupConsumer(
        store=filled.store, group=group, topics="orders", start="first", tags=tags
    ) as member:
        while not errors or len(found) < sum(map(len, READABLE.values())):
            assert time.monotonic() < deadline
            try:
                found += member.poll(1.0)
            except QueueUnreadable:
                errors += 1
            member.commit()
        assert _by_queue(found) == READABLE
        mend()
        while len(found) < QUEUES * COUNT and time.monotonic() < deadline:
            with suppress(QueueUnreadable):
                found += member.poll(1.0)
    assert _by_queue(found) == BODIES


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_handlers_go_on_with_the_others(
    filled: Any, mend: Callable[[], None], request: Any, kind: str
) -> None:
    """Nobody could call `run` again: it closes the consumer."""
    found: list[Any] = []
    group = f"g{abs(hash(request.node.name))}"
    arguments = {"store": filled.store, "group": group, "topics": "orders", "start": "first"}
    is_mended = threading.Event()

    def take(member: Any, message: Any) -> None:
        found.append(message)
        if len(found) == sum(map(len, READABLE.values())):
            mend()
            is_mended.set()
        if len(found) == QUEUES * COUNT:
            member.stop()

    async def run() -> None:
        async with aio.GroupConsumer(**arguments) as member:

            async def handler(message: Any) -> None:
                take(member, message)

            await asyncio.wait_for(member.run(handler, workers=1), TIMEOUT_S)

    if kind == "asyncio":
        asyncio.run(run())
    else:
        with GroupConsumer(**arguments) as member:
            limit = threading.Timer(TIMEOUT_S, member.stop)
            limit.start()
            member.run(lambda message: take(member, message), workers=1)
            limit.cancel()
    assert is_mended.is_set() and _by_queue(found) == BODIES
