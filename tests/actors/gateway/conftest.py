"""A client of the remoting protocol that sends and hears commands over a socket of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.actors.gateway import LoneNameServer
from penstock.remoting.command import Command, decode_command, encode_command
from penstock.remoting.frames import FrameSplitter
from penstock.shared.clock import SystemClock
from penstock.shared.files.certificates import Tls
from penstock.shared.process.listeners import listen_tcp

TIMEOUT_S = 60


class Peer:
    """One connection. Nothing of a client's ways is known here: each frame is the test's."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self.socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self._splitter = FrameSplitter()
        self._heard: list[Command] = []
        self._number = 0

    def send(
        self, code: int, fields: dict[str, object] | None = None, body: bytes = b"", **more: Any
    ) -> int:
        """Send a request; its number."""
        self._number += 1
        texts = {key: str(value) for key, value in (fields or {}).items()}
        self.socket.sendall(encode_command(Command(code, self._number, texts, body, **more)))
        return self._number

    def hear(self) -> Command:
        """The next command. Raises EOFError where the connection is closed."""
        while not self._heard:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._heard += map(decode_command, self._splitter.feed(data))
        return self._heard.pop(0)

    def ask(
        self, code: int, fields: dict[str, object] | None = None, body: bytes = b"", **more: Any
    ) -> Command:
        number = self.send(code, fields, body, **more)
        answer = self.hear()
        assert answer.opaque == number and answer.is_response
        return answer

    def is_closed(self) -> bool:
        try:
            self.hear()
        except (EOFError, ConnectionResetError):
            return True
        return False


@pytest.fixture(scope="module")
def gateway(start_shared_broker: Callable[..., Any]) -> Any:
    """A broker with a gateway, on any free ports."""
    running = start_shared_broker(
        gateway_enable="true", gateway_port=0, gateway_name_server_port=0, cluster_name='"C"',
        transaction_check_interval_ms=300, transaction_time_out_ms=300,
    )  # fmt: skip
    endpoints = running.status()["endpoints"]
    running.remoting, running.name_server = endpoints["remoting"], endpoints["name_server"]
    return running


@pytest.fixture
def new_peer() -> Iterator[Callable[[str], Peer]]:
    """Connect to an endpoint."""
    peers: list[Peer] = []

    def connect(endpoint: str) -> Peer:
        peers.append(Peer(endpoint))
        return peers[-1]

    yield connect
    for each in peers:
        each.socket.close()


@pytest.fixture
def peer(gateway: Any, new_peer: Callable[[str], Peer]) -> Callable[..., Peer]:
    """Connect to the gateway's port for a broker, or to another one."""
    return lambda endpoint="": new_peer(endpoint or gateway.remoting)


class Lone:
    """A name server without a broker, in a thread."""

    def __init__(self, directory: Path, port: int, tls: Tls, orders: bool) -> None:
        self.said: list[str] = []
        listener = listen_tcp("127.0.0.1", port)
        self.endpoint = listener.endpoint
        self.server = LoneNameServer(
            listener, directory / "kvConfig.json", SystemClock(), self.said.append, tls, orders
        )
        self._thread = threading.Thread(target=self.server.run)
        self._thread.start()

    def stop(self) -> None:
        self.server.stopping = True
        self._thread.join()


@pytest.fixture
def lone_name_server() -> Iterator[Callable[..., Lone]]:
    """Start one, with its settings in a directory, on a port."""
    started: list[Lone] = []

    def start(directory: Path, port: int = 0, tls: Tls | None = None, orders: bool = False) -> Lone:
        started.append(Lone(directory, port, tls or Tls(), orders))
        return started[-1]

    yield start
    for each in started:
        each.stop()
