"""What the broker asks others over a connection: its clients, and name servers it registers with.

A question has one answer: a command, or a PenstockError where none came in time or the connection
ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.actors.gateway.connecting.connection import Connection
from penstock.remoting.command import ONEWAY_FLAG, Command
from penstock.shared.errors import BrokerBusy, BrokerTimeout, ConnectError, PenstockError

# RocketMQ's clients answer within this, and whoever the question is for waits for 5 s as a rule.
TIMEOUT_MS = 4000

Then = Callable[[Command | PenstockError], None]


class _Asked(NamedTuple):
    connection: Connection
    then: Then
    until_ms: int


class PeerRequests:
    """Requests on their way to peers."""

    def __init__(
        self,
        send: Callable[[Connection, Command], None],
        later: Callable[[Then], Then] = lambda then: then,
    ) -> None:
        """`later` wraps a callback so that it runs in the name of the request that is at work
        now."""
        self._send, self._later = send, later
        self._asked: dict[int, _Asked] = {}
        self._number = 0

    def ask(
        self,
        connection: Connection,
        code: int,
        fields: Mapping[str, str],
        body: bytes | memoryview,
        then: Then,
        now_ms: int,
    ) -> None:
        """Ask; `then` gets the answer or the error. Raises ProtocolError for what fits no frame."""
        if not connection.may_receive:
            unread = f"{connection.address} has {connection.unread_bytes} bytes to read"
            then(BrokerBusy("the client does not read what it is sent", unread, "try again"))
            return
        self._number = self._number % 0x7FFFFFFF + 1
        self._send(connection, Command(code, self._number, fields, body))
        self._asked[self._number] = _Asked(connection, self._later(then), now_ms + TIMEOUT_MS)

    def tell(
        self,
        connection: Connection,
        code: int,
        fields: Mapping[str, str],
        body: bytes | memoryview = b"",
    ) -> None:
        """Send a oneway request. A peer that does not read misses it: it is sent again, or the peer
        looks by itself, as members rebalance every 20 s."""
        if not connection.may_receive:
            return
        self._number = self._number % 0x7FFFFFFF + 1
        self._send(connection, Command(code, self._number, fields, body, ONEWAY_FLAG))

    def heard(self, connection: Connection, answer: Command) -> None:
        """An answer has come. One to no question of this peer's is ignored."""
        asked = self._asked.get(answer.opaque)
        if asked is not None and asked.connection is connection:
            del self._asked[answer.opaque]
            asked.then(answer)

    def gone(self, connection: Connection) -> None:
        for number, asked in list(self._asked.items()):
            if asked.connection is not connection:
                continue
            # a callback may have ended other questions
            if self._asked.pop(number, None) is not None:
                asked.then(ConnectError("the connection has ended", connection.address))

    def work(self, now_ms: int) -> None:
        for number, asked in list(self._asked.items()):
            if now_ms < asked.until_ms:
                return  # all have the same timeout, so the rest is younger
            if self._asked.pop(number, None) is None:
                continue  # an earlier callback has ended its connection
            late = f"{asked.connection.address}, within {TIMEOUT_MS} ms"
            asked.then(BrokerTimeout("it has not answered", late, "try again"))
