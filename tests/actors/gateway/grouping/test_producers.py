"""Producers of the gateway's clients: by which connection each of them is reached."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq

from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.connecting.peer_requests import PeerRequests
from penstock.actors.gateway.grouping.producers import Producers
from penstock.actors.gateway.serving import Serving
from penstock.shared.clock import ManualClock
from penstock.shared.process.actor import Stage


@pytest.fixture
def made(tmp_path: Path) -> Iterator[tuple[Producers, list[Connection]]]:
    """Producers, and two connections of clients."""
    with ExitStack() as closing:
        context = closing.enter_context(zmq.Context[Any]())
        endpoints = SimpleNamespace(transaction_ipc=f"ipc://{tmp_path}/transactions")
        run = SimpleNamespace(run_id="r", endpoints=endpoints)
        stage = SimpleNamespace(run=run, context=context, clock=ManualClock(), report=print)
        serving = Serving(lambda call, reply: None, lambda call, error: None)
        producers = Producers(cast(Stage, stage), PeerRequests(lambda to, command: None), serving)
        closing.callback(producers.close)
        pairs = [socket.socketpair() for _ in range(2)]
        for each in (end for pair in pairs for end in pair):
            closing.callback(each.close)
        yield producers, [Connection(pair[0], ("127.0.0.1", 1), 0) for pair in pairs]


def test_a_client_is_reached_by_the_connection_that_was_its_last(
    made: tuple[Producers, list[Connection]],
) -> None:
    producers, (first, second) = made
    producers.heard(first, "x", ["g"])
    assert producers.client("x") is first
    producers.heard(first, "y", ["g"])
    assert producers.client("y") is first and producers.client("x") is None, "it was renamed"
    producers.heard(second, "y", ["g"])
    producers.heard(first, "z", ["g"])
    assert producers.client("y") is second, "the other one's name stays"
    producers.left(first, "g")
    assert producers.client("z") is None and producers.client("y") is second
