"""Request and reply through a broker: from threads, from coroutines, in time, too late, never."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from penstock.client import Consumer, GroupConsumer, GroupMessage, Message, Producer, aio
from penstock.client.sending import requester
from penstock.shared.errors import (
    BrokerTimeout,
    InvalidArgument,
    InvalidMessage,
    QueueNotFound,
    StoreUnavailable,
)
from penstock.shared.messaging.request_reply import reply_topic

WAIT_S = 60.0


@pytest.fixture
def producer(broker: Any) -> Iterator[Producer]:
    with Producer(broker.produce) as producer:
        yield producer


@contextmanager
def replier(broker: Any, topic: str, replies: int = 1) -> Iterator[list[Message]]:
    """Somebody who answers every message of the topic with its body in capitals."""
    seen: list[Message] = []
    ending = threading.Event()

    def work() -> None:
        with Producer(broker.produce) as producer, Consumer(broker.consume, topic) as consumer:
            while not ending.is_set():
                for message in consumer.poll(0.05):
                    seen.append(message)
                    bodies = [message.body.upper() + b"!" * number for number in range(replies)]
                    # in one frame: whoever reads the first reply reads the others with it
                    sent = [producer.reply(message, b, tags="answer", keys="k") for b in bodies]
                    for future in sent:
                        future.result(WAIT_S)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield seen
    finally:
        ending.set()
        thread.join()


def test_a_request_is_answered(broker: Any, producer: Producer) -> None:
    with replier(broker, "asked") as seen:
        reply = producer.request(
            "asked", b"how much?", timeout=WAIT_S, tags="t", keys="q 1", properties={"own": "x"}
        )
    assert (reply.body, reply.tags, reply.keys) == (b"HOW MUCH?", "answer", "k")
    (request,) = seen
    assert (request.tags, request.keys, request.properties["own"]) == ("t", "q 1", "x")
    # RocketMQ's form on both sides
    sent, came = dict(request.properties), dict(reply.properties)
    assert (sent["CLUSTER"], sent["TTL"]) == ("DefaultCluster", str(int(WAIT_S * 1000)))
    assert reply.topic == "DefaultCluster_REPLY_TOPIC" and came["MSG_TYPE"] == "reply"
    for name in ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"):
        assert came[name] == sent[name], name
    assert producer.topics()[reply_topic()] == 1


def test_many_threads_have_each_its_own_reply(broker: Any, producer: Producer) -> None:
    with replier(broker, "many"), ThreadPoolExecutor(16) as pool:
        bodies = [b"request %d" % number for number in range(200)]

        def ask(body: bytes) -> bytes:
            return producer.request("many", body, timeout=60.0).body

        assert list(pool.map(ask, bodies)) == [body.upper() for body in bodies]


def test_two_requesters_see_their_own_replies_alone(broker: Any, producer: Producer) -> None:
    with replier(broker, "two"), Producer(broker.produce) as other:
        for number in range(5):
            ours, theirs = b"ours %d" % number, b"theirs %d" % number
            assert producer.request("two", ours, timeout=WAIT_S).body == ours.upper()
            assert other.request("two", theirs, timeout=WAIT_S).body == theirs.upper()


def test_of_two_replies_the_first_counts(broker: Any, producer: Producer) -> None:
    with replier(broker, "twice", replies=2):
        for number in range(3):
            body = b"request %d" % number
            assert producer.request("twice", body, timeout=WAIT_S).body == body.upper()


def test_without_a_reply_it_is_a_timeout_and_a_late_one_reaches_nobody(
    broker: Any, producer: Producer
) -> None:
    with replier(broker, "early"):
        producer.request("early", b"makes the reply topic", timeout=WAIT_S)
    producer.create_topic("late", 1)
    with pytest.raises(BrokerTimeout, match=r"no reply has come within 0\.3 s: to request .* late"):
        producer.request("late", b"first", timeout=0.3)
    with replier(broker, "late") as seen:
        # the replier answers the first one too, before it comes to the second
        assert producer.request("late", b"second", timeout=WAIT_S).body == b"SECOND"
    assert [message.body for message in seen] == [b"first", b"second"]


def test_what_is_not_known_to_be_stored_is_not_said_to_be(
    start_broker: Callable[..., Any], frozen: Any
) -> None:
    """The writer stands still: a request is on its way, or waits for what comes before it."""
    broker = start_broker()
    unacknowledged = "the broker has not acknowledged a request within 0.3 s"

    def ask(producer: Producer) -> str:
        with pytest.raises(BrokerTimeout) as told:
            producer.request("asked", b"x", timeout=0.3)
        return told.value.what

    async def ask_as_coroutine() -> None:
        async with aio.Producer(broker.produce) as producer:
            with replier(broker, "asked"):
                await producer.request("asked", b"x", timeout=WAIT_S)
            with frozen(broker, "writer"), pytest.raises(BrokerTimeout, match=unacknowledged):
                await producer.request("asked", b"x", timeout=0.3)

    with Producer(broker.produce) as producer, Producer(broker.produce) as other:
        with replier(broker, "asked"):
            producer.request("asked", b"x", timeout=WAIT_S)
        with frozen(broker, "writer"):
            assert ask(producer) == unacknowledged
            assert re.fullmatch(r"the broker has not answered within 0\.\d+ s", ask(other))
    asyncio.run(asyncio.wait_for(ask_as_coroutine(), 60))


def test_whoever_has_little_time_waits_for_nobody_who_has_more(
    start_broker: Callable[..., Any], frozen: Any
) -> None:
    """The first request connects; others may come meanwhile, and the producer may be closed."""
    broker = start_broker()
    found: list[Any] = []

    def ask(producer: Producer) -> None:
        try:
            found.append(producer.request("asked", b"x", timeout=60.0).body)
        except StoreUnavailable as error:
            found.append(type(error))

    with replier(broker, "asked"), ExitStack() as left:
        patient, closed = Producer(broker.produce), Producer(broker.produce)
        left.callback(patient.close)
        threads = [threading.Thread(target=ask, args=(each,)) for each in (patient, closed)]
        with frozen(broker, "writer"):
            for thread in threads:
                thread.start()
            while patient._requester is None or closed._requester is None:
                time.sleep(0.01)
            with pytest.raises(BrokerTimeout):
                patient.request("asked", b"x", timeout=0.3)
            closed._disconnect()
            threads[1].join(WAIT_S)
            assert found == [StoreUnavailable] and threads[0].is_alive()
        threads[0].join(60.0)
        assert found == [StoreUnavailable, b"X"]


def test_the_time_of_a_request_bounds_its_connecting(
    start_broker: Callable[..., Any], frozen: Any
) -> None:
    broker = start_broker()
    with Producer(broker.produce, timeout_ms=60_000) as producer:
        producer.create_topic(reply_topic(), 1)
        began = time.monotonic()
        with frozen(broker, "reader"), pytest.raises(BrokerTimeout):
            producer.request("asked", b"x", timeout=0.3)
        assert time.monotonic() - began < 40


def test_a_message_of_a_consumer_that_is_closed_has_no_reply(
    broker: Any, producer: Producer
) -> None:
    """It would connect, and nobody would close that."""
    producer.create_topic("after", 1)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(producer.request, "after", b"x", timeout=60.0)
        with GroupConsumer(broker.consume, "late", "after", start="first") as member:
            (message,) = member.poll(WAIT_S)
        with pytest.raises(StoreUnavailable, match="the consumer is closed"):
            message.reply(b"late")
        producer.reply(message, b"in time").result(WAIT_S)
        assert asked.result().body == b"in time"


def test_after_a_pause_it_begins_at_the_end_again(
    broker: Any, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Consumer] = []

    def open_one(**named: Any) -> Consumer:
        opened.append(Consumer(**named))
        return opened[-1]

    monkeypatch.setattr(requester, "Consumer", open_one)
    with replier(broker, "paused"):
        for idle_s, consumers in ((60.0, 1), (0.0, 4)):
            monkeypatch.setattr(requester, "IDLE_S", idle_s)
            for number in range(3):
                body = b"request %d" % number
                assert producer.request("paused", body, timeout=WAIT_S).body == body.upper()
            assert len(opened) == consumers


def test_a_request_that_cannot_be_sent_fails_at_once(producer: Producer) -> None:
    producer.create_topic("small", 1)
    producer.send("small", b"known").result(WAIT_S)
    with pytest.raises(QueueNotFound):
        producer.request("small", b"x", timeout=WAIT_S, queue=5)


def test_a_member_of_a_group_answers(broker: Any, producer: Producer) -> None:
    producer.create_topic("grouped", 2)
    bodies = [b"request %d" % number for number in range(20)]
    with GroupConsumer(broker.consume, "repliers", "grouped", start="first") as members:

        def handle(message: GroupMessage) -> None:
            producer.reply(message, message.body.upper()).result(WAIT_S)

        running = threading.Thread(target=members.run, args=(handle,), kwargs={"workers": 2})
        running.start()
        replies = [producer.request("grouped", body, timeout=60.0).body for body in bodies]
        members.stop()
        running.join()
    assert replies == [body.upper() for body in bodies]


def test_a_message_of_a_group_is_answered_by_its_consumer(broker: Any, producer: Producer) -> None:
    producer.create_topic("by-message", 2)
    bodies = [b"request %d" % number for number in range(10)]
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(producer.request, "by-message", each, timeout=60.0) for each in bodies]
        with GroupConsumer(broker.consume, "one", "by-message", start="first") as member:
            for count, message in enumerate(member, 1):
                receipt = message.reply(message.body.upper(), tags="t", keys="k").result(WAIT_S)
                assert receipt.topic == reply_topic()
                message.ack()
                if count == 10:
                    break
        replies = [each.result() for each in asked]
    assert [each.body for each in replies] == [body.upper() for body in bodies]
    assert {(each.tags, each.keys) for each in replies} == {("t", "k")}
    producer.send("by-message", b"no request").result(WAIT_S)
    with GroupConsumer(broker.consume, "one", "by-message") as member:
        (other,) = member.poll(WAIT_S)
        with pytest.raises(InvalidMessage, match="asks for no reply"):
            other.reply(b"y")


def test_handlers_answer_in_threads_and_as_coroutines(broker: Any, producer: Producer) -> None:
    producer.create_topic("by-handler", 2)

    def ask(member: Any) -> Message:
        try:
            return producer.request("by-handler", b"a", timeout=60.0)
        finally:
            member.stop()

    def handle(message: GroupMessage) -> None:
        message.reply(message.body.upper())  # closing the consumer waits for it

    with ThreadPoolExecutor(1) as pool:
        consumer = GroupConsumer(broker.consume, "two", "by-handler", start="last")
        reply = pool.submit(ask, consumer)
        consumer.run(handle, workers=2)
        assert reply.result().body == b"A"

        async def test() -> Message:
            async def handle(message: GroupMessage) -> None:
                assert (await message.reply(message.body * 2)).topic == reply_topic()

            async with aio.GroupConsumer(broker.consume, "two", "by-handler") as consumer:
                reply = pool.submit(ask, consumer)
                await consumer.run(handle, workers=2)
            return await asyncio.wrap_future(reply)

        assert asyncio.run(asyncio.wait_for(test(), 60)).body == b"aa"


def test_what_is_no_request_has_no_reply(broker: Any, producer: Producer) -> None:
    producer.send("plain", b"x").result(WAIT_S)
    with Consumer(broker.consume, "plain", follow=False) as consumer:
        (message,) = consumer
    with pytest.raises(InvalidMessage, match="asks for no reply.*CORRELATION_ID, REPLY_TO_CLIENT"):
        producer.reply(message, b"y")


@pytest.mark.parametrize("timeout", [None, 0, -1, "3", True])
def test_a_request_waits_for_some_seconds(producer: Producer, timeout: Any) -> None:
    with pytest.raises(InvalidArgument):
        producer.request("t", b"x", timeout=timeout)


@pytest.mark.parametrize("properties", [{"TTL": "1"}, {"CORRELATION_ID": "x"}, [("a", "b")]])
def test_a_requests_own_properties_are_not_the_senders(producer: Producer, properties: Any) -> None:
    with pytest.raises(InvalidMessage):
        producer.request("t", b"x", timeout=1.0, properties=properties)


def test_who_waits_when_the_producer_is_closed_is_told(broker: Any) -> None:
    producer = Producer(broker.produce)
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            producer.request("closed", b"x", timeout=WAIT_S)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    with Consumer(broker.consume, "closed") as consumer:
        found = 0
        while found < 2:
            found += len(consumer.poll(WAIT_S))
    producer.close()
    for thread in threads:
        thread.join()
    assert len(errors) == 2
    for error in errors:
        assert isinstance(error, StoreUnavailable), error
        assert "the producer was closed" in str(error), "and not that its time is over"
    with pytest.raises(StoreUnavailable):
        producer.request("closed", b"x")


def test_a_requester_that_is_killed_harms_nobody(broker: Any, producer: Producer) -> None:
    code = f"""
