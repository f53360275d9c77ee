"""Transactions against a broker: what was committed is seen, what was not is never seen."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.chaos.broker import Broker
from penstock.client import Consumer, Producer, aio
from penstock.shared.errors import (
    InvalidArgument,
    InvalidMessage,
    PenstockError,
    TransactionEnded,
)

WAIT_S = 60
STRIKES = 10
SETTINGS = {"transaction_check_interval_ms": 300, "transaction_time_out_ms": 100}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    made = Broker(tmp_path_factory.mktemp("transactions"), SETTINGS)
    try:
        made.start()
        yield made
        made.stop()
    finally:
        made.clear()


def seen(broker: Broker, topic: str) -> list[bytes]:
    with Consumer(store=broker.store, topic=topic, follow=False) as consumer:
        return sorted(message.body for message in consumer)


def until(wanted: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT_S
    while not (found := wanted()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_a_block_commits_at_its_end_and_rolls_back_on_an_exception(broker: Broker) -> None:
    with Producer(store=broker.store, group="shop") as producer:
        producer.create_topic("block", 2)
        with producer.transaction("block") as transaction:
            transaction.send(b"first", tags="new", keys="k1", queue=1)
            receipt = transaction.send(b"second", shard="s")
            assert receipt.topic == "RMQ_SYS_TRANS_HALF_TOPIC"
            assert seen(broker, "block") == []
        with pytest.raises(ZeroDivisionError), producer.transaction("block") as transaction:
            transaction.send(b"never")
            with pytest.raises(InvalidMessage, match="of a batch or transaction asks for a delay"):
                transaction.send(b"later", properties={"DELAY": "3"})
            raise ZeroDivisionError
        assert seen(broker, "block") == [b"first", b"second"]
    with Consumer(store=broker.store, topic="block", follow=False) as consumer:
        first = next(each for each in consumer if each.body == b"first")
    assert (first.queue_id, first.tags, first.keys) == (1, "new", "k1")


def test_a_transaction_is_ended_by_hand_and_says_where_its_messages_are(broker: Broker) -> None:
    with Producer(store=broker.store, group="shop") as producer:
        producer.create_topic("hand", 1)
        kept, dropped = producer.begin("hand"), producer.begin("hand")
        kept.send(b"kept")
        dropped.send(b"dropped")
        (message,) = producer.commit(kept)
        producer.rollback(dropped)
        assert (message.topic, message.queue_id, message.queue_offset) == ("hand", 0, 0)
        assert producer.commit(kept) == [message], "to say it again changes nothing"
        with pytest.raises(InvalidArgument):
            kept.send(b"too late")
        with pytest.raises(InvalidArgument):
            producer.rollback(kept)
    assert seen(broker, "hand") == [b"kept"]


def test_who_has_no_group_has_no_transactions(broker: Broker) -> None:
    with Producer(store=broker.store) as producer, pytest.raises(InvalidArgument, match="no group"):
        producer.transaction("orders")
    with pytest.raises(InvalidArgument, match="on_check"):
        Producer(store=broker.store, on_check=lambda message: "commit")
    with pytest.raises(InvalidArgument):
        Producer(store=broker.store, group="no group!")


def test_a_producer_by_any_endpoint_finds_the_one_for_transactions(broker: Broker) -> None:
    endpoint = broker.status()["endpoints"]["produce"]
    with Producer(endpoint, group="shop") as producer:
        producer.create_topic("endpoint", 1)
        with producer.transaction("endpoint") as transaction:
            transaction.send(b"x")
    assert seen(broker, "endpoint") == [b"x"]


def test_the_listener_decides_where_the_producer_has_not(broker: Broker) -> None:
    asked: list[bytes] = []

    def on_check(message: Any) -> Any:
        asked.append(message.body)
        if message.body == b"commit" and asked.count(b"commit") == 1:
            raise RuntimeError("the database is away for a moment")
        if message.body == b"later" and asked.count(b"later") < 3:
            return "unknown"
        return "rollback" if message.body == b"rollback" else "commit"

    with Producer(store=broker.store, group="listens", on_check=on_check) as producer:
        producer.create_topic("checked", 1)
        for body in (b"commit", b"rollback", b"later"):
            left = producer.begin("checked")
            left.send(body)
        until(lambda: seen(broker, "checked") == [b"commit", b"later"])
        until(lambda: b"rollback" in asked)
        assert asked.count(b"later") == 3
        with pytest.raises(TransactionEnded):
            producer.rollback(left)  # it was committed by the listener


def test_a_program_killed_after_its_local_commit_is_answered_for_by_another(
    broker: Broker, tmp_path: Path
) -> None:
    program = f"""
