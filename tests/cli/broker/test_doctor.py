"""`penstock doctor`: what it finds on a machine that lacks something, and what --fix may remove."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.embedded import Broker
from penstock.shared.memory.run_directory import remove_directory
from penstock.testing import SMALL_FILES

WAIT_S = 180
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
        used = Path(broker.status()["run_directory"])
        (tmp_path / "alive").rename(tmp_path / "moved")  # an actor of it lives
        assert command("doctor", "--fix").returncode in (0, 1)
        assert used.exists() and kept.exists() and not gone.exists()
        # a flush has failed by now, as a store was taken away: this broker takes no message
        broker.kill()
    remove_directory(used)


def test_memory_that_another_removes_meanwhile_is_passed_over(tmp_path: Path) -> None:
    for number in range(3):
        left = tmp_path / f"penstock-{number:016x}"
        left.mkdir()
        for name in ("positions", "queues"):
            (left / name).touch()
        (left / "store").write_text(str(tmp_path / "gone"))
    fix = [sys.executable, "-m", "penstock.cli.main", "doctor", "--fix"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    first = subprocess.Popen(
        fix, env=environment | {"PENSTOCK_FAULTS": "run.mid_removal=stop"}, stdout=subprocess.PIPE
    )
    _, status = os.waitpid(first.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), "in the middle of the first one"
    subprocess.run(fix, env=environment, timeout=WAIT_S)
    assert not list(tmp_path.glob("penstock-*"))
    first.send_signal(signal.SIGCONT)
    shown, _ = first.communicate(timeout=WAIT_S)
    assert b"left memory" in shown, "it goes on"
