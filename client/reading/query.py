"""Finding messages by key or by id, from ordinary, synchronous code.

Not thread-safe, and not to be used across a fork.
"""

from __future__ import annotations

import os

import zmq

from penstock.client.connecting.broker_address import BrokerAddress, Store
from penstock.client.connecting.closing import closer
from penstock.client.connecting.lost_connection import LostConnection
from penstock.client.core.message import Message, longest_answer_bytes
from penstock.client.core.query_core import (
    DEFAULT_MAX_NUM,
    REPEAT_MS,
    QueryCore,
    Question,
    Time,
    by_id,
    by_key,
    by_unique_key,
)
from penstock.shared.clock import Clock, SystemClock
from penstock.shared.errors import StoreUnavailable
from penstock.shared.formats.compression import MAX_BODY_BYTES
from penstock.shared.notebook import as_table
from penstock.shared.wire.sockets import dial


class MessageQuery:
    """Asks a broker for single messages.

        with MessageQuery(store="./store") as query:
            for message in query.by_key("orders", "order-4711"):
                print(message.store_timestamp_ms, message.body)

    A question finds every message that was acknowledged before it was asked. `timeout_ms` is how
    long the broker may be silent before BrokerTimeout is raised.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        store: Store | None = None,
        timeout_ms: int = 30_000,
        wait_for_broker_ms: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._address = BrokerAddress("consumers", endpoint, store, timeout_ms, wait_for_broker_ms)
        self._core = QueryCore(self._address.name, timeout_ms)
        self._address.meet()
        self._address.give(self._core.aim)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._socket: zmq.Socket[bytes] = dial(
            self._context, self._address.endpoint, longest_answer_bytes(MAX_BODY_BYTES)
        )
        self._lost = LostConnection(self._socket)
        name = f"query of {self._address.name}"
        self._close = closer(self, name, self._lost, self._socket, self._context)
        self._pid = os.getpid()

    def __enter__(self) -> MessageQuery:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        return as_table("Message query", [("broker", self._address.name)])

    def by_key(
        self,
        topic: str,
        key: str,
        max_num: int = DEFAULT_MAX_NUM,
        *,
        begin: Time = None,
        end: Time = None,
    ) -> list[Message]:
        """The newest messages with this key among their keys, or as unique key; oldest first.

        `begin` and `end`, both inclusive, are datetimes or ms since 1970. The broker returns at
        most max_msgs_num_batch messages and 8 MiB. Raises InvalidArgument, BrokerTimeout.
        """
        return self.ask(by_key(topic, key, max_num, begin, end))

    def by_unique_key(self, topic: str, unique_key: str) -> list[Message]:
        """The messages with this unique key, oldest first: one, unless it was sent twice."""
        return self.ask(by_unique_key(topic, unique_key))

    def by_id(self, message_id: str) -> Message:
        """The message that an offsetMsgId names. Raises MessageNotFound if there is none."""
        return self.ask(by_id(message_id))[0]

    def ask(self, question: Question) -> list[Message]:
        """The messages that answer a question made by `query_core`. Raises the broker's refusal."""
        if self._socket.closed:
            raise StoreUnavailable("the query was closed", None, "make another one")
        if os.getpid() != self._pid:
            raise StoreUnavailable(
                "this process is a fork of the one that made the query",
                f"process {self._pid}",
                "make a query after the fork",
            )
        self._core.ask(question, self._clock.monotonic_ms())
        while self._core.found is None:
            now_ms = self._clock.monotonic_ms()
            if self._core.aim.away:
                self._address.follow(self._socket, self._core.aim, now_ms)
                if self._lost.dial_again(self._address.endpoint, now_ms):
                    self._core.given_up(int(self._socket.maxmsgsize))
            header = self._core.outgoing(now_ms)
            # A connection takes a moment to open. Until then nothing can be sent or answered.
            if header is not None and not self._sent(header):
                self._core.not_connected()
            elif self._socket.poll(REPEAT_MS):
                self._core.received(self._socket.recv_multipart())
        return self._core.found

    def _sent(self, header: bytes) -> bool:
        """Whether it could be sent; waits as long as for an answer."""
        if not self._socket.poll(REPEAT_MS, zmq.POLLOUT):
            return False
        try:
            self._socket.send(header, zmq.NOBLOCK)
        except zmq.Again:  # the connection was lost in between
            return False
        return True

    def close(self) -> None:
        """Disconnect."""
        self._close()
