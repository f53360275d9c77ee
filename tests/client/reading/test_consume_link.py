"""A consumer's side of its socket: a wait that is long ends when the connection does."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import zmq
import zmq.asyncio

from penstock import __version__
from penstock.client import aio
from penstock.client.connecting.broker_address import BrokerAddress
from penstock.client.core.consumer_core import ConsumerCore
from penstock.client.core.timeouts import REPEAT_MS
from penstock.client.reading.consume_link import ConsumeLink
from penstock.shared.clock import SystemClock
from penstock.shared.formats.compression import MAX_BODY_BYTES
from penstock.shared.wire.introduction import PROTOCOL, Greeted, encode

LONG_MS = 60_000


class Owner:
    """Whoever has the link."""


def test_a_consumer_that_waits_long_asks_soon_when_its_connection_is_lost() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    reader = context.socket(zmq.ROUTER)
    port = reader.bind_to_random_port("tcp://127.0.0.1")
    endpoint = f"tcp://127.0.0.1:{port}"
    core = ConsumerCore(endpoint, "orders", 0, timeout_ms=10 * LONG_MS, hears_losses=True)
    address = BrokerAddress("consumers", endpoint, None, LONG_MS, 0)
    owner = Owner()
    link = ConsumeLink(owner, "a consumer", core, address, MAX_BODY_BYTES, SystemClock())
    now_ms, deadline = 0, time.monotonic() + LONG_MS / 1000
    while not reader.poll(10):  # it could not be sent as long as there was no connection
        assert time.monotonic() < deadline
        now_ms += REPEAT_MS
        link.exchange(now_ms)
    link.exchange(now_ms + 2 * REPEAT_MS)
    assert core.is_waiting_long, "it has asked again, and was not answered"
    reader.close(linger=0)
    began = time.monotonic()
    while core.is_waiting_long:  # what happened before, as that it was connected, ends a wait too
        link.wait(LONG_MS)
        assert time.monotonic() - began < LONG_MS / 2000
    link.close()
    context.term()


def test_the_asyncio_consumer_does_so_too_even_where_a_wait_was_cancelled() -> None:
    async def test() -> None:
        context = zmq.asyncio.Context()
        reader = context.socket(zmq.ROUTER)
        endpoint = f"tcp://127.0.0.1:{reader.bind_to_random_port('tcp://127.0.0.1')}"
        who = Greeted(PROTOCOL, __version__, "consumers", endpoint, endpoint, "", "", 0, "", "")

        async def greet() -> None:
            name, *_ = await reader.recv_multipart()
            await reader.send_multipart([name, encode(who)])

        greeting = asyncio.create_task(greet())
        async with aio.Consumer(endpoint, "orders", timeout_ms=10 * LONG_MS) as consumer:
            await greeting
            now_ms = 0
            while not await reader.poll(10):  # there may be no connection yet
                now_ms += REPEAT_MS
                await consumer._exchange(now_ms)
            await consumer._exchange(now_ms + 2 * REPEAT_MS)
            assert consumer._core.is_waiting_long, "it has asked again, and was not answered"
            cancelled = 0
            while cancelled < 3:  # what happened before, as that it was connected, ends a wait too
                with suppress(TimeoutError):
                    cancelled += 1
                    await asyncio.wait_for(consumer._wait(LONG_MS), 0.01)
                    cancelled -= 1
            reader.close(linger=0)
            async with asyncio.timeout(LONG_MS / 2000):
                while consumer._core.is_waiting_long:
                    await consumer._wait(LONG_MS)
        context.term()

    asyncio.run(asyncio.wait_for(test(), 2 * LONG_MS / 1000))
