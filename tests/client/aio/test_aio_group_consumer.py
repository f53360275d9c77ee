"""The asyncio member of a group: the same shapes as the synchronous one, in coroutines."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Producer
from penstock.client.aio import GroupConsumer
from penstock.client.aio.connection import Connection
from penstock.shared.errors import InvalidArgument, StoreUnavailable

WAIT_S = 60
# Members in coroutines, of which each is in the middle of a message until standard input ends.
PROGRAM = """
import asyncio, sys
from contextlib import AsyncExitStack
from penstock.client.aio import GroupConsumer

store, topic, how, *groups = sys.argv[1:]

async def handle(message):
    print("begin", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print("end", flush=True)

async def work(consumer):
    if how == "run":
        return await consumer.run(handle, workers=1)
    if how == "again":
        async for message in consumer:
            message.ack()
            break
    async for message in consumer:
        await handle(message)
        message.ack()

async def main():
    async with AsyncExitStack() as members:
        each = dict(store=store, topics=topic, start="first")
        made = [GroupConsumer(group=group, **each) for group in groups]
        await asyncio.gather(*[work(await members.enter_async_context(one)) for one in made])
    print("left", flush=True)

asyncio.run(main())
"""


@pytest.fixture
def topic(broker: Any, request: pytest.FixtureRequest) -> str:
    name = "a" + format(abs(hash(request.node.name)) % 10**9)
    with Producer(store=broker.store) as producer:
        producer.create_topic(name, 2)
        for number in range(20):
            producer.send(name, b"%d" % number, queue=number % 2)
    return name


def numbers() -> list[bytes]:
    return [b"%d" % number for number in range(20)]


def test_iterating_and_acknowledging(broker: Any, topic: str) -> None:
    async def some(count: int) -> list[bytes]:
        found = []
        async with (
            Connection(store=broker.store) as connection,
            await connection.group(topic, topic, start="first") as consumer,
        ):
            async for message in consumer:
                found.append(message.body)
                message.ack()
                if len(found) == count:
                    break
        return found

    first = asyncio.run(some(7))
    assert sorted(first + asyncio.run(some(13)), key=int) == numbers()


def test_a_handler_may_close_its_consumer(broker: Any, topic: str) -> None:
    async def test() -> float:
        member = GroupConsumer(store=broker.store, group=topic, topics=topic, start="first")

        async def handle(message: Any) -> None:
            await member.close()

        async with member as consumer:
            began = time.monotonic()
            await consumer.run(handle, workers=1)
            return time.monotonic() - began

    assert asyncio.run(test()) < 20, "it waited for itself"


@pytest.mark.parametrize(
    ("handler", "words", "wrong"),
    [
        (None, {}, "handler"),
        (b"handle", {}, "handler"),
        (print, {"workers": 0}, "workers"),
        (print, {"batch": 0}, "batch"),
        (print, {"batch": 1.5}, "batch"),
    ],
)
def test_what_cannot_be_run_is_told_before_anybody_is_asked(
    handler: Any, words: dict[str, Any], wrong: str
) -> None:
    async def main() -> None:
        with pytest.raises(InvalidArgument, match=wrong):
            await GroupConsumer(store="nowhere", group="g", topics="t").run(handler, **words)

    asyncio.run(main())


def test_handlers_are_coroutines_that_run_beside_each_other(broker: Any, topic: str) -> None:
    found: list[bytes] = []
    running = most = 0

    async def main() -> None:
        async with GroupConsumer(
            store=broker.store, group=topic, topics=topic, start="first"
        ) as consumer:

            async def handle(message: Any) -> None:
                nonlocal running, most
                running += 1
                most = max(most, running)
                await asyncio.sleep(0.02)
                running -= 1
                found.append(message.body)
                if len(found) == 20:
                    consumer.stop()

            await consumer.run(handle, workers=8)

    asyncio.run(main())
    assert sorted(found, key=int) == numbers()
    assert 1 < most <= 8


def test_an_ordinary_function_is_a_handler_too_and_what_cannot_be_called_is_none(
    broker: Any, topic: str
) -> None:
    found: list[bytes] = []

    async def main() -> None:
        async with GroupConsumer(
            store=broker.store, group=topic, topics=topic, start="first", max_times=0
        ) as consumer:
            with pytest.raises(InvalidArgument, match="handler"):
                await consumer.run(None)  # type: ignore[arg-type]  # it is wrong

            def handle(message: Any) -> None:
                found.append(message.body)
                if len(found) == 20:
                    consumer.stop()

            with pytest.raises(InvalidArgument, match="joined its group in another way"):
                await consumer.run(handle, orderly=True)
            await consumer.run(handle)
        with Producer(store=broker.store) as producer:
            assert f"%DLQ%{topic}" not in producer.topics()

    asyncio.run(main())
    assert sorted(found, key=int) == numbers()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("how", ["iterate", "again", "run"])
def test_a_signal_ends_all_members_of_a_program_after_the_message_in_hand(
    broker: Any, topic: str, how: str, number: signal.Signals
) -> None:
    arguments = [str(broker.store), topic, how, topic + "-1", topic + "-2"]
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None
        assert [program.stdout.readline() for _ in range(2)] == ["begin\n"] * 2
        program.send_signal(number)
        said, _ = program.communicate(timeout=WAIT_S)
    finally:
        program.kill()
        program.wait()
    assert program.returncode == 0
    assert said.splitlines() == ["end", "end", "left"]


def test_a_member_whose_task_is_cancelled_once_more_while_it_ends_leaves_its_group(
    broker: Any, topic: str
) -> None:
    """A handler that does not end is waited for, until somebody waits no longer."""

    async def main() -> tuple[GroupConsumer, set[bytes]]:
        mine = {"store": broker.store, "group": topic, "topics": topic, "start": "first"}
        consumer, begun, found = GroupConsumer(**mine), asyncio.Event(), set()

        async def hang(message: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        await consumer.__aenter__()
        running = asyncio.create_task(consumer.run(hang, workers=1))
        await begun.wait()
        while not running.done():
            running.cancel()
            await asyncio.sleep(0)

        async def inherit() -> None:
            async with GroupConsumer(**mine) as heir:
                async for message in heir:
                    found.add(message.body)
                    message.ack()
                    if len(found) == 20:
                        return

        await asyncio.wait_for(inherit(), WAIT_S)
        return consumer, found

    _, found = asyncio.run(main())
    assert found == {*numbers()}


def test_a_handler_that_waited_for_something_cancelled_has_failed_and_ends_no_worker(
    broker: Any, topic: str
) -> None:
    async def main() -> set[bytes]:
        consumer = GroupConsumer(store=broker.store, group=topic, topics=topic, start="first")
        found: set[bytes] = set()

        async def handle(message: Any) -> None:
            if message.body in (b"3", b"4"):
                other = asyncio.create_task(asyncio.sleep(WAIT_S))
                other.cancel()
                await other
            found.add(message.body)
            if len(found) == 18:
                consumer.stop()

        async with consumer:
            await asyncio.wait_for(consumer.run(handle, workers=2), WAIT_S)
        return found

    assert asyncio.run(main()) == {*numbers()} - {b"3", b"4"}


@pytest.mark.parametrize("broadcasting", [False, True])
def test_one_that_is_forgotten_leaves_its_group_though_its_event_loop_is_closed(
    broker: Any, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broadcasting: bool
) -> None:
    monkeypatch.setenv("ROCKETMQ_OFFSETS_HOME", str(tmp_path))

    async def main() -> Any:
        consumer = GroupConsumer(
            store=broker.store, group=topic, topics=topic, broadcasting=broadcasting
        )
        await consumer.__aenter__()
        return consumer.loop

    with pytest.warns(ResourceWarning, match="unclosed <GroupConsumer"):
        member = asyncio.run(main())
        gc.collect()
    member._thread.join(WAIT_S)
    assert member.ended and member.error is None and member._context.closed


def test_by_hand(broker: Any, topic: str) -> None:
    async def main(count: int) -> list[bytes]:
        found: list[bytes] = []
        async with GroupConsumer(
            store=broker.store, group=topic, topics=topic, start="first"
        ) as consumer:
            while len(found) < count:
                batch = await consumer.poll(WAIT_S, most=5)
                found += [message.body for message in batch]
                await consumer.commit()
            assert not await consumer.poll(0.1) or count < 20
        return found

    first = asyncio.run(main(10))
    assert len(first) >= 10
    assert sorted(first + asyncio.run(main(20 - len(first))), key=int) == numbers()


def test_one_that_was_closed_says_so_whatever_it_is_asked_for(broker: Any, topic: str) -> None:
    async def main() -> None:
        consumer = GroupConsumer(store=broker.store, group=topic, topics=topic, start="first")
        async with consumer:
            assert await consumer.poll(WAIT_S, most=5)
        with pytest.raises(StoreUnavailable, match="the consumer is closed"):
            await consumer.poll(0)
        with pytest.raises(StoreUnavailable, match="the consumer is closed"):
            await consumer.poll_arrow(0)
        with pytest.raises(StoreUnavailable, match="the consumer is closed"):
            await consumer.commit(0)
        with pytest.raises(StoreUnavailable, match="the consumer is closed"):
            async for _ in consumer:
                pass
        with pytest.raises(StoreUnavailable, match="the consumer is closed"):
            consumer.seek(topic, 0, 0)
        await consumer.close()

    asyncio.run(main())


def test_a_loop_that_is_blocked_keeps_its_membership(broker: Any, topic: str) -> None:
    async def main() -> None:
        async with GroupConsumer(
            store=broker.store, group=topic, topics=topic, start="first", session_timeout_ms=1000
        ) as consumer:
            async for message in consumer:
                time.sleep(2.5)  # more than two sessions
                message.ack()
                break
            await consumer.commit()
            assert consumer.committed[message.topic, message.queue_id] == 1

    asyncio.run(main())


def test_a_task_that_is_cancelled_while_it_joins_leaves_no_member(
    broker: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on, make_loop = threading.Event(), threading.Event(), GroupConsumer._make_loop

    def slow(consumer: GroupConsumer) -> Any:
        begun.set()
        assert may_go_on.wait(WAIT_S)
        return make_loop(consumer)

    async def main() -> None:
        consumer = GroupConsumer(store=broker.store, group=topic, topics=topic)
        joining = asyncio.create_task(consumer.__aenter__())
        await asyncio.to_thread(begun.wait, WAIT_S)
        joining.cancel()
        await asyncio.wait([joining])
        assert joining.cancelled()
        may_go_on.set()
        async with asyncio.timeout(WAIT_S):
            while not (consumer._is_open and consumer.loop.ended):
                await asyncio.sleep(0)

    monkeypatch.setattr(GroupConsumer, "_make_loop", slow)
    asyncio.run(main())


def test_a_cancellation_that_comes_with_a_message_is_not_forgotten(broker: Any, topic: str) -> None:
    async def main() -> None:
        async with GroupConsumer(
            store=broker.store, group=topic, topics=topic, start="first"
        ) as consumer:
            count = 0
            while count < 20:
                count += len(await consumer.poll(5.0))
            polling = asyncio.create_task(consumer.poll(2 * WAIT_S))
            for _ in range(5):
                await asyncio.sleep(0)
            consumer._told.set()
            polling.cancel()
            await asyncio.wait([polling], timeout=WAIT_S)
            assert polling.cancelled()

    asyncio.run(main())


def test_a_close_that_is_cancelled_closes_all_the_same(
    broker: Any, topic: str, frozen: Any
) -> None:
    async def main() -> None:
        async with GroupConsumer(
            store=broker.store, group=topic, topics=topic, start="first"
        ) as consumer:
            seen = set[int]()
            while len(seen) < 2:
                batch = await consumer.poll(5.0, most=5)
                async with consumer.exactly_once(ahead=9):
                    seen.update(message.queue_id for message in batch)
            with frozen(broker, "writer"):
                await consumer.poll(5.0, most=5)
                async with consumer.exactly_once(ahead=9):
                    pass
                closing = asyncio.create_task(consumer.close())
                await asyncio.sleep(0)
                closing.cancel()
                await asyncio.wait([closing])
                assert closing.cancelled()
            assert consumer.loop.ended and consumer._blocks._producer._closing

    asyncio.run(asyncio.wait_for(main(), 2 * WAIT_S))
