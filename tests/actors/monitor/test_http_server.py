"""Connections of the monitor: each costs itself only, whatever comes by it."""

from __future__ import annotations

import socket
from collections.abc import Generator, Iterator

import pytest

from penstock.actors.monitor.http_messages import Answer, Request
from penstock.actors.monitor.http_server import (
    HALF_MS,
    IDLE_MS,
    MOST_CONNECTIONS,
    HttpServer,
)

LARGE = b"x" * (8 << 20)
GET = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Served:
    """A server with a clock that the test moves, in the test's own thread."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        listener = socket.create_server((host, 0))
        self.at = listener.getsockname()
        self.now_ms = 0
        self.listened: set[int] = set()
        self.slow_ends = self.slow_closed = False
        self.server = HttpServer(listener, self._listen, self._respond)

    def _listen(self, handle: int, wanted: bool) -> None:
        (self.listened.add if wanted else self.listened.remove)(handle)

    def _respond(self, request: Request) -> Generator[None, None, Answer]:
        try:
            while request.path == "/slow" and not self.slow_ends:
                yield
        finally:
            self.slow_closed = request.path == "/slow"
        return Answer(200, "text/plain", LARGE if request.path == "/large" else b"fine")

    def connect(self) -> socket.socket:
        peer = socket.create_connection(self.at)
        peer.settimeout(60)
        self.turn()
        return peer

    def turn(self) -> None:
        while self.server.serve(self.now_ms):
            pass

    def ask(self, peer: socket.socket, text: bytes) -> bytes:
        peer.sendall(text)
        self.turn()
        return peer.recv(65536)


@pytest.fixture
def served() -> Iterator[Served]:
    found = Served()
    yield found
    found.server.close()
    assert not found.listened


def test_a_connection_is_used_again_and_head_has_no_body(served: Served) -> None:
    with served.connect() as peer:
        for _ in range(3):
            assert served.ask(peer, GET % b"").endswith(b"\r\n\r\nfine")
        found = served.ask(peer, (GET % b"").replace(b"GET", b"HEAD"))
        assert found.endswith(b"\r\n\r\n") and b"Content-Length: 4" in found
    assert served.server.requests == 4


def test_two_requests_in_one_piece_get_two_answers(served: Served) -> None:
    with served.connect() as peer:
        peer.sendall(GET % b"" + GET % b"")
        found = b""
        while found.count(b"fine") < 2:
            served.turn()
            found += peer.recv(65536)


def test_a_request_may_come_byte_by_byte(served: Served) -> None:
    with served.connect() as peer:
        for byte in (GET % b"")[:-1]:
            peer.sendall(bytes([byte]))
            served.turn()
        assert served.ask(peer, b"\n").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"405"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"421"),
        (b"GET /" + b"a" * 9000, b"431"),
    ],
)
def test_what_is_bad_gets_its_status_and_costs_that_connection(
    served: Served, text: bytes, status: bytes
) -> None:
    with served.connect() as other, served.connect() as peer:
        assert served.ask(peer, text).split()[1] == status
        assert served.ask(other, GET % b"").endswith(b"fine")
        if status != b"405":
            assert peer.recv(10) == b"", "it is closed"


def test_who_does_not_read_a_large_answer_keeps_nobody_waiting(served: Served) -> None:
    with served.connect() as slow, served.connect() as other:
        assert len(served.listened) == 3, "both, and the listening socket"
        slow.sendall(GET % b"large")
        served.turn()
        assert served.server.busy and len(served.listened) == 2, "what it sends ends no sleep"
        assert served.ask(other, GET % b"").endswith(b"fine")
        came = 0
        while came < len(LARGE):
            served.turn()
            came += len(slow.recv(1 << 20))
        served.turn()
        assert not served.server.busy and len(served.listened) == 3


def test_a_look_that_takes_long_keeps_nobody_waiting(served: Served) -> None:
    with served.connect() as slow, served.connect() as other:
        slow.sendall(GET % b"slow")
        other.sendall(GET % b"")
        for _ in range(10):
            assert served.server.serve(served.now_ms) > 0, "there is more to do, so no sleep"
        assert other.recv(65536).endswith(b"fine")
        assert len(served.listened) == 2, "the one that waits for its answer ends no sleep"
        # it is at work for it, so this is no silence
        served.now_ms += IDLE_MS
        assert served.server.serve(served.now_ms)
        served.now_ms += IDLE_MS
        assert served.server.serve(served.now_ms) and not served.slow_closed
        served.slow_ends = True
        served.turn()
        assert slow.recv(65536).endswith(b"fine")


def test_a_look_ends_when_nobody_waits_for_it(served: Served) -> None:
    with served.connect() as slow:
        slow.sendall(GET % b"slow")
        while not served.server.requests and not served.server.serve(served.now_ms):
            pass
    served.turn()
    assert served.slow_closed and not served.server.busy


@pytest.mark.parametrize("host", ["127.0.0.2", "127.0.0.1"])
def test_every_address_of_this_machine_alone_answers_no_other_name(host: str) -> None:
    found = Served(host)
    with found.connect() as peer:
        assert found.ask(peer, GET % b"").endswith(b"fine")
        evil = (GET % b"").replace(b"localhost", b"evil.example")
        assert found.ask(peer, evil).split()[1] == b"421"
    found.turn()
    found.server.close()


def test_who_says_nothing_or_half_of_it_is_left(served: Served) -> None:
    with served.connect() as silent, served.connect() as half:
        half.sendall(b"GET /")
        served.turn()
        served.now_ms += HALF_MS
        served.turn()
        assert len(served.listened) == 3, "its time is not over"
        served.now_ms += 1
        served.turn()
        assert half.recv(10) == b""
        assert served.ask(silent, GET % b"").endswith(b"fine")
        served.now_ms += IDLE_MS + 1
        served.turn()
        assert silent.recv(10) == b""


def test_one_connection_too_many_takes_the_place_of_the_quietest(served: Served) -> None:
    peers = []
    for _ in range(MOST_CONNECTIONS + 1):
        served.now_ms += 1
        peers.append(served.connect())
    assert peers[0].recv(10) == b""
    assert served.ask(peers[-1], GET % b"").endswith(b"fine")
    for peer in peers:
        peer.close()


def test_of_a_crowd_that_comes_at_once_nobody_is_heard_who_had_to_go(served: Served) -> None:
    peers = [socket.create_connection(served.at) for _ in range(MOST_CONNECTIONS + 1)]
    served.turn()
    assert len(served.listened) == MOST_CONNECTIONS + 1, "they, and the listening socket"
    for peer in peers:
        peer.close()


def test_a_connection_that_is_torn_away_is_forgotten(served: Served) -> None:
    peer = served.connect()
    peer.sendall(GET % b"large")
    served.turn()
    # with a zero linger time a close is a reset
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    peer.close()
    served.turn()
    assert len(served.listened) == 1, "the listening socket's"