import os, signal
from penstock.client import Producer
producer = Producer(store={os.fspath(broker.store)!r}, group="killed")
for body in (b"done", b"not done"):
    transaction = producer.begin("killed")
    transaction.send(body)
    if body == b"done":
        open({os.fspath(tmp_path / "done")!r}, "w").close()
os.kill(os.getpid(), signal.SIGKILL)
"""
    with Producer(store=broker.store) as producer:
        producer.create_topic("killed", 1)
    died = subprocess.run([sys.executable, "-c", program], timeout=WAIT_S)
    assert died.returncode == -signal.SIGKILL
    assert seen(broker, "killed") == []

    def on_check(message: Any) -> Any:
        known = message.body == b"done" and (tmp_path / "done").exists()
        return "commit" if known else "rollback"

    with Producer(store=broker.store, group="killed", on_check=on_check):
        until(lambda: broker.status()["positions"]["transactions_open"] == 0)
    assert seen(broker, "killed") == [b"done"]


def test_transactions_go_on_while_their_actor_and_the_writer_are_killed(broker: Broker) -> None:
    with Producer(store=broker.store, group="shop") as producer:
        producer.create_topic("struck", 4)
        stop = threading.Event()
        sent: list[bytes] = []
        struck: list[int] = []  # how many had been sent at each strike

        def strike() -> None:
            while len(struck) < STRIKES and not stop.wait(0.3):
                # on a busy machine nobody would come to work between two
                if not struck or len(sent) > struck[-1]:
                    struck.append(len(sent))
                    for actor in ("transactions", "writer"):
                        broker.strike(actor, signal.SIGKILL)

        striker = threading.Thread(target=strike)
        striker.start()
        try:
            while striker.is_alive():
                with producer.transaction("struck") as transaction:
                    transaction.send(body := b"%04d" % len(sent))
                sent.append(body)
        finally:
            stop.set()
            striker.join()
    assert seen(broker, "struck") == sent


def test_an_asyncio_producer_has_the_same_transactions(broker: Broker) -> None:
    asked: list[bytes] = []

    async def on_check(message: Any) -> Any:
        await asyncio.sleep(0)
        asked.append(message.body)
        return "commit"

    async def run() -> None:
        async with aio.Producer(store=broker.store, group="aio", on_check=on_check) as producer:
            await producer.create_topic("aio", 4)

            async def one(number: int) -> None:
                async with producer.transaction("aio") as transaction:
                    await transaction.send(b"%02d" % number)
                    if number % 2:
                        raise ZeroDivisionError

            ended = await asyncio.gather(*map(one, range(20)), return_exceptions=True)
            assert [type(each) for each in ended] == [type(None), ZeroDivisionError] * 10
            left = producer.begin("aio")
            await left.send(b"left")
            while not asked:
                await asyncio.sleep(0.05)
            assert asked == [b"left"]
            last = producer.begin("aio")
            await last.send(b"last")
            await producer.commit(last)

    asyncio.run(asyncio.wait_for(run(), WAIT_S))
    expected = [b"%02d" % number for number in range(0, 20, 2)] + [b"last", b"left"]
    assert until(lambda: seen(broker, "aio") == expected)


def test_a_message_that_the_broker_would_not_take_raises_and_the_transaction_goes_on(
    broker: Broker,
) -> None:
    with Producer(store=broker.store, group="shop") as producer:
        producer.create_topic("wrong", 1)
        with producer.transaction("wrong") as transaction:
            for wrong in ({"queue": 7}, {"properties": {"TAGS": "x"}}):
                with pytest.raises(PenstockError):
                    transaction.send(b"x", **wrong)
            transaction.send(b"right")
    assert seen(broker, "wrong") == [b"right"]


def test_a_listener_that_would_end_its_thread_is_asked_again(broker: Broker) -> None:
    """SystemExit is no word either, and ends no program from a thread."""
    asked: list[bytes] = []

    def on_check(message: Any) -> Any:
        asked.append(message.body)
        if len(asked) == 1:
            raise SystemExit
        return "commit"

    with Producer(store=broker.store, group="exits", on_check=on_check) as producer:
        producer.create_topic("exits", 1)
        producer.begin("exits").send(b"left")
        assert until(lambda: seen(broker, "exits") == [b"left"])
    assert asked[:2] == [b"left", b"left"]
