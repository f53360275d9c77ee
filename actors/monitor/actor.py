"""The monitor: a web page, a JSON API, and metrics, over HTTP and read-only.

Owns:     nothing that anybody reads; its connections, and 15 minutes of rates in its memory.
Reads:    all positions, the queue table; all files of the store. It asks nobody.
Hears:    nobody.
Notifies: nobody.
On crash: nothing is lost except the 15 minutes. It is spare: nobody waits for it at a start, and
          its failures do not count against the broker.

The supervisor opens its socket, like those of the others, so an open page goes on with the next
monitor.
"""

from __future__ import annotations

import socket

from penstock.actors.monitor.history import History
from penstock.actors.monitor.http_server import UNREAD_MS, HttpServer
from penstock.actors.monitor.reading import Reading
from penstock.actors.monitor.routes import Routes
from penstock.shared.process.actor import Actor, Stage


class Monitor(Actor):
    """Shows the broker to people and to Prometheus."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._clock = stage.clock
        self._history = History()

    def start(self) -> None:
        stage = self._stage
        self._reading = Reading(stage.config, stage.run, stage.positions, stage.clock)
        self._routes = Routes(self._reading, self._history, stage.report)
        self._server: HttpServer | None = None
        self._more = False
        handle = stage.listening.get(stage.run.endpoints.monitor)
        if handle is not None:
            # a copy: the supervisor's socket for the actor stays open while the actor lives
            listener = socket.socket(fileno=socket.dup(handle))
            self._server = HttpServer(listener, stage.listen, self._routes.answer)
            server = self._server
            self._routes.requests = lambda: server.requests

    def work(self) -> int:
        now_ms = self._clock.monotonic_ms()
        has_grown = self._history.look(self._stage.positions, now_ms)
        if self._history.due_ms(now_ms) <= 0:
            messages = self._reading.queues.message_count
            wall_ms = self._clock.now_ms()
            self._history.sample(self._stage.positions, messages, now_ms, wall_ms)
        served = 0 if self._server is None else self._server.serve(now_ms)
        self._more = served > 0
        return has_grown + served

    def has_more(self) -> bool:
        return self._more  # growth of the log is noted, but leaves no work

    def idle_ms(self) -> int:
        if self._server is not None and self._server.busy:
            return UNREAD_MS
        return max(1, self._history.due_ms(self._clock.monotonic_ms()))

    def release_deleted(self) -> None:
        self._reading.release_deleted()

    def drained(self) -> bool:
        """Always: clients can ask again."""
        return True

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._reading.close()
