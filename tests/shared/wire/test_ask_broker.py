"""Asking who is at an endpoint: a broker says it, and everybody else is named, and soon."""

from __future__ import annotations

import http.server
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import zmq

from penstock.shared.errors import BrokerTimeout, ConnectError
from penstock.shared.wire.ask_broker import NobodyThere, ask_broker
from penstock.shared.wire.introduction import (
    ENDPOINT_OF,
    PROTOCOL,
    Greeted,
    decode_greet,
    encode,
)

# What a user waits for a name at most; the limits themselves are half of it.
SOON_S = 6.0
# Never to be reached by whom it is named to.
TIMEOUT_MS = 20_000
Handler = Callable[[socket.socket], None]
ANSWER = Greeted(PROTOCOL, "1.2.3", "producers", "tcp://h:1", "tcp://h:2", "0" * 16, "/s", 7)


class Strangers:
    """Servers of one handler each, which all end with the test."""

    def __init__(self) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self._listeners: list[socket.socket] = []
        self._peers: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._zeromq: list[Any] = []

    def tcp(self, handler: Handler) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        self._listeners.append(listener)
        self._start(lambda: self._accept(listener, handler))
        return f"tcp://127.0.0.1:{listener.getsockname()[1]}"

    def zeromq(self, kind: int) -> tuple[str, Any]:
        peer = self.context.socket(kind)
        peer.linger = 0
        self._zeromq.append(peer)
        return f"tcp://127.0.0.1:{peer.bind_to_random_port('tcp://127.0.0.1')}", peer

    def _accept(self, listener: socket.socket, handler: Handler) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            self._peers.append(peer)
            self._start(lambda peer=peer: self._serve(handler, peer))

    @staticmethod
    def _serve(handler: Handler, peer: socket.socket) -> None:
        try:
            handler(peer)
        except OSError:
            return  # the other side has gone

    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        for each in self._listeners:
            each.shutdown(socket.SHUT_RDWR)
            each.close()
        for peer in self._peers:
            peer.close()
        for thread in self._threads:
            thread.join(10)
        for each in self._zeromq:
            each.close()
        self.context.term()


@pytest.fixture
def strangers() -> Iterator[Strangers]:
    found = Strangers()
    yield found
    found.close()


def refused(endpoint: str, timeout_ms: int = TIMEOUT_MS) -> ConnectError:
    """The error, which comes soon and names the endpoint."""
    began = time.monotonic()
    with pytest.raises(ConnectError) as caught:
        ask_broker(endpoint, timeout_ms)
    assert time.monotonic() - began < SOON_S
    assert endpoint in str(caught.value)
    return caught.value


def test_all_endpoints_of_a_broker_say_who_it_is(broker: Any) -> None:
    endpoints = broker.status()["endpoints"]
    named = {name: serves for serves, name in ENDPOINT_OF.items()}
    for name in filter(endpoints.get, endpoints):
        found = ask_broker(endpoints[name], TIMEOUT_MS)
        assert found.serves == named[name.removesuffix("_ipc")]
        assert all(getattr(found, each) == endpoints[each] for each in named)
        assert (found.protocol, found.store) == (PROTOCOL, str(broker.store.resolve()))
        assert found.pid == broker.process.pid and found.run_id in broker.status()["run_directory"]


def test_nobody_is_told_of_at_once(short_path: Path, own_clock: Callable[..., float]) -> None:
    with socket.socket() as bound:  # nobody listens, and nobody else takes the port
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        for endpoint in (f"tcp://127.0.0.1:{port}", f"ipc://{short_path}/none"):
            began = own_clock()
            with pytest.raises(NobodyThere, match="nobody listens") as caught:
                ask_broker(endpoint, TIMEOUT_MS)
            assert "penstock up" in caught.value.hint
            assert own_clock() - began < 1


def test_a_name_that_nobody_knows_is_told_of_as_such() -> None:
    assert "name cannot be resolved" in refused("tcp://no-such-host.invalid:1").what


def _silent(peer: socket.socket) -> None:
    while peer.recv(4096):
        pass


def _echo(peer: socket.socket) -> None:
    while data := peer.recv(4096):
        peer.sendall(data)


def _reads_and_hangs_up(peer: socket.socket) -> None:
    """So that the end comes in order, and not as a reset."""
    peer.recv(4096)
    peer.close()


def _after_a_line(said: bytes) -> Handler:
    def serve(peer: socket.socket) -> None:
        heard = b""
        while b"\n" not in heard:
            if not (more := peer.recv(4096)):
                return
            heard += more
        peer.sendall(said)
        _silent(peer)

    return serve


def _at_once(said: bytes) -> Handler:
    def serve(peer: socket.socket) -> None:
        peer.sendall(said)
        _silent(peer)

    return serve


