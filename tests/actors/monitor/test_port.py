"""The monitor's port: one that is taken keeps no broker from starting, and it can be off."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from penstock.shared.process.listeners import listen_for_monitor


def test_a_broker_that_finds_its_monitors_port_taken_starts_and_says_where_it_is(
    start_broker: Any,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        broker = start_broker(monitor_enable="true", monitor_port=port)
    assert f":{port}" not in broker.monitor
    said = broker.said.read_text()
    assert f"the port for the monitor is taken: 127.0.0.1:{port}" in said
    assert f"it is at {broker.monitor}" in said
    with urlopen(f"{broker.monitor}/health", timeout=60) as answer:
        assert answer.status == 200
    assert broker.status()["endpoints"]["monitor"] == broker.monitor


def test_a_monitor_that_is_off_has_no_process_and_no_address(broker: Any) -> None:
    (found,) = (each for each in broker.status()["actors"] if each["name"] == "monitor")
    assert (found["state"], found["pid"]) == ("off", 0)
    assert "monitor=" not in broker.ready and broker.status()["endpoints"]["monitor"] == ""


def test_an_address_that_is_not_this_machines_is_said_and_kills_nobody(make_config: Any) -> None:
    found = listen_for_monitor(make_config(monitor_host="192.0.2.1"))
    assert found.listeners == {} and found.remark.startswith("there is no monitor")


def test_a_replaced_monitor_is_at_the_same_address(broker_in: Any, tmp_path: Path) -> None:
    broker = broker_in(tmp_path, monitor_enable="true", monitor_port=0)
    with urlopen(f"{broker.monitor}/health", timeout=60):
        pass
    (pid,) = (a["pid"] for a in broker.status()["actors"] if a["name"] == "monitor")
    os.kill(pid, signal.SIGKILL)
    # the connection waits in the kernel meanwhile, and is not refused
    with urlopen(f"{broker.monitor}/health", timeout=60) as answer:
        assert answer.status == 200
    (now,) = (a for a in broker.status()["actors"] if a["name"] == "monitor")
    assert now["restarts"] == 1 and now["pid"] != pid
