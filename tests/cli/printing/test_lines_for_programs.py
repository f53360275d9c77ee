"""`penstock up --log json`: each line of a broker is an object that says which actor it is about,
in which of its lives, and how far the log was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from penstock.shared.layout import StorePaths
from penstock.shared.process.broker_status import read_status

WAIT_S = 120
FIELDS = {"time", "level", "actor", "generation", "offset", "message"}


def penstock(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)


def said(store: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in StorePaths(store).log.read_text().splitlines()]
    assert all(row.keys() == FIELDS for row in rows)
    return rows


def test_every_line_is_an_object_from_the_start_over_ends_of_actors_to_the_brokers_own(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    paths = StorePaths(store)
    start = ("up", "--log", "json", "--daemon", "--port", "auto", "--store", store)
    assert penstock(*start).stdout.startswith("ready ")
    assert penstock("down", "--store", store).returncode == 0
    before = len(said(store))
    paths.topics.write_bytes(b"{")
    paths.topics.with_name("topics.json.bak").write_bytes(b"{}")
    assert penstock(*start).returncode == 0
    damaged = paths.delay_offsets
    damaged.write_bytes(b"{")
    damaged.with_name(damaged.name + ".bak").write_bytes(b"{")
    (scheduler,) = (a for a in read_status(store)["actors"] if a["name"] == "scheduler")
    os.kill(scheduler["pid"], signal.SIGKILL)
    deadline = time.monotonic() + WAIT_S
    while not any("actors have failed" in row["message"] for row in said(store)):
        assert time.monotonic() < deadline, said(store)
        time.sleep(0.05)
    rows = said(store)
    assert rows[before - 1]["message"] == "stopped; the store is clean"
    assert any("topics.json.bak is used in place of" in row["message"] for row in rows)
    ready = [row for row in rows if row["message"].startswith("ready produce=")]
    assert [row["actor"] for row in ready] == ["supervisor"] * 2
    killed = next(row for row in rows if "was killed by SIGKILL" in row["message"])
    assert (killed["actor"], killed["generation"]) == ("scheduler", 1)
    ended = [row for row in rows if "[STORE_DAMAGED] config/delayOffset.json" in row["message"]]
    assert {(row["actor"], row["level"]) for row in ended} == {("scheduler", "error")}
    assert [row["generation"] for row in ended] == [2, 3, 4, 5, 6]
    assert all(row["offset"] is not None for row in (killed, *ended))
    assert (rows[-1]["level"], rows[-1]["actor"]) == ("error", "supervisor")
    assert rows[-1]["message"].startswith("[SERVICE_NOT_AVAILABLE] actors have failed")


def test_a_start_that_fails_says_so_in_an_object(tmp_path: Path) -> None:
    done = penstock("up", "--log", "json", "--store", tmp_path, "--set", "no_such_key=1")
    (line,) = done.stderr.splitlines()
    row = json.loads(line)
    assert done.returncode == 2 and row.keys() == FIELDS and row["level"] == "error"
    assert "no_such_key" in row["message"]
