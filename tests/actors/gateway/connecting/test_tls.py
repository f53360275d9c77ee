"""TLS at the ports of RocketMQ's clients: next to plain connections, and however broken it is."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.actors.gateway.connecting.connection import STALL_MS, Connection, NotServed
from penstock.remoting.codes import Request, Response
from penstock.remoting.frames import FrameSplitter
from penstock.remoting.tls import TlsSession
from penstock.shared.config import Config
from penstock.shared.errors import ConfigError, ProtocolError
from penstock.shared.files.certificates import Tls, server_tls

HERE = Path(__file__).parent / "tls"
WAIT_S = 60
CERTIFICATE, KEY = str(HERE / "certificate.pem"), str(HERE / "key.pem")
NAMED = {"tls_server_cert_path": CERTIFICATE, "tls_server_key_path": KEY}
SEND = {
    "producerGroup": "g", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0,
    "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "topic": "secured",
}  # fmt: skip


def client_context() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=CERTIFICATE)


def secured(peer: Any) -> Any:
    """The same peer over TLS."""
    peer.socket = client_context().wrap_socket(peer.socket, server_hostname="127.0.0.1")
    return peer


def test_plain_and_secured_clients_are_served_at_one_port(
    start_broker: Callable[..., Any], new_peer: Callable[[str], Any]
) -> None:
    running = start_broker(
        gateway_enable="true", gateway_port=0, gateway_name_server_port=0,
        **{key: f'"{path}"' for key, path in NAMED.items()},
    )  # fmt: skip
    endpoints = running.status()["endpoints"]
    body = bytes(range(256)) * 200
    for port in ("remoting", "name_server"):
        for peer in (new_peer(endpoints[port]), secured(new_peer(endpoints[port]))):
            assert peer.ask(Request.GET_BROKER_CLUSTER_INFO).code == Response.SUCCESS
    plain, over_tls = new_peer(endpoints["remoting"]), secured(new_peer(endpoints["remoting"]))
    assert plain.ask(Request.SEND_MESSAGE, SEND, body).code == Response.SUCCESS
    for number in range(1, 21):  # in one go, so that many answers go out together
        over_tls.send(Request.SEND_MESSAGE, SEND, body + b"%d" % number)
    offsets = {over_tls.hear().fields["queueOffset"] for _ in range(20)}
    assert offsets == {str(number) for number in range(1, 21)}
    pull = {
        "consumerGroup": "g", "topic": "secured", "queueId": 0, "queueOffset": 0,
        "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
        "subscription": "*", "subVersion": 0, "maxMsgBytes": 4 << 20,
    }  # fmt: skip
    bodies = [b"", b""]
    deadline = time.monotonic() + WAIT_S
    while len(bodies[0]) < 20 * len(body) or len(bodies[1]) < len(bodies[0]):
        # what is acknowledged may come into its queue a moment later
        bodies = [bytes(each.ask(Request.PULL_MESSAGE, pull).body) for each in (plain, over_tls)]
        assert time.monotonic() < deadline, [len(each) for each in bodies]
    assert bodies[0] == bodies[1]


def test_where_tls_is_enforced_a_plain_client_is_not_served(
    lone_name_server: Callable[..., Any], new_peer: Callable[[str], Any], tmp_path: Path
) -> None:
    tls = server_tls(Config(tls_server_mode="enforcing", **NAMED))
    server = lone_name_server(tmp_path, tls=tls)
    plain = new_peer(server.endpoint)
    plain.send(Request.GET_BROKER_CLUSTER_INFO)
    assert plain.is_closed()
    peer = secured(new_peer(server.endpoint))
    assert peer.ask(Request.GET_BROKER_CLUSTER_INFO).code == Response.SUCCESS
    assert server.said == ["closed a connection that spoke no TLS, which it has to here"]


def test_without_a_certificate_a_client_that_speaks_tls_is_not_served(
    lone_name_server: Callable[..., Any], new_peer: Callable[[str], Any], tmp_path: Path
) -> None:
    server = lone_name_server(tmp_path)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        secured(new_peer(server.endpoint))
    assert "closed a connection that spoke TLS" in server.said[0]


def test_a_client_without_the_certificate_that_is_asked_for_is_told_and_costs_no_other(
    lone_name_server: Callable[..., Any], new_peer: Callable[[str], Any], tmp_path: Path
) -> None:
    asked = Config(
        tls_server_need_client_auth="require", tls_server_trust_cert_path=CERTIFICATE, **NAMED
    )
    server = lone_name_server(tmp_path, tls=server_tls(asked))
    refused = secured(new_peer(server.endpoint))  # in TLS 1.3 it hears with its first answer
    with pytest.raises(ssl.SSLError, match="(?i)certificate.required"):
        refused.ask(Request.GET_BROKER_CLUSTER_INFO)
    context = client_context()
    context.load_cert_chain(CERTIFICATE, KEY)
    peer = new_peer(server.endpoint)
    peer.socket = context.wrap_socket(peer.socket, server_hostname="127.0.0.1")
    assert peer.ask(Request.GET_BROKER_CLUSTER_INFO).code == Response.SUCCESS


@pytest.mark.parametrize("at", [1, 5, 6, 43, 100])
def test_a_bent_handshake_costs_its_connection_and_no_other(
    lone_name_server: Callable[..., Any], new_peer: Callable[[str], Any], tmp_path: Path, at: int
) -> None:
    server = lone_name_server(tmp_path, tls=server_tls(Config(**NAMED)))
    other = secured(new_peer(server.endpoint))
    hello = bytearray(_client_hello())
    hello[at:] = b"\xff" * (len(hello) - at)
    bent = new_peer(server.endpoint)
    bent.socket.sendall(hello + bytes(1 << 16))
    with suppress(ConnectionError):
        while bent.socket.recv(1 << 16):
            pass  # an alert
    assert other.ask(Request.GET_BROKER_CLUSTER_INFO).code == Response.SUCCESS


def _client_hello() -> bytes:
    out = ssl.MemoryBIO()
    session = client_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        session.do_handshake()
    return out.read()


@pytest.mark.parametrize("size", [1, 5, 60])
def test_half_a_handshake_has_a_minute(size: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        connection = Connection(ours, ("127.0.0.1", 1), 0, server_tls(Config(**NAMED)))
        theirs.sendall(_client_hello()[:size])
        assert list(connection.receive(10)) == []
        theirs.sendall(_client_hello()[size : size + 1])  # as slowly as it can
        assert list(connection.receive(STALL_MS)) == []
        connection.check(STALL_MS + 10)
        with pytest.raises(NotServed, match="handshake"):
            connection.check(STALL_MS + 11)


@given(
    frames=st.lists(st.binary(min_size=4, max_size=40_000), min_size=1, max_size=4),
    cuts=st.lists(st.integers(1, 20_000), min_size=1, max_size=8),
)
def test_however_the_bytes_are_cut_the_same_frames_come_out(
    frames: list[bytes], cuts: list[int]
) -> None:
    context = server_tls(Config(**NAMED)).context
    assert context is not None
    server = TlsSession(context)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context().wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    for _ in range(3):
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            server.open(to_server.read())
            to_client.write(server.seal())
    said = b"".join(len(each).to_bytes(4, "big") + each for each in frames)
    rest = memoryview(said)
    while rest:
        rest = rest[client.write(rest) :]
    sealed, at, number, heard, splitter = to_server.read(), 0, 0, [], FrameSplitter()
    while at < len(sealed):
        step = cuts[number % len(cuts)]
        heard += splitter.feed(server.open(sealed[at : at + step]))
        at, number = at + step, number + 1
    assert heard == frames and server.is_begun
    to_client.write(server.seal(said))
    back = b""
    while len(back) < len(said):
        back += client.read(1 << 16)
    assert back == said


@given(st.binary(max_size=300))
def test_any_bytes_are_a_handshake_a_part_of_one_or_a_protocol_error(data: bytes) -> None:
    context = server_tls(Config(**NAMED)).context
    assert context is not None
    server = TlsSession(context)
    try:
        assert server.open(b"\x16" + data) == b""
    except ProtocolError as error:
        assert "TLS" in str(error)
    assert not server.is_begun


def test_without_a_certificate_or_with_the_mode_disabled_no_tls_is_spoken() -> None:
    assert server_tls(Config()) == Tls()
    assert server_tls(Config(tls_server_mode="disabled", **NAMED)) == Tls()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tls_server_key_path": str(HERE / "other-key.pem")}, "certificate and its key"),
        ({"tls_server_key_path": str(HERE / "locked-key.pem")}, "certificate and its key"),
        ({"tls_server_cert_path": "/nonexistent"}, "/nonexistent"),
        ({"tls_server_trust_cert_path": KEY}, "clients are checked by"),
    ],
)
def test_files_that_cannot_be_used_are_told_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        server_tls(Config(**{**NAMED, **changes}))
    assert said in str(refused.value)


def test_a_broker_whose_certificate_cannot_be_used_does_not_start(tmp_path: Path) -> None:
    words = [f"tls_server_cert_path={KEY}", f"tls_server_key_path={KEY}"]
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "up", "--store", str(tmp_path / "store")]
        + ["--port", "auto", "--set", words[0], "--set", words[1]],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == ""
    assert "CONFIG_ERROR" in done.stderr and KEY in done.stderr
