"""Sending and reading from coroutines: nothing blocks the event loop.

penstock up --store ./store
python asyncio_client.py
"""

from __future__ import annotations

import asyncio

from penstock.client import aio


async def main() -> None:
    async with aio.connect() as broker:
        producer = await broker.producer()
        await producer.create_topic("readings", 4)
        sent = [producer.send("readings", {"celsius": 20 + n}, shard="hall") for n in range(3)]
        for receipt in await asyncio.gather(*sent):
            print(f"stored at {receipt.queue_id}/{receipt.queue_offset}")
        async for message in await broker.consumer("readings", follow=False):
            print(message.decode(dict[str, int]))


if __name__ == "__main__":
    asyncio.run(main())
