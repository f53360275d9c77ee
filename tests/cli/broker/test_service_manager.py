"""What a service manager is told, on a real socket like systemd's."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.broker.service_manager import ServiceManager


@pytest.fixture
def starter() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as heard:
        heard.bind("")
        yield heard


def environment(starter: socket.socket) -> dict[str, str]:
    return {"NOTIFY_SOCKET": "@" + starter.getsockname()[1:].decode()}


def heard(starter: socket.socket) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(starter.recv(4096))
        except BlockingIOError:
            return found


def test_it_hears_that_a_broker_serves_changes_and_stops(starter: socket.socket) -> None:
    manager = ServiceManager(environment(starter), 0)
    manager.ready("ready produce=tcp://127.0.0.1:1")
    manager.status("full")
    manager.stopping()
    said = [b"READY=1\nSTATUS=ready produce=tcp://127.0.0.1:1", b"STATUS=full", b"STOPPING=1"]
    assert heard(starter) == said


def test_it_hears_twice_within_its_timeout_that_the_broker_lives(starter: socket.socket) -> None:
    given = environment(starter) | {"WATCHDOG_USEC": "1000000"}
    manager = ServiceManager(given, 5000)
    for now_ms in range(5000, 7000, 100):
        manager.alive(now_ms)
    assert heard(starter) == [b"WATCHDOG=1"] * 4


def test_one_that_wants_no_signs_of_life_gets_none(starter: socket.socket) -> None:
    manager = ServiceManager(environment(starter), 0)
    manager.alive(10**9)
    assert heard(starter) == []


def test_without_a_starter_or_with_one_that_has_gone_nothing_is_said_and_nothing_fails(
    starter: socket.socket,
) -> None:
    ServiceManager({}, 0).ready("ready")
    assert heard(starter) == []
    gone = environment(starter)
    starter.close()
    ServiceManager(gone, 0).ready("ready")


def test_a_starter_may_listen_at_a_file(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as starter:
        starter.bind(f"{tmp_path}/notify")
        ServiceManager({"NOTIFY_SOCKET": f"{tmp_path}/notify"}, 0).stopping()
        assert starter.recv(100) == b"STOPPING=1"
