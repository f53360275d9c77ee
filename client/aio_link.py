"""A socket of an asyncio client, open while its `async with` block runs."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import zmq.asyncio

from penstock.client.closing import closer
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
        name = f"asyncio client at {self._endpoint}"
        self._close = closer(self, name, self._opened, self._context)
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
        self._opened = None
        self._close()
