"""A socket of an asyncio client, open while its `async with` block runs."""

from __future__ import annotations

from typing import Any

import zmq.asyncio

from penstock.shared.bus import dial
from penstock.shared.errors import StoreUnavailable


class Link:
    """Dials an endpoint when it is opened."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._socket: Any = None

    def open(self) -> None:
        self._context: Any = zmq.asyncio.Context(io_threads=1)
        self._socket = dial(self._context, self._endpoint)

    @property
    def socket(self) -> Any:
        """Raises StoreUnavailable outside the block."""
        if self._socket is None:
            raise StoreUnavailable(
                "a client is used inside its block", "it is not open", "async with ...(...)"
            )
        return self._socket

    def close(self) -> None:
        """Nothing waits to be sent that anybody still wants an answer to."""
        self._socket.close(linger=0)
        self._socket = None
        self._context.term()
