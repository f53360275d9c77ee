"""The harness itself is tested: it finds bugs that are put in on purpose, and none where none is.

`make test` lets two quick ones loose; with PENSTOCK_CHAOS_CANARIES=all, as in `make chaos`, all.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.takes(15)

HERE = Path(__file__).parent / "canaries"
PATH = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
CANARIES = runpy.run_path(str(HERE / "canaries.py"))["CANARIES"]
ALL = os.environ.get("PENSTOCK_CHAOS_CANARIES") == "all"
QUICK = ("flushed_before_sync", "retries_stored_twice")
CHOSEN = sorted(CANARIES) if ALL else QUICK
# Rounds are chance, and a bug may show in the next one only. All of these take about a minute on a
# machine that does nothing else.
SEEDS = (1, 12, 2, 13)
# Of a round that hangs: one of members waits for sessions to end, and a busy machine takes long.
SECONDS = 600
# An error in the last lines of a traceback, raised by a canary's own line: it names what is gone.
MISFIT = re.compile(
    r'/canaries\.py", line \d+, in .*\n(?: {4}.*\n)*(?:Attribute|Type|Name|Value|Key)Error.*'
)


def _environment(canary: str) -> dict[str, str]:
    added = {"PENSTOCK_CANARY": canary, "PYTHONPATH": PATH} if canary else {}
    return {**os.environ, **added}


def run_chaos(place: Path, kind: str, seed: int, canary: str = "") -> tuple[int, Any]:
    """`penstock chaos` in a process of its own; its exit code and report."""
    ran = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "chaos", "--faults", kind, "-o", "json"]
        + ["--rounds", "1", "--seed", str(seed), "--place", str(place)],
        env=_environment(canary),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert ran.returncode in (0, 1), ran.stderr
    return ran.returncode, json.loads(ran.stdout)


# Their modules are loaded once; each bug gets a process of its own, for none is taken out again.
FIT = """
import importlib, json, os, traceback
from canaries import CANARIES, put

modules = {name: importlib.import_module(each.module) for name, each in CANARIES.items()}
misfits = {}
for name, each in CANARIES.items():
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            put(each, modules[name])
        except Exception:
            os.write(writing, traceback.format_exc(limit=-3).encode()[-4000:])
        os._exit(0)
    os.close(writing)
    with open(reading) as said:
        misfits[name] = said.read()
    _, status = os.waitpid(child, 0)
    misfits[name] += f"wait status {status}" if status else ""
print(json.dumps(misfits))
"""


@pytest.fixture(scope="module")
def complaints() -> dict[str, str]:
    """What each canary says when it is put in; "" where it fits."""
    ran = subprocess.run(
        [sys.executable, "-c", FIT],
        env={**os.environ, "PYTHONPATH": PATH},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, str] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize("name", sorted(CANARIES))
def test_a_seeded_bug_fits_what_it_is_put_into(name: str, complaints: dict[str, str]) -> None:
    assert complaints[name] == ""


def misfits(place: Path) -> list[str]:
    """What brokers of rounds that broke a promise have said of a canary that fails by itself."""
    said = [path.read_text() for path in place.rglob("stderr")]
    return [found for text in said for found in MISFIT.findall(text)]


@pytest.mark.timeout(len(SEEDS) * SECONDS)
@pytest.mark.parametrize("name", CHOSEN)
def test_a_seeded_bug_is_found(name: str, tmp_path: Path) -> None:
    kind = CANARIES[name].faults
    began = time.monotonic()
    for seed in SEEDS:
        code, report = run_chaos(tmp_path, kind, seed, name)
        if code == 1:
            break
    seconds, load = time.monotonic() - began, os.getloadavg()[0]
    print(f"{name} {kind} seed {seed}: {seconds:.1f} s, load {load:.1f}", report["violations"][:1])
    assert code == 1 and report["violations"], f"{name} is not found: {CANARIES[name].sentence}"
    assert misfits(tmp_path) == [], "what is found is a crash, and not the bug"


def test_a_seeded_bug_that_fails_by_itself_is_told_from_one_that_breaks_the_product(
    tmp_path: Path,
) -> None:
    trace = [
        'Traceback (most recent call last):\n  File "/x/actors/flusher.py", line 1, in work\n'
        '    self._flush_log()\n  File "/x/canaries.py", line 2, in by_ranges\n'
        "    segment.sync(1)\n    ^^^^^^^^^^^^\n",
        "AttributeError: no attribute 'sync'\n",
    ]
    inside = '  File "/x/mapped_file_queue.py", line 3, in sync\n    self._map.flush(1)\n'
    (tmp_path / "stderr").write_text(trace[0] + inside + trace[1] + "ValueError: of another\n")
    assert misfits(tmp_path) == []
    (tmp_path / "stderr").write_text("".join(trace))
    assert [each.splitlines()[-1] for each in misfits(tmp_path)] == [trace[1].strip()]


@pytest.mark.skipif(not ALL, reason="PENSTOCK_CHAOS_CANARIES=all, as in make chaos")
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("kind", sorted({each.faults for each in CANARIES.values()}))
def test_without_a_bug_nothing_is_found(kind: str, tmp_path: Path) -> None:
    code, report = run_chaos(tmp_path, kind, SEEDS[0])
    assert (code, report["violations"]) == (0, [])
