"""Pulls that wait for a heartbeat: how many, how long, and whose. The times are passed in."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from penstock.actors.gateway.calls import Call, Reply
from penstock.actors.gateway.connecting.connection import Connection
from penstock.actors.gateway.grouping.early_pulls import LATE_MS, MOST, EarlyPulls
from penstock.actors.gateway.serving import Serving
from penstock.remoting.codes import Request
from penstock.remoting.command import Command


class Gateway:
    """What is answered, by the numbers of the requests."""

    def __init__(self) -> None:
        self.answered: list[int] = []
        serving = Serving(self._answer, lambda call, error: pytest.fail(str(error)))
        self.early = EarlyPulls(serving, self._answer)

    def _answer(self, call: Call, reply: Reply) -> None:
        self.answered.append(call.command.opaque)

    def pull(self, connection: Connection, number: int, now_ms: int = 0) -> bool:
        call = Call(connection, Command(Request.PULL_MESSAGE, number), now_ms)
        return self.early.hold(call, Reply)


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest.fixture
def connect() -> Iterator[Callable[[], Connection]]:
    ends: list[socket.socket] = []

    def make() -> Connection:
        ends.extend(socket.socketpair())
        return Connection(ends[-1], ("127.0.0.1", 1), 0)

    yield make
    for each in ends:
        each.close()


def test_pulls_are_served_by_their_clients_heartbeat_and_by_no_other(
    gateway: Gateway, connect: Callable[[], Connection]
) -> None:
    one, two = connect(), connect()
    assert gateway.pull(one, 1) and gateway.pull(two, 2) and gateway.pull(one, 3)
    gateway.early.heard(one)
    assert gateway.answered == [1, 3]
    gateway.early.heard(one)
    gateway.early.gone(two)
    gateway.early.work(LATE_MS)
    assert gateway.answered == [1, 3]


def test_pulls_whose_heartbeat_is_late_are_served_without_it(
    gateway: Gateway, connect: Callable[[], Connection]
) -> None:
    one, two = connect(), connect()
    assert gateway.pull(one, 1) and gateway.pull(two, 2, now_ms=10)
    gateway.early.work(LATE_MS - 1)
    assert gateway.answered == []
    gateway.early.work(LATE_MS)
    assert gateway.answered == [1]
    gateway.early.work(LATE_MS + 10)
    assert gateway.answered == [1, 2]


def test_a_bounded_number_waits_of_each_client(
    gateway: Gateway, connect: Callable[[], Connection]
) -> None:
    one, two = connect(), connect()
    assert all([gateway.pull(one, number) for number in range(MOST)])
    assert not gateway.pull(one, MOST) and gateway.pull(two, 0)
