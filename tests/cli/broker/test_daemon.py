"""`penstock up --daemon`, `down`, `logs`: a broker in the background from its start to its stop."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.shared.files.readable import is_readable
from penstock.shared.process.broker_status import read_status

Run = Callable[..., subprocess.CompletedProcess[str]]
WAIT_S = 60
UNIT = Path(__file__).parents[3] / "packaging" / "penstock.service"


@pytest.fixture
def store(tmp_path: Path, command: Run) -> Iterator[Path]:
    """A place for one; what runs on it is stopped."""
    place = tmp_path / "store"
    yield place
    command("down", "--store", place)


def test_it_serves_when_the_command_ends_and_until_it_is_told_to_stop(
    store: Path, command: Run
) -> None:
    up = command("up", "--daemon", "--store", store, "--port", "auto")
    assert up.returncode == 0, up.stderr
    assert up.stdout.startswith("ready produce=tcp://") and up.stderr == ""
    pid = read_status(store)["supervisor_pid"]
    assert os.getsid(pid) == pid, "the end of a terminal is not its end"
    down = command("down", "--store", store)
    assert down.stdout == f"stopped (pid {pid}); the store is clean\n", down.stderr
    said = command("logs", "--store", store).stdout.splitlines()
    assert said[0] == up.stdout.strip() and said[-1].endswith("stopped; the store is clean")
    assert command("logs", "--store", store, "-n", "1").stdout.splitlines() == said[-1:]
    again = command("down", "--store", store)
    assert again.returncode == 3 and "no broker runs on this store" in again.stderr


def test_as_json_it_prints_what_up_prints(store: Path, command: Run) -> None:
    up = command("up", "--daemon", "--store", store, "--port", "auto", "-o", "json")
    said = json.loads(up.stdout)
    assert said["ready"] and said["endpoints"] == read_status(store)["endpoints"]


def test_a_start_that_fails_ends_as_in_the_foreground(store: Path, command: Run) -> None:
    assert command("up", "--daemon", "--store", store, "--port", "auto").returncode == 0
    second = command("up", "--daemon", "--store", store, "--port", "auto")
    assert second.returncode == 1 and second.stdout == ""
    assert "a broker runs on this store" in second.stderr
    assert f"penstock down --store {store}" in second.stderr


def test_one_that_was_killed_is_none_that_can_be_stopped_and_the_next_start_recovers(
    store: Path, command: Run
) -> None:
    assert command("up", "--daemon", "--store", store, "--port", "auto").returncode == 0
    broker = os.pidfd_open(read_status(store)["supervisor_pid"])
    signal.pidfd_send_signal(broker, signal.SIGKILL)
    # one that is still on its way out is taken for one that `down` has ended
    assert is_readable(broker, WAIT_S)
    os.close(broker)
    down = command("down", "--store", store)
    assert down.returncode == 3, down.stderr
    again = command("up", "--daemon", "--store", store, "--port", "auto")
    assert again.returncode == 0, again.stderr


def test_logs_goes_on_with_what_is_written_and_says_where_none_is(
    store: Path, command: Run
) -> None:
    none = command("logs", "--store", store)
    assert none.returncode == 1 and "up --daemon" in none.stderr
    assert command("up", "--daemon", "--store", store, "--port", "auto").returncode == 0
    words = [sys.executable, "-m", "penstock.cli.main", "logs", "--store", str(store), "--follow"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline().startswith("ready ")
        log = store / "penstock" / "broker.log"
        log.rename(log.with_suffix(".log.1"))
        log.write_text("of the next one\n")
        assert following.stdout.readline() == "of the next one\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(WAIT_S) == 130


def test_the_unit_for_systemd_names_options_that_are_there(tmp_path: Path) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[method-assign,assignment]  # as its documentation says
    unit.read(UNIT)
    assert unit["Service"]["Type"] == "notify"
    program, *words = unit["Service"]["ExecStart"].split()
    checked = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *words, "--help"], capture_output=True
    )
    assert checked.returncode == 0, checked.stderr
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    # the same unit, with a program that is there
    text = UNIT.read_text().replace(program, sys.executable)
    (tmp_path / UNIT.name).write_text(text)
    verified: Any = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / UNIT.name],
        capture_output=True,
        text=True,
    )
    assert verified.returncode == 0 and UNIT.name not in verified.stderr, verified.stderr
