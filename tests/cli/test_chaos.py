"""`penstock chaos`: one round of each kind, and what it says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.chaos.machine import bad_disk
from penstock.chaos.machine.processes import run_directories_below
from penstock.cli.chaos import KINDS, NEED_ROOT
from penstock.shared.faults import POINTS

pytestmark = pytest.mark.takes(180)

CHILDREN_FORKED = Path(__file__).parent.parent / "forked" / "forked_children.py"
NEED_A_COMPILER = {"power", "promises", "disk", "full", "slow", "cut", "clock", "mixed"}
# long ones, which have tests of their own
TRIED_ELSEWHERE = {"points", "recovery", "events", "members", "official"}
# as many campaigns, so that a file of tests that runs beside others does not run for minutes
PARTS = 4
# The same each time, as for properties: a failure here is a failure everywhere. Chance is for
# `make chaos`.
SEED = "7"
# what the report says was done by a round that did something
DONE_BY = {
    "kills": ("actor killed",),
    "power": ("power failure",),
    "promises": ("power failure over promises",),
    "disk": ("flush call: .+", "grow call: .+", "open call: .+"),
    "full": ("grow call: No space left on device",),
    "slow": ("slow disk", "disk that stands still"),
    "cut": (".+ cut short",),
    "frames": ("bent frame", "false doorbell"),
    "damage": ("a flipped bit",),
    "missing": ("missing files",),
    "sectors": ("an unreadable sector",),
    "outage": ("a file system shut down",),
    "bells": ("doorbells .+-.+", "round of disturbed doorbells"),
    "clock": ("clock jump",),
    "frozen": ("frozen for a while: .+",),
    "crowd": ("stuck consumer", "connection that comes and goes"),
    "memory": ("greedy request", "out of memory: refused"),
    "attack": ("key dense", "many parts", "foreign key", "long filters"),
    "gateway": ("bent command",),
    "mixed": ("harm among others",),
    "exactly": (".+ killed while copying",),
    "transactions": (".+ killed in transactions",),
    "delays": (".+ with delayed messages",),
}


def _chaos(
    *arguments: str, timeout_s: float = 880, path: str = os.environ["PATH"]
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CHILDREN_FORKED), "chaos", *arguments]
    environment = {**os.environ, "PATH": path}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, env=environment
    )


def _processes_below(place: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found += [line] if f"{place}/" in line else []
    return found


def test_a_run_that_is_killed_leaves_no_process_and_no_memory(tmp_path: Path) -> None:
    """Its own cleaning cannot run then: a keeper of its own does it."""
    command = [sys.executable, "-m", "penstock.cli.main", "chaos", "--place", str(tmp_path)]
    with subprocess.Popen([*command, "--rounds", "9", "--faults", "kills"]) as run:
        try:
            while not run_directories_below(tmp_path):
                assert run.poll() is None
                time.sleep(0.01)
        finally:
            run.kill()
    while _processes_below(tmp_path) or run_directories_below(tmp_path):
        time.sleep(0.01)


def _kinds() -> list[str]:
    left_out = TRIED_ELSEWHERE if shutil.which("cc") else TRIED_ELSEWHERE | NEED_A_COMPILER
    left_out = left_out | NEED_ROOT if bad_disk.lacks() else left_out
    return [kind for kind in KINDS if kind not in left_out]


# several kinds in each, as a round must leave nothing for the next one; busy machines are slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kinds", [_kinds()[part::PARTS] for part in range(PARTS)], ids=",".join)
def test_a_round_of_each_kind_breaks_nothing_and_leaves_nothing(
    tmp_path: Path, kinds: list[str]
) -> None:
    given = f"--faults {','.join(kinds)} --rounds {len(kinds)} --seed {SEED} -o json"
    ran = _chaos(*given.split(), "--place", str(tmp_path))
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    report = json.loads(ran.stdout)
    assert report["violations"] == [] and report["leaked"] == 0 and report["acknowledged"] > 1000
    due = [(kind, fault) for kind in kinds for fault in DONE_BY[kind]]
    done = report["faults"]
    assert [each for each in due if not any(re.fullmatch(each[1], name) for name in done)] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--faults", "kils"], "none of kills"),
        (["--replay", ".", "--image", "1:2"], "FLUSH:SHARE:SEED"),
        (["--replay", "nowhere"], "does not exist"),
    ],
)
def test_what_cannot_be_asked_for_is_said(arguments: list[str], said: str) -> None:
    done = _chaos(*arguments)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_a_kind_that_lacks_something_is_left_out_and_what_it_lacks_is_said(tmp_path: Path) -> None:
    alone = _chaos("--faults", "official,slow", path=str(tmp_path))
    assert alone.returncode == 2 and "Traceback" not in alone.stderr
    assert "Java" in alone.stderr and "C compiler" in alone.stderr
    # the quickest kind that needs neither
    given = ("--faults", "official,frozen", "--rounds", "1", "--seed", SEED)
    beside = _chaos(*given, "--place", str(tmp_path), path=str(tmp_path))
    assert beside.returncode == 0, beside.stderr
    assert "left out, for want of Java: official" in beside.stderr


def test_the_points_are_listed_with_what_they_mean() -> None:
    done = _chaos("--points")
    assert done.returncode == 0
    for name, sentence in POINTS.items():
        assert any(name in line and sentence in line for line in done.stdout.splitlines()), name
