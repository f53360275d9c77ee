"""A client of the remoting protocol that sends and hears commands over a socket of its own."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.remoting.command import Command, decode_command, encode_command
from penstock.remoting.frames import FrameSplitter

TIMEOUT_S = 20


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
        gateway_enable="true", gateway_port=0, gateway_name_server_port=0, cluster_name='"C"'
    )
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
