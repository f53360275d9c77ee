"""Pulls and locks that have come before their client's heartbeat, and wait for it.

RocketMQ's clients open a connection with their next pull, and only then send the heartbeat that
says who they are: each pull that overtook it would be refused, and tried again some seconds later.
The same goes for a pull that names a newer subscription than the last heartbeat did, and for a lock
that is renewed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.serving import Serving

# How much later a heartbeat may come.
LATE_MS = 1000
# For one connection: a client has a pull on its way for each of its queues.
MOST = 1000

# Serves a pull, or returns why it cannot.
Serve = Callable[[], Reply | None]


class _Early(NamedTuple):
    call: Call
    serve: Serve


class EarlyPulls:
    """The pulls and locks that wait, by connection."""

    def __init__(self, serving: Serving, answer: Callable[[Call, Reply], None]) -> None:
        self._serving, self._answer = serving, answer
        # the connection with the oldest first pull comes first
        self._waiting: dict[Connection, list[_Early]] = {}

    def hold(self, call: Call, serve: Serve) -> bool:
        """Have it served when its client's heartbeat has come, or without one after LATE_MS.
        Returns False for one too many."""
        waiting = self._waiting.setdefault(call.connection, [])
        if len(waiting) >= MOST:
            return False
        waiting.append(_Early(call, serve))
        return True

    def heard(self, connection: Connection) -> None:
        """A heartbeat has come: serve what waits for it."""
        for each in self._waiting.pop(connection, ()):
            if (reply := self._serving.do(each.call, each.serve)) is not None:
                self._answer(each.call, reply)

    def work(self, now_ms: int) -> None:
        for connection, waiting in list(self._waiting.items()):
            if now_ms < waiting[0].call.now_ms + LATE_MS:
                break
            self.heard(connection)

    def gone(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)
