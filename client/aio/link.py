"""A socket of an asyncio client, open while its `async with` block runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

import zmq.asyncio

from penstock.client.connecting.broker_address import BrokerAddress, Store
from penstock.client.connecting.closing import closer
from penstock.client.connecting.lost_connection import LostConnection
from penstock.client.core.aim import Aim
from penstock.client.core.message import longest_answer_bytes
from penstock.shared.errors import StoreUnavailable
from penstock.shared.formats.compression import MAX_BODY_BYTES
from penstock.shared.wire.sockets import dial


class Link:
    """A client that connects when its block begins and disconnects when it ends."""

    # from the core that the client drives; `_given_up` takes an answer that was too long
    _aim: Aim
    _given_up: Callable[[int], None]

    def __init__(
        self,
        endpoint: str | None,
        store: Store | None,
        timeout_ms: int,
        wait_for_broker_ms: int,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._address = BrokerAddress("consumers", endpoint, store, timeout_ms, wait_for_broker_ms)
        self._max_body_bytes = max_body_bytes
        self._opened: Any = None

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._address.meet)
        self._address.give(self._aim)
        self._context: Any = zmq.asyncio.Context(io_threads=1)
        longest = longest_answer_bytes(self._max_body_bytes)
        self._opened = dial(self._context, self._address.endpoint, longest)
        self._lost = LostConnection(self._opened)
        name = f"asyncio client of {self._address.name}"
        self._close = closer(self, name, self._lost, self._opened, self._context)
        return self

    def _follow(self, now_ms: int) -> None:
        """If the broker does not answer, connect to where its store runs now."""
        if self._aim.away:
            self._address.follow(self._socket, self._aim, now_ms)
            if self._lost.dial_again(self._address.endpoint, now_ms):
                self._given_up(int(self._socket.maxmsgsize))

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

    async def __aexit__(self, *raised: object) -> None:
        self._opened = None
        self._close()
