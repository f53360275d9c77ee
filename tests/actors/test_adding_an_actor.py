"""A new actor is one row of the roster and one file: everything else is there.

The product runs from links to its own files, among which one is new and one has another line.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.shared.layout import StorePaths
from penstock.shared.memory.roster import ACTORS
from penstock.shared.memory.run_directory import read_run, remove_run_directory

WAIT_S = 60
ROW = '    ActorRow("idle", "penstock.actors.idle:Idle", start_rank=8, stop_rank=0),\n'
MODULE = '''
"""An actor that does nothing."""

from penstock.shared.process.actor import Actor

class Idle(Actor):
    def __init__(self, stage):
        pass

    def start(self):
        pass

    def work(self):
        return 0

    def release_deleted(self):
        pass

    def drained(self):
        return True

    def close(self):
        pass
'''
CONFIG = """\
produce_port = 0
consume_port = 0
group_port = 0
transaction_port = 0
gateway_enable = false
monitor_port = 0
mapped_file_size_commit_log_bytes = 1048576
"""
MAIN = "import sys; from penstock.cli.main import main; main(sys.argv[1:])"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Where the product is, with one row and one file more."""
    place = tmp_path / "code"
    _link(Path(penstock.__path__[0]), place / "penstock", but=("actors", "shared"))
    shared, actors = (Path(penstock.__path__[0]) / name for name in ("shared", "actors"))
    _link(actors, place / "penstock" / "actors")
    _link(shared, place / "penstock" / "shared", but=("memory",))
    _link(shared / "memory", place / "penstock" / "shared" / "memory", but=("roster.py",))
    (place / "penstock" / "actors" / "idle.py").write_text(MODULE)
    roster = (shared / "memory" / "roster.py").read_text()
    assert roster.count("ROSTER = (\n") == 1
    roster = roster.replace("ROSTER = (\n", f"ROSTER = (\n{ROW}")
    (place / "penstock" / "shared" / "memory" / "roster.py").write_text(roster)
    return place


def _link(source: Path, target: Path, but: tuple[str, ...] = ()) -> None:
    """A folder with links to all that is in another one, but for some."""
    target.mkdir(parents=True)
    for each in source.iterdir():
        if each.name not in (*but, "__pycache__"):
            (target / each.name).symlink_to(each.resolve())


class _Broker:
    def __init__(self, code: Path, place: Path) -> None:
        self.store = place / "store"
        self._environment = {**os.environ, "PYTHONPATH": str(code)}
        config = place / "broker.toml"
        config.write_text(CONFIG)
        command = ("up", "--config", str(config), "--store", str(self.store))
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAIN, *command],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def await_ready(self) -> None:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(WAIT_S)
        line = self.process.stdout.readline().decode()
        assert line.startswith("ready "), self.stop()

    def status(self) -> list[dict[str, Any]]:
        command = (sys.executable, "-c", MAIN, "status", "--store", str(self.store), "-o", "json")
        found = subprocess.check_output(command, env=self._environment, timeout=60)
        return list(json.loads(found)["actors"])

    def idle(self) -> dict[str, Any]:
        (found,) = (actor for actor in self.status() if actor["name"] == "idle")
        return found

    def stop(self) -> str:
        """Stop it in good order; what it said."""
        if self.process.poll() is None:
            self.process.terminate()
        _, said = self.process.communicate(timeout=60)
        return said.decode()


@pytest.fixture
def broker(code: Path, tmp_path: Path) -> Iterator[_Broker]:
    found = _Broker(code, tmp_path)
    yield found
    found.process.kill()
    found.process.communicate()
    if run := read_run(StorePaths(found.store)):
        remove_run_directory(run)


def test_an_actor_of_one_row_and_one_file_is_supervised_replaced_and_shown(
    broker: _Broker,
) -> None:
    broker.await_ready()
    assert {actor["name"] for actor in broker.status()} == {"idle", *ACTORS}
    first = broker.idle()
    assert first["state"] == "running" and first["restarts"] == 0 and first["cycles"] > 0

    os.kill(first["pid"], signal.SIGKILL)
    deadline = time.monotonic() + WAIT_S
    while (now := broker.idle())["state"] != "running" or now["generation"] == 1:
        assert time.monotonic() < deadline, now
    assert now["pid"] != first["pid"] and now["restarts"] == 1

    others = [sys.executable, "-c", MAIN, "status", "--store", str(broker.store)]
    found = subprocess.run(others, stderr=subprocess.PIPE, timeout=60)
    assert found.returncode != 0, "without the row, lines of the page are taken for others"
    assert b"the positions page is another version's" in found.stderr

    said = broker.stop()
    assert f"idle (pid {first['pid']}) was killed by SIGKILL; starting another" in said
    assert "the store is clean" in said and broker.process.returncode == 0


RELEASE = """
    def release_deleted(self):
        life = self._positions.life
        cycles = life("idle").cycles
        while life("idle").cycles < cycles + 2:
            time.sleep(0.01)
        self._beaten.touch()
"""


def test_an_actor_beats_while_it_waits_for_the_disk_to_free_a_deleted_file(
    code: Path, tmp_path: Path
) -> None:
    begin = "        self._positions, self._beaten = stage.positions, stage.run.path / 'beaten'"
    module = MODULE.replace("        pass\n", f"{begin}\n", 1)
    module = module.replace("\n    def release_deleted(self):\n        pass\n", RELEASE)
    (code / "penstock" / "actors" / "idle.py").write_text(f"import time\n{module}")
    broker = _Broker(code, tmp_path)
    try:
        broker.await_ready()
        run = read_run(StorePaths(broker.store))
        assert run is not None
        deadline = time.monotonic() + 2 * WAIT_S
        while not (run.path / "beaten").exists():
            assert time.monotonic() < deadline, broker.stop()
            time.sleep(0.01)
        assert "does not move" not in broker.stop()
    finally:
        broker.process.kill()
        broker.process.communicate()
        if run := read_run(StorePaths(broker.store)):
            remove_run_directory(run)
