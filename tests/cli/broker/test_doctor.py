"""`penstock doctor`: what it finds on a machine that lacks something, and what --fix may remove."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.embedded import Broker
from penstock.shared.memory.run_directory import abandoned_runs, remove_directory
from penstock.testing import SMALL_FILES

Command = Callable[..., subprocess.CompletedProcess[str]]


def _rows(ran: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in map(json.loads, ran.stdout.splitlines())}


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Callable[[], Path]]:
    """Kill a broker; where its run's memory is left."""
    made: list[Path] = []

    def kill() -> Path:
        store = tmp_path / f"store {len(made)}"
        broker = Broker(store, settings=SMALL_FILES, log=tmp_path / "log")
        made.append(Path(broker.status()["run_directory"]))
        broker.kill()
        return made[-1]

    yield kill
    for each in made:
        if each.exists():
            remove_directory(each)


def test_the_page_goes_to_another_port_where_its_own_is_taken(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        ran = command("doctor", "-o", "json", "--set", f"monitor_port={port}")
    row = _rows(ran)["port monitor"]
    assert row["state"] == "warning" and str(port) in row["found"]
    assert row["remedy"].startswith("the page is at any free port then"), row
    ran = command("doctor", "-o", "json", "--set", "monitor_enable=false")
    assert "port monitor" not in _rows(ran)


def test_a_taken_port_is_a_warning_that_says_by_whom(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        ran = command("doctor", "-o", "json", "--set", f"produce_port={port}")
    row = _rows(ran)["port produce"]
    assert row["state"] == "warning" and str(port) in row["found"] and row["remedy"]


def test_too_little_shared_memory_is_a_problem_and_the_exit_code_says_so(command: Command) -> None:
    ran = command("doctor", "-o", "json", "--set", "transient_store_pool_bytes=512TiB")
    assert ran.returncode == 1
    row = _rows(ran)["shared memory"]
    assert row["state"] == "problem" and "--shm-size" in row["remedy"]


def test_memory_of_a_store_that_is_gone_is_removed_and_of_one_that_is_there_kept(
    command: Command, killed: Callable[[], Path], tmp_path: Path
) -> None:
    gone, kept = killed(), killed()
    shutil.rmtree(tmp_path / "store 0")
    with Broker(tmp_path / "alive", settings=SMALL_FILES, log=tmp_path / "log") as broker:
        (tmp_path / "alive").rename(tmp_path / "moved")  # an actor of it lives
        left = abandoned_runs()
        ran = command("doctor", "--fix")
        (tmp_path / "moved").rename(tmp_path / "alive")
        broker.producer().send("orders", b"1").result()
    assert gone in left and kept not in left
    assert f"removed {gone}" in ran.stderr and not gone.exists() and kept.exists()
