"""One of RocketMQ's own clients against the gateway, in every run of the tests: the Python wheel.

What it prints is compared with what it has printed for a real broker. `make interop` checks that
with a real broker, and runs all the other clients, too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.interop.gateway.programs import PROGRAMS, official_python, printed

pytestmark = pytest.mark.takes(20)


class Place(NamedTuple):
    port: int
    name_server_port: int

    @property
    def name_server(self) -> str:
        return f"127.0.0.1:{self.name_server_port}"


def test_the_official_client_prints_what_it_does_for_a_real_broker(
    gateway: Any, tmp_path: Path
) -> None:
    command = official_python()  # skipped where it cannot be had
    ports = [int(at.rpartition(":")[2]) for at in (gateway.remoting, gateway.name_server)]
    found = printed(command, Place(*ports), "of-python", tmp_path, "short")
    assert found == json.loads((PROGRAMS / "python_short.json").read_text())
