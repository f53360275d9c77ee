"""How the broker registers with RocketMQ's name servers, to be one of a cluster's brokers.

    connect -> REGISTER_BROKER: all topics, at once, each 30 s, and when topics have changed
    stop    -> UNREGISTER_BROKER; whoever misses that hears the end of the connection

Name servers are independent: one that is down is tried again, and delays nobody. Only their
addresses are looked up in a thread, as a host name may take long.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.connecting.connections import Connections
from penstock.actors.gateway.connecting.peer_requests import PeerRequests
from penstock.actors.gateway.naming.own import OwnNames
from penstock.actors.gateway.topics import TopicTable
from penstock.remoting.codes import Request, Response
from penstock.remoting.command import Command
from penstock.remoting.fields import write_fields
from penstock.remoting.naming.registration import Registration, encode_registration
from penstock.remoting.naming.words import BrokerFields, DataVersion
from penstock.shared.clock import Clock
from penstock.shared.errors import PenstockError

EVERY_MS = 30_000
# A name server that cannot be reached, or refuses, is tried again after this time.
AGAIN_MS = 2000
# Topics made shortly after each other share a registration, as each one lists all topics.
CHANGE_MS = 300
# How long a stop waits until its farewells are sent: a name server that reads nothing forgets the
# broker by itself.
LEAVE_MS = 1000


class _Place(NamedTuple):
    family: int
    address: tuple[str, int]


class _NameServer:
    """One name server, as this broker sees it."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.looking: Future[_Place] | None = None
        self.connection: Connection | None = None
        self.next_ms = 0
        self.is_asked = False
        # what it was told last, and when
        self.version, self.told_ms = -1, 0
        # why the connection ends, if that is known, and what was reported last
        self.why, self.said = "", ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Registrations:
    """The broker's registrations with all name servers that are configured."""

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        names: OwnNames,
        topics: TopicTable,
        connections: Connections,
        requests: PeerRequests,
        clock: Clock,
        report: Callable[[str], None],
    ) -> None:
        self._names, self._topics = names, topics
        self._connections, self._requests = connections, requests
        self._clock, self._report = clock, report
        self._servers = [_NameServer(*each) for each in addresses]
        self._pool = ThreadPoolExecutor(1, "names") if self._servers else None
        self._leave_ms = 0
        # one body for all of them
        self._body, self._body_version = b"", -1

    def work(self, now_ms: int) -> None:
        for server in self._servers if not self._leave_ms else ():
            if server.connection is None:
                self._connect(server, now_ms)
            elif not server.is_asked:
                is_news = server.version != self._topics.version
                due_ms = server.told_ms + (CHANGE_MS if is_news else EVERY_MS)
                if now_ms >= max(due_ms, server.next_ms):
                    self._register(server, server.connection, now_ms)

    def _connect(self, server: _NameServer, now_ms: int) -> None:
        if server.looking is None:
            if now_ms < server.next_ms:
                return
            assert self._pool is not None
            server.looking = self._pool.submit(_look_up, server.host, server.port)
        if not server.looking.done():
            return
        found, server.looking = server.looking, None
        server.next_ms = now_ms + AGAIN_MS
        try:
            place = found.result()
            peer = socket.socket(place.family)
        except (OSError, UnicodeError) as error:  # the latter for an invalid name
            self._tell(server, f"name server {{}} is not found: {error}; trying again")
            return
        peer.setblocking(False)
        peer.connect_ex(place.address)  # whether it succeeds shows when it is read from
        server.connection = self._connections.add(peer, place.address, now_ms)
        server.next_ms, server.told_ms, server.why = 0, -EVERY_MS, ""

    def _register(self, server: _NameServer, connection: Connection, now_ms: int) -> None:
        version = self._topics.version
        if self._body_version != version:
            # the timestamp tells versions of one run from those of another
            known = DataVersion(version, 0, self._clock.now_ms())
            said = Registration(self._topics.all_routed(), known)
            self._body, self._body_version = encode_registration(said), version

        def answered(answer: Command | PenstockError) -> None:
            server.is_asked = False
            if not isinstance(answer, Command):
                server.why = str(answer)
                self._connections.close(connection)
                return
            server.version = version
            if answer.code == Response.SUCCESS:
                self._tell(server, "registered with name server {}")
            else:
                server.version, server.next_ms = -1, server.told_ms + AGAIN_MS
                self._tell(server, f"name server {{}} refuses this broker: {answer.remark}")

        server.is_asked, server.told_ms = True, now_ms
        fields = write_fields(self._names.fields)
        self._requests.ask(
            connection, Request.REGISTER_BROKER, fields, self._body, answered, now_ms
        )

    def _tell(self, server: _NameServer, what: str) -> None:
        """Report this once, until there is something else to report."""
        if what != server.said:
            server.said = what
            self._report(what.replace("{}", str(server), 1))  # the rest may have braces of its own

    def gone(self, connection: Connection) -> None:
        """A connection has ended; it may be one of these."""
        for server in self._servers:
            if server.connection is connection:
                server.connection, server.version, server.is_asked = None, -1, False
                server.next_ms = self._clock.monotonic_ms() + AGAIN_MS
                if not self._leave_ms:
                    why = server.why or "nobody listens there, or it has ended the connection"
                    self._tell(server, f"name server {{}} is not reached: {why}; trying again")

    def leave(self, now_ms: int) -> bool:
        """Tell all name servers that the broker stops; returns whether that has been sent, or is
        late."""
        there = [server.connection for server in self._servers if server.connection is not None]
        if not self._leave_ms:
            self._leave_ms = now_ms + LEAVE_MS
            own = self._names.fields
            said = write_fields(
                BrokerFields(own.broker_name, own.broker_addr, own.cluster_name, own.broker_id)
            )
            for each in there:
                self._requests.ask(
                    each, Request.UNREGISTER_BROKER, said, b"", lambda answer: None, now_ms
                )
        return now_ms >= self._leave_ms or not any(each.unread_bytes for each in there)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int) -> _Place:
    """Where a name server is. Raises OSError, UnicodeError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return _Place(family, (str(address[0]), int(address[1])))
