"""Sockets without threads: imitates what ZeroMQ carries between actors and clients when one process
steps them all.

Frames between a client and an actor arrive at once and in order. Doorbells are lost, repeated and
late at random, as doorbells may be. `awake` names the actors that have received something.

Only those calls of ZeroMQ are imitated that `doorbells` and the actors make.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import zmq

LOST, LATE, REPEATED = 0.2, 0.2, 0.1


class Wire:
    """All sockets of one broker, and the peers that talk to it."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._bound: dict[str, Socket] = {}
        self._late: list[tuple[Socket, bytes]] = []
        # answers by peer
        self.answers: dict[bytes, deque[list[bytes]]] = {}
        self.awake: set[str] = set()

    def context(self, name: str) -> Any:
        """What an actor of this name takes for ZeroMQ's context."""
        return Context(self, name)

    def ask(self, endpoint: str, peer: bytes, parts: tuple[bytes, ...]) -> bool:
        """Send a request; return whether an actor is there to receive it."""
        socket = self._bound.get(endpoint)
        if socket is None:
            return False
        socket.inbox.append([peer, *parts])
        self.awake.add(socket.name)
        return True

    def ring(self, endpoint: str, bell: bytes) -> None:
        socket, chance = self._bound.get(endpoint), self._dice.random()
        if socket is None or chance < LOST:
            return
        if chance < LOST + LATE:
            self._late.append((socket, bell))
            return
        socket.hear(bell)
        if chance > 1 - REPEATED:
            self._late.append((socket, bell))

    def deliver(self) -> None:
        """Deliver one of the late doorbells, if there is one."""
        if self._late:
            socket, bell = self._late.pop(self._dice.randrange(len(self._late)))
            socket.hear(bell)

    def bind(self, endpoint: str, socket: Socket) -> None:
        self._bound[endpoint] = socket

    def unbind(self, socket: Socket) -> None:
        for endpoint in [at for at, found in self._bound.items() if found is socket]:
            del self._bound[endpoint]


class Context:
    """Makes the sockets of one actor."""

    def __init__(self, wire: Wire, name: str) -> None:
        self._wire, self._name = wire, name

    def socket(self, kind: int) -> Socket:
        return Socket(self._wire, self._name)

    def term(self) -> None:
        """Do nothing: there are no threads to wait for."""


class Socket:
    """A PULL or PUSH socket for bells, or an endpoint's ROUTER. It needs no options."""

    # no ZeroMQ socket for compiled code to ask: so that code calls `get`
    underlying = 0

    def __init__(self, wire: Wire, name: str) -> None:
        self.name = name
        self.inbox: deque[list[bytes]] = deque()
        self._parts: deque[bytes] = deque()  # of the message that is being received
        self._sending: list[bytes] = []  # parts of the message that is being sent
        self._wire = wire
        self._target = ""

    def set(self, option: int, value: int) -> None:
        """Do nothing: see above."""

    def get(self, option: int) -> int:
        """What the code under test asks for: pending events, and whether more parts come."""
        return bool(self._parts) if option == zmq.RCVMORE else zmq.POLLIN if self.inbox else 0

    def bind(self, endpoint: str) -> None:
        self._wire.bind(endpoint, self)

    def connect(self, endpoint: str) -> None:
        self._target = endpoint

    def hear(self, bell: bytes) -> None:
        self.inbox.append([bell])
        self._wire.awake.add(self.name)

    def send(self, part: bytes, flags: int = 0) -> None:
        self._sending.append(part)
        if flags & zmq.SNDMORE:
            return
        parts, self._sending = self._sending, []
        if self._target:
            (bell,) = parts
            self._wire.ring(self._target, bell)
        else:
            self.send_multipart(parts)

    def recv(self, flags: int = 0, copy: bool = True) -> Any:
        if not self._parts:
            if not self.inbox:
                raise zmq.Again
            self._parts.extend(self.inbox.popleft())
        part = self._parts.popleft()
        if copy:
            return part
        frame = zmq.Frame(part)
        frame.more = bool(self._parts)  # callers that take frames ask them, and not the socket
        return frame

    def send_multipart(self, parts: Any, *given: Any, **named: Any) -> zmq.MessageTracker:
        """Deliver at once, so that the returned tracker is done already."""
        peer, *rest = (bytes(part) for part in parts)
        self._wire.answers.setdefault(peer, deque()).append(rest)
        return zmq.MessageTracker()

    def close(self, linger: int | None = None) -> None:
        self._wire.unbind(self)