@pytest.mark.parametrize(
    ("handler", "named"),
    [
        (_echo, "echo server"),
        (_after_a_line(b"-ERR unknown command\r\n"), "Redis"),
        (_after_a_line(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "HTTP server"),
        (_at_once(b"SSH-2.0-OpenSSH_9.6\r\n"), "SSH server"),
        (_at_once(b"220 mail ready\r\n"), "mail or FTP server"),
        (_at_once(b'INFO {"server_id":"x"}\r\n'), "NATS"),
        (_at_once(b"\x00\x01\x02 what else there is"), "another program is there"),
        (_at_once(b"?"), "another program is there"),
        (lambda peer: peer.close(), "hangs up"),
        (_reads_and_hangs_up, "hangs up"),
        (
            _at_once(b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0" + b"x" * 52 + b"\x02" + b"\xff" * 9),
            "another",
        ),
    ],
)
def test_another_server_is_named(strangers: Strangers, handler: Handler, named: str) -> None:
    assert named in refused(strangers.tcp(handler)).what


def test_a_real_http_server_is_named() -> None:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert "an HTTP server" in refused(f"tcp://127.0.0.1:{server.server_port}").what
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes the certificate")
def test_a_real_tls_server_is_named(strangers: Strangers, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x"]
        + ["-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def serve(peer: socket.socket) -> None:
        with context.wrap_socket(peer, server_side=True) as secured:
            secured.recv(1)

    assert "a TLS server" in refused(strangers.tcp(serve)).what


def test_a_server_that_says_nothing_is_told_of_soon(strangers: Strangers) -> None:
    error = refused(strangers.tcp(_silent))
    assert isinstance(error, BrokerTimeout) and "says nothing" in error.what


def test_a_short_timeout_is_kept(strangers: Strangers, own_clock: Callable[..., float]) -> None:
    began = own_clock()
    refused(strangers.tcp(_silent), timeout_ms=50)
    assert own_clock() - began < 1


@pytest.mark.parametrize("kind", [zmq.PUB, zmq.REP, zmq.PULL, zmq.DEALER])
def test_a_zeromq_socket_of_another_kind_is_named(strangers: Strangers, kind: int) -> None:
    endpoint, _ = strangers.zeromq(kind)
    error = refused(endpoint)
    assert "another program's ZeroMQ socket" in error.what
    assert zmq.SocketType(kind).name in str(error.value)


def test_a_router_that_does_not_answer_has_all_of_the_timeout(strangers: Strangers) -> None:
    endpoint, _ = strangers.zeromq(zmq.ROUTER)
    error = refused(endpoint, timeout_ms=300)
    assert isinstance(error, BrokerTimeout) and "has not answered within 300 ms" in error.what


def _answer_with(router: Any, said: bytes) -> None:
    peer, header = router.recv_multipart()
    greet = decode_greet(header)
    assert greet is not None and greet.protocol == PROTOCOL
    router.send_multipart((peer, said))


@pytest.mark.parametrize("said", [b"", b"\xc0", b"what?", encode(ANSWER)[:-1]])
def test_a_router_that_answers_something_else_is_no_broker(
    strangers: Strangers, said: bytes
) -> None:
    endpoint, router = strangers.zeromq(zmq.ROUTER)
    thread = threading.Thread(target=_answer_with, args=(router, said))
    thread.start()
    error = refused(endpoint)
    thread.join()
    assert "no Penstock broker of this version" in error.what


def test_what_a_later_version_adds_behind_its_answer_is_left_alone(strangers: Strangers) -> None:
    import msgspec

    longer = [*msgspec.msgpack.decode(encode(ANSWER)), "more", 7]
    endpoint, router = strangers.zeromq(zmq.ROUTER)
    thread = threading.Thread(target=_answer_with, args=(router, msgspec.msgpack.encode(longer)))
    thread.start()
    assert ask_broker(endpoint, TIMEOUT_MS) == ANSWER
    thread.join()


def test_a_connection_that_breaks_is_tried_again(strangers: Strangers) -> None:
    """As when the actor that has taken it is replaced."""
    endpoint, router = strangers.zeromq(zmq.ROUTER)
    port = int(endpoint.rpartition(":")[2])
    broken = []

    def serve(peer: socket.socket) -> None:
        if len(broken) < 3:
            broken.append(peer)
            peer.close()
            return
        with socket.create_connection(("127.0.0.1", port)) as through:
            _pass_on(peer, through)

    thread = threading.Thread(target=_answer_with, args=(router, encode(ANSWER)))
    thread.start()
    assert ask_broker(strangers.tcp(serve), TIMEOUT_MS) == ANSWER
    thread.join()
    assert len(broken) == 3


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    def pump(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(4096):
                target.sendall(data)
        except OSError:
            pass  # one side has closed: the other is told below
        with suppress(OSError):  # it has gone by itself
            target.shutdown(socket.SHUT_RDWR)

    back = threading.Thread(target=pump, args=(other, one))
    back.start()
    pump(one, other)
    back.join()