import sys
from penstock.client import Producer
producer = Producer({broker.produce!r})
producer.request("orphans", b"never read", timeout=60.0)
"""
    child = subprocess.Popen([sys.executable, "-c", code])
    with Consumer(broker.consume, "orphans") as consumer:
        (message,) = consumer.poll(WAIT_S)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert producer.reply(message, b"too late").result(WAIT_S).topic == reply_topic()
    with replier(broker, "orphans"):
        assert producer.request("orphans", b"mine", timeout=WAIT_S).body == b"MINE"


def test_the_reply_goes_on_when_the_broker_is_named_by_its_store(broker: Any) -> None:
    with Producer(store=broker.store) as producer, replier(broker, "by-store"):
        assert producer.request("by-store", b"a", timeout=WAIT_S).body == b"A"


def test_coroutines_ask_and_answer(broker: Any) -> None:
    async def answer() -> None:
        async with (
            aio.Producer(broker.produce) as producer,
            aio.Consumer(broker.consume, "aio-asked") as consumer,
        ):
            async for message in consumer:
                await producer.reply(message, message.body.upper(), tags="a")

    async def test() -> None:
        replier = asyncio.create_task(answer())
        async with aio.Producer(broker.produce) as producer:
            asked = [
                producer.request("aio-asked", b"request %d" % number, timeout=60.0)
                for number in range(100)
            ]
            replies = await asyncio.gather(*asked)
            assert [each.body for each in replies] == [b"REQUEST %d" % n for n in range(100)]
            await producer.create_topic("aio-unanswered", 1)
            with pytest.raises(BrokerTimeout, match="no reply has come"):
                await producer.request("aio-unanswered", b"x", timeout=0.2)
            with pytest.raises(InvalidMessage):
                producer.reply(await nobody_asked(broker), b"x")
            waiting = asyncio.create_task(producer.request("aio-unanswered", b"x", timeout=WAIT_S))
            async with aio.Consumer(broker.consume, "aio-unanswered", start=1) as consumer:
                await anext(aiter(consumer))
        with pytest.raises(StoreUnavailable, match="the producer was closed"):
            await waiting
        replier.cancel()
        await asyncio.wait({replier})

    asyncio.run(asyncio.wait_for(test(), 90))


async def nobody_asked(broker: Any) -> Message:
    async with aio.Producer(broker.produce) as producer:
        await producer.send("aio-plain", b"x")
    async with aio.Consumer(broker.consume, "aio-plain", follow=False) as consumer:
        return await anext(aiter(consumer))
