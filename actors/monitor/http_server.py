"""Connections of HTTP clients: non-blocking sockets within the actor's own loop.

It owns the sockets. What a client sends can hurt only its own connection: the size of a request,
the number of connections and the time of silence are bounded. It must not know what is asked for:
it calls `respond` with a request. Whenever the answer pauses, all others have a turn.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Generator
from contextlib import suppress
from http import HTTPStatus

from penstock.actors.monitor.http_messages import (
    MAX_HEAD_BYTES,
    Answer,
    BadRequest,
    Request,
    decode_request,
    encode_answer,
    head_end,
    plain,
)

MOST_CONNECTIONS = 64
# After this silence a connection is closed; after the shorter one if a request has begun, or an
# answer is unread.
IDLE_MS = 60_000
HALF_MS = 10_000
# While an answer is not completely sent, there is no event to sleep for.
UNREAD_MS = 5
_READ_BYTES = 16 << 10

Answering = Generator[None, None, Answer]
Respond = Callable[[Request], Answering]
Listen = Callable[[int, bool], None]


class _Connection:
    def __init__(self, peer: socket.socket, now_ms: int) -> None:
        self.socket = peer
        self.came = bytearray()
        self.unsent = memoryview(b"")
        # the request whose answer is being made
        self.asked: tuple[Request, Answering] | None = None
        self.closes = False
        self.is_heard = True  # whether incoming bytes end the actor's sleep
        self.moved_ms = now_ms


class HttpServer:
    """Serves one listening socket. `listen` makes a descriptor end the actor's sleep."""

    def __init__(self, listener: socket.socket, listen: Listen, respond: Respond) -> None:
        self._listener = listener
        self._listen = listen
        self._respond = respond
        self._connections: dict[int, _Connection] = {}
        # an IPv6 address may end with the name of its interface
        address = listener.getsockname()[0].partition("%")[0]
        self._local_only = ipaddress.ip_address(address).is_loopback
        self.requests = 0
        listener.setblocking(False)
        listen(listener.fileno(), True)

    @property
    def busy(self) -> bool:
        """Whether a client has still to read an answer."""
        return any(each.unsent for each in self._connections.values())

    def serve(self, now_ms: int) -> int:
        """Serve each connection once; returns how much was done."""
        done = self._accept(now_ms)
        for handle in list(self._connections):
            connection = self._connections[handle]
            try:
                done += self._turn(connection, now_ms)
            except OSError:  # the client has gone
                connection.closes, connection.unsent = True, memoryview(b"")
            limit_ms = HALF_MS if connection.came or connection.unsent else IDLE_MS
            if now_ms - connection.moved_ms > limit_ms:
                connection.closes, connection.unsent = True, memoryview(b"")
            if connection.closes and not connection.unsent:
                self._close(handle)
            else:
                # until its answer is read, its socket is not read, so that must not end the sleep
                self._hear(connection, not (connection.unsent or connection.asked))
        return done

    def _accept(self, now_ms: int) -> int:
        taken = 0
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:  # no more clients wait, or this one has gone already
                return taken
            taken += 1
            if len(self._connections) >= MOST_CONNECTIONS:
                quiet = min(self._connections, key=lambda each: self._connections[each].moved_ms)
                self._close(quiet)
            peer.setblocking(False)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections[peer.fileno()] = _Connection(peer, now_ms)
            self._listen(peer.fileno(), True)

    def _hear(self, connection: _Connection, wanted: bool) -> None:
        if connection.is_heard != wanted:
            connection.is_heard = wanted
            self._listen(connection.socket.fileno(), wanted)

    def _turn(self, connection: _Connection, now_ms: int) -> int:
        """Answer one request at most, because others wait as well. Raises OSError."""
        done = self._send(connection, now_ms)
        if connection.unsent or connection.closes:
            return done  # further requests wait in its socket
        if connection.asked:
            return done + self._go_on(connection, *connection.asked, now_ms)
        came = None
        if len(connection.came) < MAX_HEAD_BYTES:  # answer first what has come, then read more
            with suppress(BlockingIOError):
                came = connection.socket.recv(_READ_BYTES)
        if came is not None:
            connection.moved_ms = now_ms
            connection.came += came
            connection.closes = not came
            done += 1
        if connection.came and not connection.closes:
            done += self._answer(connection, now_ms)
        return done

    def _answer(self, connection: _Connection, now_ms: int) -> int:
        try:
            end = head_end(connection.came)
            if not end:
                return 0
            request = decode_request(bytes(connection.came[:end]), local_only=self._local_only)
            del connection.came[:end]
        except BadRequest as error:
            request = Request("GET", "", {}, keeps_open=False)
            refused = plain(error.status, str(error))._replace(close=True)
            return self._finish(connection, request, refused, now_ms)
        if request.method not in ("GET", "HEAD"):
            refused = plain(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD only")
            return self._finish(connection, request, refused, now_ms)
        return self._go_on(connection, request, self._respond(request), now_ms)

    def _go_on(
        self, connection: _Connection, request: Request, answering: Answering, now_ms: int
    ) -> int:
        """Go on to the next pause. Raises OSError if the client has gone."""
        connection.asked, connection.moved_ms = (request, answering), now_ms
        try:
            next(answering)
        except StopIteration as end:
            connection.asked = None
            return self._finish(connection, request, end.value, now_ms)
        with suppress(BlockingIOError):
            if not connection.socket.recv(1, socket.MSG_PEEK):
                raise ConnectionAbortedError
        return 1

    def _finish(
        self, connection: _Connection, request: Request, answer: Answer, now_ms: int
    ) -> int:
        self.requests += 1
        keeps_open = request.keeps_open and not answer.close
        connection.closes = not keeps_open
        raw = encode_answer(answer, with_body=request.method != "HEAD", keeps_open=keeps_open)
        connection.unsent = memoryview(raw)
        return 1 + self._send(connection, now_ms)

    def _send(self, connection: _Connection, now_ms: int) -> int:
        sent = 0
        while connection.unsent:
            try:
                count = connection.socket.send(connection.unsent)
            except BlockingIOError:
                break
            connection.unsent = connection.unsent[count:]
            connection.moved_ms = now_ms
            sent = 1
        return sent

    def _close(self, handle: int) -> None:
        connection = self._connections.pop(handle)
        if connection.asked:
            connection.asked[1].close()
        self._hear(connection, False)
        connection.socket.close()

    def close(self) -> None:
        for handle in list(self._connections):
            self._close(handle)
        self._listen(self._listener.fileno(), False)
        self._listener.close()
