"""The run directory: where shared memory is made, how a run is found, when it is over."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.shared.config import Config
from penstock.shared.errors import StoreLocked, StoreUnavailable
from penstock.shared.layout import StorePaths
from penstock.shared.memory import run_directory
from penstock.shared.memory.run_directory import (
    Run,
    await_actors_gone,
    boot_id,
    join_run,
    new_run_directory,
    read_last_run,
    read_run,
    remove_run_directory,
    remove_strays,
    running,
    survives,
    write_run,
)
from penstock.shared.process.listeners import listen_ipc

RunMaker = Callable[[Config], Run]


@pytest.fixture
def run(make_config: Callable[..., Config], make_run: RunMaker) -> Run:
    return make_run(make_config())


@pytest.fixture
def paths(tmp_path: Path) -> StorePaths:
    paths = StorePaths(tmp_path / "store")
    paths.own.mkdir(parents=True)
    return paths


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """The memory file system and the temporary directory, as directories of the test."""
    # a socket's path is short, and a test's directory is not
    with tempfile.TemporaryDirectory(prefix="run-") as place:
        memory, temporary = Path(place) / "shm", Path(place) / "tmp"
        memory.mkdir()
        temporary.mkdir()
        monkeypatch.setattr(run_directory, "_MEMORY", memory)
        monkeypatch.setenv("TMPDIR", str(temporary))
        yield memory, temporary


# --- making ---


def test_shared_memory_is_made_in_the_memory_file_system_for_its_user_only(
    paths: StorePaths, places: tuple[Path, Path]
) -> None:
    run_id, directory, remark = new_run_directory(paths.root, 1000)
    assert directory == places[0] / f"penstock-{run_id}" and remark == ""
    assert directory.stat().st_mode & 0o777 == 0o700
    assert new_run_directory(paths.root, 1000)[0] != run_id


def test_where_memory_is_short_it_goes_to_the_temporary_directory_and_says_so(
    paths: StorePaths, places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, temporary = places
    real = os.statvfs

    def small_memory(place: Path) -> os.statvfs_result:
        found = list(real(place))
        if place == memory:
            found[3] = found[4] = 1  # blocks free
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", small_memory)
    _, directory, remark = new_run_directory(paths.root, 1 << 20)
    assert directory.parent == temporary
    assert str(memory) in remark and "1 are needed" in remark and str(temporary) in remark
    memory.rmdir()
    assert "is not there" in new_run_directory(paths.root, 1 << 20)[2]


def test_a_place_whose_path_is_too_long_for_sockets_is_passed_over(
    paths: StorePaths, places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, temporary = places
    monkeypatch.setattr(run_directory, "_MEMORY", long := memory / ("x" * 60))
    long.mkdir()
    _, directory, remark = new_run_directory(paths.root, 1000)
    assert directory.parent == temporary and "too long a path for sockets" in remark
    listen_ipc(directory / "bell-committer.ipc").socket.close()
    monkeypatch.setenv("TMPDIR", str(long))
    with pytest.raises(StoreUnavailable, match="too long a path for sockets"):
        new_run_directory(paths.root, 1000)


def test_no_room_anywhere_is_a_typed_error_that_names_every_place(
    paths: StorePaths, places: tuple[Path, Path]
) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        new_run_directory(paths.root, 1 << 60)
    assert all(str(place) in str(caught.value) for place in places)
    assert [list(place.iterdir()) for place in places] == [[], []]


# --- finding ---


def test_a_run_is_found_again_in_every_field(paths: StorePaths, run: Run) -> None:
    assert read_run(paths) is None
    write_run(paths, run)
    assert read_run(paths) == run
    assert run.socket("produce") == f"ipc://{run.directory}/produce.ipc"


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b'{"run_id":1}', b'{"run_id":"\xff"}', b"[" * 100_000, b'{"a":' * 100_000],
)
def test_what_is_no_run_is_no_last_run(paths: StorePaths, raw: bytes) -> None:
    paths.run.write_bytes(raw)
    assert read_run(paths) is None


@pytest.mark.parametrize("directory", ["/tmp/penstock-\0", "\ud800"])
def test_a_directory_that_is_no_path_is_no_last_run(
    paths: StorePaths, run: Run, directory: str
) -> None:
    raw = json.loads(msgspec.json.encode(run)) | {"directory": directory}
    paths.run.write_text(json.dumps(raw))
    assert read_run(paths) is None


def test_the_memory_of_a_last_run_is_its_stores_own_directory_and_no_other(
    paths: StorePaths, places: tuple[Path, Path], run: Run, tmp_path: Path
) -> None:
    """A store may come from elsewhere: run.json names what its maker likes."""

    def named(directory: Path) -> bool:
        write_run(paths, msgspec.structs.replace(run, directory=str(directory)))
        return read_last_run(paths).directory == str(directory)

    own = new_run_directory(paths.root, 0)[1]
    other_store = StorePaths(tmp_path / "another store")
    other_store.own.mkdir(parents=True)
    of_another = new_run_directory(other_store.root, 0)[1]
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "letter").write_text("dear")
    link = places[0] / f"penstock-{'1' * 16}"
    link.symlink_to(precious)
    to_own = places[1] / f"penstock-{'2' * 16}"
    to_own.symlink_to(own)
    no_mark = places[0] / f"penstock-{'3' * 16}"
    no_mark.mkdir()
    assert named(own) and named(no_mark), "what a killed removal leaves is empty"
    (no_mark / "letter").write_text("dear")
    for wrong in (of_another, precious, link, to_own, no_mark, Path("/etc/hosts")):
        assert not named(wrong), wrong
    remove_run_directory(msgspec.structs.replace(run, directory=str(link)))
    assert (precious / "letter").exists()
    assert named(places[0] / f"penstock-{'4' * 16}"), "what is gone is no danger"


def test_a_store_that_was_moved_has_its_memory_and_a_copy_of_it_has_not(
    paths: StorePaths, places: tuple[Path, Path], run: Run, tmp_path: Path
) -> None:
    directory = new_run_directory(paths.root, 0)[1]
    write_run(paths, msgspec.structs.replace(run, directory=str(directory)))
    copy, moved = tmp_path / "copy", tmp_path / "moved"
    shutil.copytree(paths.root, copy)
    assert read_last_run(StorePaths(copy)).directory != str(directory), (
        "the first one may still need it"
    )
    paths.root.rename(moved)
    assert read_last_run(StorePaths(moved)).directory == str(directory)


def test_a_place_without_a_store_has_no_run(tmp_path: Path) -> None:
    assert read_run(StorePaths(tmp_path / "none")) is None
    (tmp_path / "file").write_text("")
    assert read_run(StorePaths(tmp_path / "file")) is None


def test_shared_memory_survives_in_this_boot_only_and_whole_only(run: Run, tmp_path: Path) -> None:
    change = msgspec.structs.replace
    assert survives(run)
    assert not survives(change(run, boot_id="another boot"))
    assert not survives(change(run, directory=str(tmp_path / "penstock-" / "gone")))
    elsewhere = tmp_path / "somewhere"
    elsewhere.mkdir()
    for name in ("positions", "queues"):
        (elsewhere / name).write_bytes(b"")
    assert not survives(change(run, directory=str(elsewhere))), "no name of ours"
    run.queues.unlink()
    assert not survives(run)


def test_a_run_runs_while_its_supervisor_lives(paths: StorePaths, run: Run) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    alive = msgspec.structs.replace(run, supervisor_pid=child.pid)
    assert running(alive)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not running(alive), "a zombie does not run"
    child.communicate()
    assert not running(alive)


def test_a_boot_has_one_id() -> None:
    assert boot_id() == boot_id() and len(boot_id()) == 36


# --- ending ---


def test_removing_takes_what_is_ours_and_nothing_else(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "precious"
    other.mkdir()
    remove_run_directory(msgspec.structs.replace(run, directory=str(other)))
    assert other.is_dir()
    remove_run_directory(run)
    assert not run.path.exists()
    remove_run_directory(run)


@pytest.mark.parametrize("steps", range(6))
def test_a_removal_that_is_killed_leaves_no_memory_to_use_and_is_finished_by_the_next_start(
    paths: StorePaths, places: tuple[Path, Path], run: Run, steps: int
) -> None:
    _, directory, _ = new_run_directory(paths.root, 0)
    for name in ("positions", "queues", "pool", "alive"):
        (directory / name).write_bytes(b"")
    run = msgspec.structs.replace(run, directory=str(directory))
    child = os.fork()
    if child == 0:
        left = steps

        def die_behind_the_last_step(event: str, args: tuple[object, ...]) -> None:
            nonlocal left
            if event in ("os.remove", "os.rmdir"):
                left -= 1
                if left < 0:
                    os._exit(9)

        sys.addaudithook(die_behind_the_last_step)
        remove_run_directory(run)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert survives(run) == (steps == 0)
    assert not survives(run) or run.pool.exists()
    remove_strays(paths.root, None)
    # without its mark nobody knows whose an empty directory is
    assert directory.exists() == (steps == 5) and not any(directory.glob("*"))


def test_what_killed_starts_left_is_removed_and_only_that(
    paths: StorePaths, places: tuple[Path, Path], run: Run, tmp_path: Path
) -> None:
    new_run_directory(paths.root, 0)
    named = new_run_directory(paths.root, 0)[1]
    of_another = new_run_directory(tmp_path / "another store", 0)[1]
    no_mark = places[1] / f"penstock-{'0' * 16}"
    no_name = places[1] / "penstock-notes"
    for directory in (no_mark, no_name):
        directory.mkdir()
    (no_name / "store").write_bytes(os.fsencode(paths.root))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "store").write_bytes(os.fsencode(paths.root))
    link = places[1] / f"penstock-{'1' * 16}"
    link.symlink_to(elsewhere)
    remove_strays(paths.root, msgspec.structs.replace(run, directory=str(named)))
    left = {path for place in places for path in place.iterdir()}
    assert left == {named, of_another, no_mark, no_name, link}
    remove_strays(paths.root, None)
    assert not named.exists() and of_another.exists()


@pytest.fixture
def actor(run: Run) -> Iterator[subprocess.Popen[str]]:
    """A process that counts as alive in the run."""
    joining = (
        "import sys, msgspec; from penstock.shared.memory.run_directory import Run, join_run\n"
    )
    joining += "join_run(msgspec.json.decode(sys.argv[1], type=Run)); print(flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", joining, msgspec.json.encode(run).decode()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "\n"
    yield child
    child.kill()
    child.communicate()


def test_a_start_waits_for_the_actors_of_the_last_run(
    run: Run, actor: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_directory, "_GONE_TIMEOUT_MS", 20)
    with pytest.raises(StoreLocked, match="alive"):
        await_actors_gone(run)
    monkeypatch.setattr(run_directory, "_GONE_TIMEOUT_MS", 30_000)
    actor.kill()
    await_actors_gone(run)


def test_actors_do_not_wait_for_each_other(run: Run, actor: subprocess.Popen[str]) -> None:
    os.close(join_run(run))


def test_a_run_without_actors_is_not_waited_for(run: Run) -> None:
    await_actors_gone(run)
    os.close(join_run(run))
    await_actors_gone(run)
