"""Producers among the gateway's clients: which connection reaches each, which groups they have, and
when the transactions actor hears of them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq

from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.connecting.peer_requests import PeerRequests
from penstock.actors.gateway.grouping.producers import (
    HEARTBEAT_MS,
    LOOK_MS,
    MOST_GROUPS,
    Producers,
)
from penstock.actors.gateway.serving import Serving
from penstock.remoting.fields import EndTransactionFields
from penstock.shared.clock import ManualClock
from penstock.shared.process.actor import Stage
from penstock.shared.wire import transaction_messages as words
from penstock.shared.wire.messages import encode

# only a hang reaches this
HANG_S = 60


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


def test_a_client_that_names_other_groups_has_left_those_that_it_does_not_name(
    made: tuple[Producers, list[Connection]],
) -> None:
    producers, (first, second) = made
    producers.heard(first, "x", ["a", "b", "c"])
    producers.heard(second, "y", ["b"])
    producers.heard(first, "x", ["c", "d"])
    assert producers.groups() == {"b": [second], "c": [first], "d": [first]}
    producers.heard(first, "x", [])
    assert producers.groups() == {"b": [second]} and producers.client("x") is None


def test_a_group_that_the_actor_does_not_take_is_passed_over(
    made: tuple[Producers, list[Connection]],
) -> None:
    producers, (first, _) = made
    longest = "g" * words.MOST_NAME
    producers.heard(first, "x", ["", longest, longest + "g", "g" * (1 << 20)])
    assert producers.groups() == {longest: [first]}


class Actor:
    """What the transactions actor hears of these producers, and answers at once."""

    def __init__(self, producers: Producers, handle: Any, heartbeat_ms: int) -> None:
        self._producers, self._socket, self._heartbeat_ms = producers, handle, heartbeat_ms

    def hears(self, now_ms: int) -> str:
        """The group of which it is told next, or how it is told that a transaction ended."""
        until = time.monotonic() + HANG_S
        self._producers.work(now_ms)
        while not self._socket.poll(10):
            assert time.monotonic() < until
            self._producers.work(now_ms)
        peer, header = self._socket.recv_multipart()
        said = words.decode_transaction_request(header)
        answer: Any
        if isinstance(said, words.RegisterProducer):
            answer, found = (
                words.Registered(said.request, said.group, self._heartbeat_ms),
                said.group,
            )
        else:
            answer, found = words.Ended(said.request, said.outcome), said.outcome
        self._socket.send_multipart((peer, encode(answer)))
        while not self._producers.work(now_ms):
            assert time.monotonic() < until
        return found

    def hears_of_nobody(self, now_ms: int) -> bool:
        """By the same socket an outcome comes after all that was said before it."""
        self._producers.work(now_ms)
        ending = EndTransactionFields("g", 1, 2, 8)
        self._producers.end(ending, "commit", lambda answer: None, now_ms)
        return self.hears(now_ms) == "commit"


def test_of_a_group_the_actor_hears_at_the_next_look_and_after_each_heartbeat(
    made: tuple[Producers, list[Connection]], tmp_path: Path
) -> None:
    producers, (client, _) = made
    heartbeat_ms = 3 * HEARTBEAT_MS
    with zmq.Context[Any]() as context, context.socket(zmq.ROUTER) as handle:
        handle.bind(f"ipc://{tmp_path}/transactions")
        actor = Actor(producers, handle, heartbeat_ms)
        producers.heard(client, "x", ["a"])
        assert actor.hears(0) == "a"
        producers.heard(client, "x", ["a", "b"])
        assert actor.hears_of_nobody(LOOK_MS - 1), "all groups are looked at now and then"
        assert actor.hears(LOOK_MS) == "b"
        # how long a heartbeat lasts was not known when `a` was told of
        assert actor.hears_of_nobody(HEARTBEAT_MS - 1)
        assert actor.hears(HEARTBEAT_MS - 1 + LOOK_MS) == "a"
        assert actor.hears_of_nobody(LOOK_MS + heartbeat_ms - 1)
        assert actor.hears(LOOK_MS + heartbeat_ms - 1 + LOOK_MS) == "b"
