"""A load process of another broker's Python client; the protocol is that of bench/loads/load.py.

    python -m penstock.bench.peers.python.python_load CLIENT ORDER      an order below, as JSON

A client is used as its documentation says is fast. It is imported here and nowhere else, so only
its own measurement needs it. All calls are awaited, so that one load serves clients made for
asyncio and those that block. Waits for due times use `time.sleep`, as asyncio rounds up to ms.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator

import msgspec

from penstock.bench.loads.load import ANSWER_TIMEOUT_S, Seen, await_go, thinned
from penstock.bench.peers.python.python_clients import CLIENTS, Client

# Stamps are digits, and no body has a zero byte: RocketMQ's client for Python ends a body there.
_STAMP_DIGITS = 20
_LETTERS = bytes(range(1, 256))


class Order(msgspec.Struct, frozen=True):
    """With a `rate_per_s`, that many messages are due a second, and each has its due time; a
    process that `reads` takes those. Without one, it sends, or reads a backlog of `messages` again
    and again, as fast as it can."""

    endpoint: str
    topic: str
    size: int
    seconds: float
    reads: bool = False
    rate_per_s: int = 0
    in_flight: int = 4096
    messages: int = 0
    warm_s: float = 0.5


def body_of(size: int) -> bytes:
    return (_LETTERS * (size // len(_LETTERS) + 1))[:size]


async def _paced(client: Client, order: Order, seconds: float) -> int:
    """Send each message when it is due, late ones at once and together."""
    count = round(seconds * order.rate_per_s)
    rest = body_of(order.size - _STAMP_DIGITS)
    began_ns = time.monotonic_ns()
    number = 0
    while number < count:
        due_ns = began_ns + number * 1_000_000_000 // order.rate_per_s
        if (early_ns := due_ns - time.monotonic_ns()) > 0:
            time.sleep(early_ns / 1e9)
        bodies = []
        now_ns = time.monotonic_ns()
        while number < count and due_ns <= now_ns:
            bodies.append(b"%0*d" % (_STAMP_DIGITS, due_ns) + rest)
            number += 1
            due_ns = began_ns + number * 1_000_000_000 // order.rate_per_s
        await client.send(bodies)
    await client.settle()
    return count


async def _full(client: Client, order: Order, seconds: float) -> int:
    bodies = [body_of(order.size)] * 64
    sent, until = 0, time.perf_counter() + seconds
    while time.perf_counter() < until or sent < order.messages:
        await client.send(bodies)
        sent += len(bodies)
    await client.settle()
    return sent


async def send(client: Client, order: Order) -> Seen:
    run = _paced if order.rate_per_s else _full
    warm = await run(client, msgspec.structs.replace(order, messages=0), order.warm_s)
    await_go()
    began, cpu_began = time.perf_counter(), time.process_time()
    sent = await run(client, order, order.seconds)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    return Seen(sent, warm, seconds, cpu_s, [])


async def _bodies(client: Client) -> AsyncIterator[list[bytes]]:
    while bodies := await client.read(ANSWER_TIMEOUT_S):
        yield bodies


async def read_paced(client: Client, order: Order) -> Seen:
    """Read what a paced sender sent during its warm-up, and then what counts."""
    await client.start()
    warm, count = (round(s * order.rate_per_s) for s in (order.warm_s, order.seconds))
    done, latencies_ms = 0, list[float]()
    began = cpu_began = 0.0
    async for bodies in _bodies(client):
        now_ns = time.monotonic_ns()
        done += len(bodies)
        if done > warm:
            stamps = (int(body[:_STAMP_DIGITS]) for body in bodies)
            latencies_ms.extend((now_ns - stamp) / 1e6 for stamp in stamps)
        elif done == warm:
            await_go()
            began, cpu_began = time.perf_counter(), time.process_time()
        if done >= warm + count:
            break
    if done != warm + count:
        raise SystemExit(f"{done} messages came where {warm + count} were sent")
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    return Seen(count, warm, seconds, cpu_s, thinned(latencies_ms))


async def read_backlog(client: Client, order: Order) -> Seen:
    """Read it all again and again; the length and the last byte of each body are added up."""
    body = body_of(order.size)
    expected = order.messages * (len(body) + body[-1])
    await_go()
    began, cpu_began = time.perf_counter(), time.process_time()
    messages = 0
    while not messages or time.perf_counter() - began < order.seconds:
        await client.start()
        done = touched = 0
        while done < order.messages and (bodies := await client.read(ANSWER_TIMEOUT_S)):
            for each in bodies:
                touched += len(each) + each[-1]
            done += len(bodies)
        if (done, touched) != (order.messages, expected):
            raise SystemExit(f"{done} messages came and not {order.messages}, or other bodies")
        messages += done
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    return Seen(messages, 0, seconds, cpu_s, [])


async def _carry_out(name: str, order: Order) -> Seen:
    client = CLIENTS[name](order.endpoint, order.topic, order.in_flight)
    if order.reads:
        return await (read_paced if order.rate_per_s else read_backlog)(client, order)
    return await send(client, order)


def main() -> None:
    seen = asyncio.run(_carry_out(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Order)))
    print(msgspec.json.encode(seen).decode(), flush=True)
    # threads of a client's library may delay this process's exit, or abort it
    os._exit(0)


if __name__ == "__main__":
    main()
