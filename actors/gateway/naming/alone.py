"""A name server without a broker: `penstock namesrv`. One loop over its connections.

    brokers -> register, every 30 s; forgotten when silent for 2 min or when their connection ends
    clients -> where is a topic, which brokers are there

It keeps nothing but its settings: after a restart brokers register again. Its answers come from
remoting/naming, as in a broker's gateway.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from functools import partial
from pathlib import Path

from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.connecting.connections import Connections
from penstock.actors.gateway.naming.settings_file import load_settings, save_settings
from penstock.remoting.codes import Response
from penstock.remoting.command import Command
from penstock.remoting.naming.server import NAMING, NameServer
from penstock.remoting.replies import Reply, refusal, response
from penstock.shared.clock import Clock
from penstock.shared.errors import PenstockError, TopicNotFound
from penstock.shared.files.certificates import Tls
from penstock.shared.process.connection_limit import ConnectionLimit
from penstock.shared.process.listeners import Listener

# Between two looks for brokers that are silent.
TICK_MS = 1000
# Fewer if the process may not open this many files.
MOST_CONNECTIONS = 10_000


class LoneNameServer:
    """A name server on one listening socket, which it owns. `report` is told what happens."""

    def __init__(
        self,
        listener: Listener,
        settings: Path,
        clock: Clock,
        report: Callable[[str], None],
        tls: Tls = Tls(),  # noqa: B008 - it is a value
        orders_in_routes: bool = False,
    ) -> None:
        """`settings` is the file with operators' settings; for `orders_in_routes` see NameServer.
        Raises StoreDamaged, OSError."""
        self._clock, self._report, self._listener = clock, report, listener
        host, _, port = listener.endpoint.removeprefix("tcp://").rpartition(":")
        self._server = NameServer(
            _not_found,
            partial(save_settings, settings),
            load_settings(settings),
            {"bindAddress": host, "listenPort": port, "kvConfigPath": settings.absolute()},
            orders_in_routes,
        )
        sockets = {listener.endpoint: listener.socket.fileno()}
        self._connections = Connections(sockets, self._closed, self._gone, tls, clock.monotonic_ms)
        self._poll = select.poll()
        self._listen(self._connections.handle, True)
        self._limit = ConnectionLimit(sockets, MOST_CONNECTIONS, report, self._listen)
        self.stopping = False

    def run(self) -> None:
        """Serve until `stopping` is set, by a signal for example."""
        while not self.stopping:
            self._poll.poll(0 if self._connections.has_more else TICK_MS)
            self.turn()
        self._connections.close_all()
        self._listener.socket.close()

    def _listen(self, handle: int, wanted: bool) -> None:
        if wanted:
            self._poll.register(handle, select.POLLIN)
        else:
            self._poll.unregister(handle)

    def turn(self) -> None:
        """Take what has come, and answer it."""
        now_ms = self._clock.monotonic_ms()
        self._limit.tend(now_ms)
        self._connections.accept(now_ms)
        for connection, command in self._connections.commands(now_ms, True):
            self._serve(connection, command, now_ms)
        self._connections.flush(now_ms)
        self._connections.check(now_ms)
        for address in self._server.routes.expire(now_ms):
            self._report(f"broker {address} was silent, and is forgotten")

    def _serve(self, connection: Connection, command: Command, now_ms: int) -> None:
        if command.is_response:
            return
        try:
            if command.code in NAMING:
                reply = self._server.answer(command, connection, now_ms)
            else:
                remark = f"a name server has no request of code {command.code}"
                reply = Reply(code=Response.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        except PenstockError as error:
            reply = refusal(error)
        except Exception as error:
            self._connections.fail(connection, error, command.code, self._report)
            return
        if not command.is_oneway:
            self._connections.answer(connection, response(command, reply))

    def _closed(self, what: str) -> None:
        self._report(f"closed a connection that {what}")

    def _gone(self, connection: Connection) -> None:
        for address in self._server.routes.gone(connection):
            self._report(f"the connection of broker {address} has ended, and it is forgotten")


def _not_found(topic: str) -> TopicNotFound:
    return TopicNotFound(
        "no broker that is registered here has this topic",
        topic,
        "see which there are: mqadmin topicList",
    )
