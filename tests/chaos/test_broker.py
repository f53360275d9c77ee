"""The brokers that chaos starts: their ports are nobody else's."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from penstock.chaos import broker
from penstock.shared.config import DEFAULT_PRODUCE_PORT, DEFAULT_TRANSACTION_PORT


def test_a_port_that_somebody_has_is_not_free_also_where_nobody_listens() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        assert not broker._is_free(port)
    assert broker._is_free(port)


def test_ports_lie_together_where_no_connection_and_no_other_broker_takes_by_itself() -> None:
    with open("/proc/sys/net/ipv4/ip_local_port_range") as limits:
        lowest = int(limits.read().split()[0])
    for _ in range(50):
        ports = broker.fixed_ports()
        base = ports["produce_port"]
        assert list(ports.values()) == [base, base + 1, base + 2, base + 3]
        for port in ports.values():
            assert not DEFAULT_PRODUCE_PORT <= port <= DEFAULT_TRANSACTION_PORT
            assert 1024 < port < lowest


def test_a_process_that_ends_while_all_are_ended_keeps_nothing_from_going(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = broker.Broker(tmp_path, {})
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    # as the kernel has it: listed, and gone with its parent before it is killed
    monkeypatch.setattr(started, "processes", lambda: [ended.pid])
    memory = tmp_path / "memory"
    memory.mkdir()
    started.run_directories.add(memory)
    started.clear()
    assert not memory.exists()
