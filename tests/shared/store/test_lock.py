"""The store's lock: who has it, who is told what, and what is awaited under it."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from penstock.shared.config import Config
from penstock.shared.errors import ConfigError, StoreLocked, StoreUnavailable
from penstock.shared.files.mounts import is_apart
from penstock.shared.layout import StorePaths
from penstock.shared.memory.run_directory import Run, write_run
from penstock.shared.store.lock import check_mounts, check_place, lock_store, stopped_store


@pytest.fixture
def paths(make_config: Callable[..., Config]) -> StorePaths:
    found = StorePaths(make_config().store)
    for directory in (found.commit_log, found.own):
        directory.mkdir(parents=True)
    return found


def _in_another_process(work: Callable[[], object]) -> str:
    """What a fork says of `work`: its error, or "". POSIX locks are between processes."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except StoreLocked as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with open(read, "rb") as told:
        return told.read().decode()


def _locked(paths: StorePaths) -> None:
    os.close(lock_store(paths))


def test_one_process_at_a_time_has_a_store(paths: StorePaths) -> None:
    handle = lock_store(paths)
    assert "another process holds the store's lock" in _in_another_process(lambda: _locked(paths))
    os.close(handle)
    assert _in_another_process(lambda: _locked(paths)) == ""
    assert paths.lock.read_bytes() == b"lock", "not read before: to close it would give it back"


def test_it_is_rocketmq_s_lock_of_the_first_byte(paths: StorePaths) -> None:
    handle = lock_store(paths)

    def take(start: int) -> None:
        with paths.lock.open("r+b") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, start)
            except OSError as error:
                raise StoreLocked("taken", start, "wait") from error

    assert _in_another_process(lambda: take(1)) == ""
    assert "taken" in _in_another_process(lambda: take(0))
    os.close(handle)


@pytest.mark.parametrize("is_running", [True, False])
def test_the_broker_that_has_it_is_named_while_it_runs(
    paths: StorePaths,
    make_config: Callable[..., Config],
    make_run: Callable[..., Run],
    is_running: bool,
) -> None:
    run = make_run(make_config())
    run = run if is_running else msgspec.structs.replace(run, boot_id="another")
    write_run(paths, run)
    handle = lock_store(paths)
    told = _in_another_process(lambda: _locked(paths))
    assert ("a broker runs on this store" in told) == is_running
    assert (f"process {os.getpid()}" in told) == is_running
    os.close(handle)


def test_work_on_a_stopped_store_has_the_lock_and_its_last_run(
    paths: StorePaths, make_config: Callable[..., Config], make_run: Callable[..., Run]
) -> None:
    with stopped_store(paths.root) as (found, last_run):
        assert (found.root, last_run) == (paths.root, None)
        assert _in_another_process(lambda: _locked(paths))
    assert not _in_another_process(lambda: _locked(paths))
    write_run(paths, run := make_run(make_config()))
    with stopped_store(paths.root) as (_, last_run):
        assert last_run is not None and last_run.run_id == run.run_id
    with pytest.raises(StoreUnavailable), stopped_store(paths.root):
        raise OSError(errno.EIO, "of the disk")
    assert not _in_another_process(lambda: _locked(paths)), "the lock is given back"
    with pytest.raises(ConfigError, match="no store"), stopped_store(paths.root / "elsewhere"):
        pass


def test_a_file_is_no_place_for_a_store(tmp_path: Path) -> None:
    check_place(tmp_path)
    check_place(tmp_path / "new")
    (file := tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="this is a file"):
        check_place(file)


@pytest.mark.parametrize("name", ["commit_log", "consume_queue", "index", "own", "staging"])
def test_a_store_whose_directories_are_not_in_one_file_system_is_refused(
    paths: StorePaths, name: str
) -> None:
    check_mounts(paths)
    place: Path = getattr(paths, name)
    if place.exists():
        place.rmdir()
    place.symlink_to("/proc")
    with pytest.raises(StoreUnavailable, match=f"mounted by itself.*{place}.*Mount the disk at"):
        check_mounts(paths)
    if paths.commit_log.is_dir():
        with pytest.raises(StoreUnavailable, match="mounted by itself"), stopped_store(paths.root):
            pytest.fail("nothing may be changed there")
    assert not _in_another_process(lambda: _locked(paths)), "the lock is given back"


def test_two_directories_are_apart_if_no_file_moves_from_one_to_the_other(tmp_path: Path) -> None:
    (near := tmp_path / "near").mkdir()
    assert not is_apart(tmp_path, near)
    assert is_apart(tmp_path, Path("/proc"))
    assert [*tmp_path.iterdir()] == [near] and not [*near.iterdir()]
    (tmp_path / f"{os.getpid()}.not-there").touch()
    with pytest.raises(FileExistsError):
        is_apart(tmp_path, near)
    with pytest.raises(NotADirectoryError):
        is_apart(tmp_path, near / f"{os.getpid()}.not-there")
