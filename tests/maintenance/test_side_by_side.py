"""Parts done side by side come to what they come to one after another, whoever dies meanwhile."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from penstock.maintenance.side_by_side import run_side_by_side, side_by_side

# Functions of a module that any process can import, as `work` has to be.
PARTS = [random.Random(number).randbytes(200_000) for number in range(12)]


def _workers() -> list[psutil.Process]:
    """The workers of this process; it may have other children, of other tests."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if "penstock.maintenance.side_by_side" in child.cmdline():
                found.append(child)
    return found


@pytest.mark.parametrize("processes", [1, 2, 5, 40])
def test_results_come_in_the_order_of_the_parts(processes: int) -> None:
    moved: list[tuple[int, int]] = []
    costs = list(range(12))
    found = run_side_by_side(
        zlib.compress, PARTS, costs, lambda *now: moved.append(now), processes=processes
    )
    assert found == [zlib.compress(part) for part in PARTS]
    assert moved[-1] == (66, 66) and moved == sorted(moved)
    assert run_side_by_side(zlib.compress, [], [], processes=processes) == []


def test_an_error_is_the_one_that_the_work_raises() -> None:
    parts = [zlib.compress(part) for part in PARTS]
    parts[7] = b"nonsense"
    with pytest.raises(zlib.error, match="incorrect header"):
        run_side_by_side(zlib.decompress, parts, [1] * 12, processes=3)
    assert not _workers()


def test_what_a_killed_process_had_is_done_all_the_same() -> None:
    parts = [random.Random(number).randbytes(3_000_000) for number in range(8)]
    killed: list[int] = []

    def kill_all_that_come() -> None:
        while len(killed) < 3:
            for worker in _workers():
                if worker.pid not in killed:
                    killed.append(worker.pid)
                    worker.kill()

    thread = threading.Thread(target=kill_all_that_come)
    thread.start()
    found = run_side_by_side(zlib.compress, parts, [1] * 8, processes=3)
    thread.join()
    assert found == [zlib.compress(part) for part in parts]
    assert not _workers()


@pytest.mark.parametrize("alone", [0, 1, 5, 100])
@pytest.mark.parametrize("processes", [1, 2, 5])
def test_results_come_one_by_one_while_few_parts_are_taken_ahead(
    processes: int, alone: int
) -> None:
    taken = 0

    def supply() -> Iterator[bytes]:
        nonlocal taken
        for part in PARTS * 3:
            taken += 1
            yield part

    ahead = []
    results = side_by_side(zlib.compress, supply(), processes=processes, alone=alone)
    for number, result in enumerate(results):
        assert result == zlib.compress(PARTS[number % 12])
        ahead.append(taken - number)
    assert len(ahead) == 36
    assert max(ahead) <= (1 if processes == 1 or alone == 100 else 3 * processes)
    assert ahead[:alone] == [1] * min(alone, 36)


def test_a_short_work_starts_no_process_and_one_that_is_left_ends_its_own() -> None:
    results = side_by_side(zlib.compress, PARTS * 3, processes=2, alone=3)
    for _ in range(3):
        next(results)
        assert not _workers()
    next(results)
    assert len(_workers()) == 2
    results.close()
    assert not _workers()


def test_a_worker_says_nothing_of_a_result_that_nobody_reads() -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "penstock.maintenance.side_by_side", "zlib", "compress"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert worker.stdin and worker.stdout and worker.stderr
    worker.stdout.close()
    worker.stdin.write((1).to_bytes(8, "big") + b"x")
    worker.stdin.close()
    assert (worker.stderr.read(), worker.wait()) == (b"", -signal.SIGPIPE)
    worker.stderr.close()


def test_a_worker_says_nothing_of_ctrl_c_that_comes_while_it_starts(tmp_path: Path) -> None:
    """It goes to all processes of a terminal; this one has it before any line of Penstock's."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "if 'penstock.maintenance.side_by_side' in sys.orig_argv:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    program = (
        "from penstock.maintenance.side_by_side import run_side_by_side\n"
        "import zlib\n"
        "print(len(run_side_by_side(zlib.compress, [b'x'] * 9, [1] * 9, processes=3)))\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (told.stdout, told.stderr) == ("9\n", "")


def test_commands_begin_as_many_as_cores_that_they_may_use() -> None:
    program = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from penstock.cli.store.command import verify
from penstock.cli.store.changes import rebuild, repair
from penstock.cli.store.inspect import inspect
for command in (verify, rebuild, repair, inspect):
    (option,) = (each for each in command.params if each.name == "processes")
    print(option.default)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "1\n1\n1\n1\n", done.stderr
