"""The asyncio twin of penstock.client.groups.replies: `await message.reply(...)`."""

from __future__ import annotations

import asyncio

from penstock.client.aio.producer import Producer
from penstock.client.core.requests import Request
from penstock.client.core.send_options import ReplyFields
from penstock.client.core.sending.encoding import Body
from penstock.client.core.sending.frames import Receipt
from penstock.client.groups.replies import Arguments


class AioReplies:
    """One member's replies, from coroutines."""

    def __init__(self, arguments: Arguments) -> None:
        self._arguments = arguments
        self._making = asyncio.Lock()
        self._producer: Producer | None = None

    async def answer(self, request: Request, body: Body, fields: ReplyFields) -> Receipt:
        """Does what `GroupMessage.reply` promises."""
        async with self._making:
            if self._producer is None:
                producer = Producer(**await asyncio.to_thread(self._arguments))
                self._producer = await producer.__aenter__()
        return await self._producer.reply(request, body, **fields)

    async def close(self) -> None:
        """Wait until every reply has its outcome."""
        if self._producer is not None:
            await self._producer.__aexit__(None, None, None)
