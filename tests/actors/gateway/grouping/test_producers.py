"""Producers of the gateway's clients: by which connection each is reached, and of which groups."""

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
from penstock.actors.gateway.grouping.producers import MOST_GROUPS, Producers
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


def test_a_client_of_more_groups_than_are_kept_is_told_of_once(
    made: tuple[Producers, list[Connection]], capsys: pytest.CaptureFixture[str]
) -> None:
    producers, (first, second) = made
    groups = [f"g{number:03d}" for number in range(MOST_GROUPS + 1)]

    def said() -> str:
        return capsys.readouterr().out

    producers.heard(first, "x", groups[:-1])
    producers.heard(second, "y", groups[1:])
    assert said() == "", "so many are kept"
    producers.heard(first, "x", groups)
    assert f"'x' is a producer of {MOST_GROUPS + 1} groups" in said()
    producers.heard(first, "x", reversed(groups))
    assert said() == "", "it has been told"
    kept = {group for group, there in producers.groups().items() if first in there}
    assert kept == {*groups[:-1]}, "those that it was asked of before"
    for number in range(2, 12):  # the tenth such client is told of again
        producers.gone(first)
        assert [first in there for there in producers.groups().values()] == [False] * MOST_GROUPS
        producers.heard(first, "z", groups)
        assert said().count("10 such clients so far") == (number == 10)
