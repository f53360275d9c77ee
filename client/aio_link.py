"""A socket of an asyncio client, open while its `async with` block runs."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import zmq.asyncio

from penstock.shared.bus import dial
from penstock.shared.errors import StoreUnavailable


class Link:
    """What dials an endpoint at the beginning of its block."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._opened: Any = None

    async def __aenter__(self) -> Self:
        self._context: Any = zmq.asyncio.Context(io_threads=1)
        self._opened = dial(self._context, self._endpoint)
        return self

    @property
    def _socket(self) -> Any:
        """Raises StoreUnavailable outside the block."""
        if self._opened is None:
            raise StoreUnavailable(
                "the client is not open",
                None,
                "use it inside its block: async with Consumer(...) as consumer",
            )
        return self._opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing waits to be sent that anybody still wants an answer to."""
        self._opened.close(linger=0)
        self._opened = None
        self._context.term()
