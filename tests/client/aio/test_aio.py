"""The asyncio clients against a broker: the same names, the same outcomes, nothing that blocks."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import client
from penstock.client import aio
from penstock.client.aio import Consumer, Message, Producer
from penstock.client.aio import transacting as aio_transacting
from penstock.client.core.sending.producer_core import ProducerCore
from penstock.client.sending.transacting import open_loop
from penstock.shared.errors import (
    ConnectError,
    InvalidArgument,
    InvalidMessage,
    QueueNotFound,
    StoreUnavailable,
    TopicNotFound,
)


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine; it may take a while, but not for ever."""
    asyncio.run(asyncio.wait_for(test(), 30))


@pytest.mark.parametrize("name", ["Producer", "Consumer", "GroupConsumer", "MessageQuery"])
def test_the_names_and_arguments_are_those_of_the_synchronous_client(name: str) -> None:
    ours, theirs = getattr(aio, name), getattr(client, name)
    public = {each for each in dir(theirs) if not each.startswith("_")} - {"ask", "close"}
    assert public <= set(dir(ours))
    for method in ("__init__", *sorted(public)):
        if callable(getattr(theirs, method)):
            found, expected = (inspect.signature(getattr(of, method)) for of in (ours, theirs))
            assert found.parameters == expected.parameters, method


def test_messages_go_out_and_come_back(broker: Any) -> None:
    async def test() -> None:
        async with Producer(broker.produce) as producer:
            await producer.create_topic("aio", 3)
            assert (await producer.topics())["aio"] == 3
            futures = [producer.send("aio", b"%d" % i, keys=f"k{i}", shard="s") for i in range(200)]
            receipts = await asyncio.gather(*futures)
        assert [receipt.queue_offset for receipt in receipts] == list(range(200))
        async with Consumer(broker.consume, "aio", follow=False) as consumer:
            found = [message async for message in consumer]
            assert [message.body for message in found] == [b"%d" % i for i in range(200)]
            assert [m.message_id for m in found] == [receipt.message_id for receipt in receipts]
            assert consumer.positions[receipts[0].queue_id] == 200 and consumer.skipped == 0
            assert await consumer.poll(1) == []

    run(test)


def test_following_wakes_when_something_comes(broker: Any) -> None:
    async def test() -> None:
        seen: list[Message] = []

        async def follow() -> None:
            async with Consumer(broker.consume, "aio-follow") as consumer:
                async for message in consumer:
                    seen.append(message)
                    if len(seen) == 20:
                        return

        following = asyncio.create_task(follow())
        async with Producer(broker.produce) as producer:
            for number in range(20):
                await producer.send("aio-follow", b"%d" % number, queue=0)
            await following
        assert [int(message.body) for message in seen] == list(range(20))

    run(test)


def test_the_event_loop_goes_on_meanwhile(broker: Any) -> None:
    async def test() -> None:
        async with Consumer(broker.consume, "aio-quiet") as consumer:
            polling = asyncio.create_task(consumer.poll(60))
            for _ in range(11):
                await asyncio.sleep(0.005)
            assert not polling.done()
            polling.cancel()
            await asyncio.wait([polling])
            assert await consumer.poll(0.01) == []

    run(test)


def test_flush_and_drain_wait_for_outcomes(broker: Any) -> None:
    async def test() -> None:
        async with Producer(broker.produce) as producer:
            futures = []
            for _ in range(300):
                futures.append(producer.send("aio-flush", b"x" * 5000))
                await producer.drain()
            await producer.flush(60)
            assert all(future.done() for future in futures)
            await asyncio.gather(*futures)

    run(test)


@pytest.mark.parametrize("seen", [False, True])
def test_a_block_that_an_error_ends_says_what_nobody_has_seen_fail(
    broker: Any, caplog: pytest.LogCaptureFixture, seen: bool
) -> None:
    async def test() -> None:
        async with Producer(broker.produce) as producer:
            await producer.create_topic("aio-unseen", 1)
        with pytest.raises(ZeroDivisionError):
            async with Producer(broker.produce) as producer:
                # it does not know yet how many queues there are
                future = producer.send("aio-unseen", b"x", queue=99)
                if seen:
                    with pytest.raises(QueueNotFound):
                        await future
                raise ZeroDivisionError

    run(test)
    said = [each.message for each in caplog.records if each.name.startswith("penstock")]
    assert len(said) == (not seen)
    assert seen or "leaving" in said[0] and "aio-unseen" in said[0]


