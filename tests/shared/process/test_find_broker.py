"""Which broker runs on a store: what is said of each state it can be in, and what to do next."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.shared.errors import ConnectError
from penstock.shared.layout import StorePaths
from penstock.shared.memory import run_directory
from penstock.shared.memory.run_directory import (
    Run,
    original_of,
    read_last_run,
    read_run,
    write_run,
)
from penstock.shared.process.broker_status import read_status
from penstock.shared.process.find_broker import NotRunning, find_running, lock_holder

LOCK = """\
import sys
from pathlib import Path
from penstock.shared.layout import StorePaths
from penstock.shared.store.lock import lock_store
handle = lock_store(StorePaths(Path(sys.argv[1])))
print(flush=True)
input()
"""


@pytest.fixture
def paths(tmp_path: Path) -> StorePaths:
    """A store without a broker."""
    found = StorePaths(tmp_path / "store")
    for directory in (found.commit_log, found.own):
        directory.mkdir(parents=True)
    return found


@pytest.fixture
def run(make_config: Callable[..., Any], make_run: Callable[..., Run]) -> Run:
    return make_run(make_config())


@contextmanager
def locked_by(store: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the store's lock."""
    holder = subprocess.Popen(
        [sys.executable, "-c", LOCK, str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "\n"
        yield holder
    finally:
        holder.communicate("")


def said_of(store: Path) -> str:
    with pytest.raises(ConnectError) as caught:
        find_running(store)
    assert caught.value.exit_code == 3
    return str(caught.value)


def as_supervised_by(run: Run, pid: int, **changes: object) -> Run:
    return msgspec.structs.replace(run, supervisor_pid=pid, **changes)


def test_a_broker_runs_whose_supervisor_has_the_lock(paths: StorePaths, run: Run) -> None:
    with locked_by(paths.root) as holder:
        alive = as_supervised_by(run, holder.pid)
        write_run(paths, alive)
        assert lock_holder(paths.lock) == holder.pid
        assert find_running(paths.root) == alive
    assert lock_holder(paths.lock) is None
    assert "no broker runs on this store" in said_of(paths.root)


def test_looking_at_the_lock_leaves_it_to_who_has_it(broker: Any) -> None:
    for _ in range(3):
        assert find_running(broker.store).supervisor_pid == broker.process.pid
        assert lock_holder(StorePaths(broker.store).lock) == broker.process.pid


def test_a_pid_that_is_another_process_by_now_is_no_broker(paths: StorePaths, run: Run) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    write_run(paths, as_supervised_by(run, child.pid))
    paths.lock.touch()
    try:
        assert "no broker runs on this store" in said_of(paths.root)
    finally:
        child.communicate(b"")


def test_each_place_where_no_store_is_is_told_as_it_is(tmp_path: Path) -> None:
    none, file, empty = tmp_path / "no such", tmp_path / "file", tmp_path / "empty"
    file.touch()
    empty.mkdir()
    assert "there is no such directory" in said_of(none)
    assert f"penstock up --store '{none}'" in said_of(none), "as a shell takes it"
    assert "this is a file" in said_of(file)
    assert "there is no store in this directory" in said_of(empty)
    assert f"penstock up --store {empty}" in said_of(empty)


def test_a_store_that_no_broker_of_ours_has_run_on(paths: StorePaths) -> None:
    said = said_of(paths.root)
    assert "no broker runs on this store, or has run on it" in said
    assert f"penstock up --store {paths.root}" in said


@pytest.mark.parametrize("killed", [True, False])
def test_a_store_whose_broker_ended_says_how_and_when(
    broker_in: Any, tmp_path: Path, killed: bool
) -> None:
    running = broker_in(tmp_path)
    started = running.status()["started_ms"]
    (running.kill if killed else running.stop)()
    said = said_of(running.store)
    pid = running.process.pid
    how = f"its broker (pid {pid}) was killed, at about " if killed else "it was stopped at "
    assert how in said and f"penstock up --store {running.store}" in said
    import datetime as dt
    import re

    (when,) = re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", said)
    at_s = dt.datetime.fromisoformat(when).timestamp()
    assert started / 1000 - 2 <= at_s <= dt.datetime.now().timestamp() + 2
    with pytest.raises(NotRunning):
        read_status(running.store)


def test_a_run_of_another_boot_is_told_as_such(paths: StorePaths, run: Run) -> None:
    write_run(paths, as_supervised_by(run, os.getppid(), boot_id="another boot"))
    paths.abort.touch()
    assert "on another machine, or until this one went down, after 2" in said_of(paths.root)


def test_another_program_that_has_the_lock_is_named(paths: StorePaths, run: Run) -> None:
    with locked_by(paths.root) as holder:
        said = said_of(paths.root)
        assert f"process {holder.pid}" in said and "from pathlib import Path" in said
        write_run(paths, as_supervised_by(run, holder.pid, directory="/nonexistent/penstock-0"))
        said = said_of(paths.root)
        assert run.endpoints.produce in said and "shared memory" in said


def test_a_store_in_a_container_or_on_another_machine(
    paths: StorePaths, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel names no process of a container for its lock, nor one of another machine."""
    write_run(paths, as_supervised_by(run, 1 << 22, directory="/nonexistent/penstock-0"))
    monkeypatch.setattr("penstock.shared.process.find_broker.lock_holder", lambda lock: 0)
    said = said_of(paths.root)
    assert "cannot be seen from here" in said and run.endpoints.produce in said


# --- copies ---


def test_a_copy_of_a_running_store_has_no_broker_and_says_so(
    broker_in: Any, tmp_path: Path
) -> None:
    running = broker_in(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(running.store, copy)
    said = said_of(copy)
    assert f"a copy of {running.store}" in said and f"--store {running.store}" in said
    assert find_running(running.store).supervisor_pid == running.process.pid


def test_a_copy_takes_nothing_of_its_originals_memory(
    broker_in: Any, tmp_path: Path, make_config: Callable[..., Any]
) -> None:
    """Started before it, the copy once took the original's shared memory, and removed it."""
    from penstock.client import Producer

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    original = broker_in(tmp_path / "a")
    with Producer(store=original.store) as producer:
        producer.send("orders", b"x", ack="written").result(60)
    original.kill()
    run = read_run(StorePaths(original.store))
    assert run is not None
    shutil.copytree(original.store, tmp_path / "b" / "store")
    copy = broker_in(tmp_path / "b")
    assert run.positions.exists() and run.pool.exists()
    assert copy.status()["run_directory"] != run.directory
    again = broker_in(tmp_path / "a")
    said = again.said.read_text()
    assert "recovered after an unclean stop" in said
    assert not run.positions.exists(), "the original has taken it itself"


def test_a_store_that_was_moved_keeps_its_memory_and_a_copy_has_none(
    paths: StorePaths, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_directory, "_MEMORY", run.path.parent)
    write_run(paths, run)
    (run.path / "store").write_bytes(os.fsencode(paths.root))
    assert original_of(paths, run) is None and read_last_run(paths) == run
    copy = StorePaths(tmp_path / "copy")
    shutil.copytree(paths.root, copy.root)
    assert original_of(copy, run) == paths.root
    of_copy = read_last_run(copy)
    assert of_copy is not None and not of_copy.path.exists() and of_copy.run_id == run.run_id
    # the original goes: then the other one has been moved, as far as anybody can tell
    shutil.rmtree(paths.root)
    assert original_of(copy, run) is None and read_last_run(copy) == run
    linked = StorePaths(tmp_path / "linked")
    linked.root.symlink_to(copy.root)
    (run.path / "store").write_bytes(os.fsencode(copy.root))
    assert original_of(linked, run) is None