def test_leaving_the_block_waits_for_outcomes(broker: Any) -> None:
    async def test() -> None:
        async with Producer(broker.produce) as producer:
            futures = [producer.send("aio-left", b"x") for _ in range(100)]
        assert len({(await f).physical_offset for f in futures}) == 100

    run(test)


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (InvalidArgument, {"topic": "a b"}),
        (InvalidMessage, {"body": "text"}),
        (InvalidMessage, {"body": b"x" * 65_537}),
        (InvalidArgument, {"ack": "all"}),
        (QueueNotFound, {"queue": 99}),
    ],
)
def test_what_is_wrong_is_a_typed_error_and_the_connection_goes_on(
    broker: Any, error: type[Exception], arguments: dict[str, Any]
) -> None:
    async def test() -> None:
        usual: dict[str, Any] = {"topic": "aio-good", "body": b"x"}
        async with Producer(broker.produce) as producer:
            for _ in range(2):
                with pytest.raises(error):
                    await producer.send(**(usual | arguments))
                assert (await producer.send(**usual)).topic == "aio-good"

    run(test)


def test_a_producer_whose_task_has_failed_keeps_no_socket(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(core: ProducerCore, parts: list[bytes], now_ms: int) -> None:
        raise ZeroDivisionError

    async def test() -> None:
        monkeypatch.setattr(ProducerCore, "received", fail)
        async with Producer(broker.produce) as producer:
            with pytest.raises(StoreUnavailable, match="has failed"):
                await producer.send("aio-failed", b"x")
            with pytest.raises(StoreUnavailable):
                producer.send("aio-failed", b"x")
        assert producer._loop._socket.closed and producer._loop._context.closed
        with pytest.raises(ZeroDivisionError):
            await producer._loop._task

    run(test)


@pytest.mark.parametrize("turns", range(1, 6))
def test_a_producer_whose_end_is_cancelled_is_closed_all_the_same(broker: Any, turns: int) -> None:
    """Wherever its task is by then."""

    async def test() -> None:
        producer = await Producer(broker.produce).__aenter__()
        await producer.create_topic("aio-end", 1)
        asking = asyncio.create_task(producer.request("aio-end", b"x", timeout=20))
        while producer._requester is None or not producer._requester._waiting:
            await asyncio.sleep(0)
        ending = asyncio.create_task(producer.__aexit__(None, None, None))
        for _ in range(turns):
            await asyncio.sleep(0)
        was_cancelled = ending.cancel()
        await asyncio.wait([ending, asking])
        assert ending.cancelled() == was_cancelled
        assert producer._loop._socket.closed and producer._loop._context.closed
        assert isinstance(asking.exception(), StoreUnavailable)
        reading = producer._requester._task
        assert reading is None or reading.done()

    run(test)


def test_a_producer_whose_beginning_is_cancelled_leaves_nothing(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    opened: list[Any] = []

    def slow(*arguments: Any) -> Any:
        begun.set()
        assert may_go_on.wait(60)
        opened.append(open_loop(*arguments))
        return opened[0]

    async def test() -> None:
        beginning = asyncio.create_task(Producer(store=broker.store, group="g").__aenter__())
        await asyncio.to_thread(begun.wait, 30)
        beginning.cancel()
        await asyncio.wait([beginning])
        assert beginning.cancelled()
        may_go_on.set()
        while not opened or any(each.is_alive() for each in opened[0]._threads):
            await asyncio.sleep(0)

    monkeypatch.setattr(aio_transacting, "open_loop", slow)
    run(test)


def test_a_cancelled_send_harms_nobody(broker: Any) -> None:
    async def test() -> None:
        async with Producer(broker.produce) as producer:
            cancelled = producer.send("aio-cancel", b"x")
            cancelled.cancel()
            assert (await producer.send("aio-cancel", b"y")).topic == "aio-cancel"
            await producer.flush(60)

    run(test)


def test_a_cancelled_poll_loses_nothing(broker: Any) -> None:
    async def test() -> None:
        async with (
            Producer(broker.produce) as producer,
            Consumer(broker.consume, "aio-poll") as consumer,
        ):
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(consumer.poll(None), 0.05)
            await producer.send("aio-poll", b"x")
            assert [message.body for message in await consumer.poll(60)] == [b"x"]

    run(test)


@pytest.mark.parametrize("direct", [True, False])
def test_a_backlog_comes_whole_however_often_its_reader_is_cancelled(
    direct: bool, broker: Any
) -> None:
    async def test() -> None:
        topic = f"aio-backlog-{direct}"
        async with Producer(broker.produce) as producer:
            await producer.create_topic(topic, 1)
            sent = [producer.send(topic, b"%04d" % n + bytes(2000)) for n in range(2000)]
            await asyncio.gather(*sent)
        seen: list[int] = []
        cancelled = 0
        async with Consumer(broker.consume, topic, follow=False, direct=direct) as consumer:
            while len(seen) < 2000:
                # as many turns of the loop as a poll may take, and none, and all between
                poll = asyncio.ensure_future(consumer.poll(None))
                for _ in range(cancelled % 9):
                    await asyncio.sleep(0)
                poll.cancel()
                try:
                    batch = await poll
                except asyncio.CancelledError:
                    cancelled += 1
                    batch = await consumer.poll(None) if cancelled % 9 == 0 else []
                seen += [int(message.body[:4]) for message in batch]
            assert (consumer._core._files._run_id is not None) == direct
        assert seen == list(range(2000)) and cancelled > 9

    run(test)


def test_outside_of_its_block_a_client_says_so(broker: Any) -> None:
    async def test() -> None:
        producer, consumer = Producer(broker.produce), Consumer(broker.consume, "aio")
        for word in ("not open", "is closed"):
            with pytest.raises(StoreUnavailable, match=word):
                producer.send("aio-closed", b"x")
            with pytest.raises(StoreUnavailable, match=word):
                await producer.flush(1)
            with pytest.raises(StoreUnavailable, match=word):
                await producer.topics()
            with pytest.raises(StoreUnavailable, match="not open"):
                await consumer.poll(1)
            with pytest.raises(StoreUnavailable, match="not open"):
                async for _ in consumer:
                    pass
            if word == "not open":
                async with producer, consumer:
                    await producer.send("aio-closed", b"x")

    run(test)


def test_a_topic_that_is_not_there_is_a_typed_error(broker: Any) -> None:
    async def test() -> None:
        async with Consumer(broker.consume, "aio-nowhere", follow=False) as consumer:
            with pytest.raises(TopicNotFound):
                await consumer.poll(10)

    run(test)


def test_a_broker_that_goes_away_is_a_typed_error_in_time(broker_in: Any, tmp_path: Path) -> None:
    gone = broker_in(tmp_path)

    async def test() -> None:
        async with (
            Producer(gone.produce, timeout_ms=200) as producer,
            Consumer(gone.consume, "t", timeout_ms=200) as consumer,
        ):
            gone.kill()
            with pytest.raises(ConnectError):
                await producer.send("t", b"x")
            with pytest.raises(ConnectError):
                await producer.topics(timeout=0.1)
            late = producer.send("t", b"x")
            with pytest.raises(ConnectError):
                await producer.flush(0.05)
            with pytest.raises(ConnectError):
                await late
            with pytest.raises(ConnectError):
                await consumer.poll(10)

    run(test)


def test_many_clients_share_one_event_loop(broker: Any) -> None:
    async def produce(number: int) -> None:
        async with Producer(broker.produce) as producer:
            for i in range(50):
                producer.send("aio-many", b"%d %d" % (number, i), shard=str(number))

    async def test() -> None:
        await asyncio.gather(*(produce(number) for number in range(10)))
        seen: dict[int, list[int]] = {}
        async with Consumer(broker.consume, "aio-many", follow=False) as consumer:
            async for message in consumer:
                number, i = map(int, message.body.split())
                seen.setdefault(number, []).append(i)
        assert seen == {number: list(range(50)) for number in range(10)}

    run(test)


def test_nothing_more_is_taken_while_too_much_waits_for_the_broker(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it is sent. Awaiting what is on its way makes room again."""

    async def test() -> None:
        async with Producer(broker.produce, group="aio-room") as producer:
            await producer.send("aio-room", b"first")
            async with producer.transaction("aio-room") as transaction:
                monkeypatch.setattr("penstock.client.aio.producer.MAX_WAITING_BYTES", 0)
                on_its_way = producer.send("aio-room", b"second")
                with pytest.raises(StoreUnavailable, match="bytes wait for the broker"):
                    producer.send("aio-room", b"no room")
                with pytest.raises(StoreUnavailable, match="bytes wait for the broker"):
                    producer.send_batch("aio-room", [b"no room"])
                with pytest.raises(StoreUnavailable, match="bytes wait for the broker"):
                    await transaction.send(b"no room")
                await on_its_way
                await transaction.send(b"third")
            await producer.send("aio-room", b"fourth")
        async with Consumer(broker.consume, "aio-room", follow=False) as consumer:
            bodies = [message.body async for message in consumer]
        assert sorted(bodies) == [b"first", b"fourth", b"second", b"third"]

    run(test)
