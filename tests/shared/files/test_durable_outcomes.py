"""What each change of files leaves when it succeeds, when a sync fails, and when nothing was there:
names, contents, what was synced, and no descriptor."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from penstock.shared.files.durable import (
    EXPIRED,
    WRITE_BYTES,
    FlushFailed,
    NewFile,
    delete_file,
    exchange,
    expired_segments,
    give_name,
    make_directory,
    make_file,
    make_files,
    replace_file,
    set_aside,
    sync_directory,
    sync_file,
    sync_tree,
    unfinished_files,
    zero_from,
)


class Change(NamedTuple):
    """One call in a directory that holds `old` ("old"), `other` ("other") and `staging/`."""

    make: Callable[[Path], object]
    # the files after it, and after it where the last sync fails
    left: dict[str, bytes]
    left_unsynced: dict[str, bytes]


BOTH = {"old": b"old", "other": b"other"}
CHANGES = {
    "make_file": Change(
        lambda at: make_file(at / "staging", at / "new", 4, sparse=True, head=b"n"),
        BOTH | {"new": b"n\0\0\0"},
        BOTH,
    ),
    "give_name": Change(
        lambda at: give_name(at / "old", at / "new"),
        {"new": b"old", "other": b"other"},
        {"other": b"other"},
    ),
    "replace_file": Change(
        lambda at: replace_file(at / "old", b"new"), BOTH | {"old": b"new"}, BOTH | {"old": b"new"}
    ),
    "delete_file": Change(
        lambda at: delete_file(at / "old"), {"other": b"other"}, {"other": b"other"}
    ),
    "delete_file, gone": Change(lambda at: delete_file(at / "gone"), BOTH, BOTH),
    "set_aside": Change(
        lambda at: set_aside(at / "old", at / "staging"),
        {"other": b"other", f"staging/{EXPIRED}old": b"old"},
        {"other": b"other", f"staging/{EXPIRED}old": b"old"},
    ),
    "set_aside, gone": Change(lambda at: set_aside(at / "gone", at / "staging"), BOTH, BOTH),
    "exchange": Change(
        lambda at: exchange(at / "old", at / "other"),
        {"old": b"other", "other": b"old"},
        {"old": b"other", "other": b"old"},
    ),
    "sync_tree": Change(sync_tree, BOTH, BOTH),
    "sync_directory": Change(sync_directory, BOTH, BOTH),
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "staging").mkdir()
    for name, content in BOTH.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.fixture
def fail_of_directories(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Have the sync of each directory fail from then on."""
    sync = os.fsync

    def fail(handle: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EIO, "the directory")
        sync(handle)

    return lambda: monkeypatch.setattr(os, "fsync", fail)


def files(place: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file()
    }


def open_below(place: Path) -> list[str]:
    """What this process has open there."""
    handles = (f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd"))
    return [
        target
        for each in handles
        if os.path.lexists(each) and (target := os.readlink(each)).startswith(str(place))
    ]


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_whole_and_its_directory_is_synced_after_it(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    seen: list[dict[str, bytes]] = []
    sync = os.fsync

    def note(handle: int) -> None:
        sync(handle)
        if os.readlink(f"/proc/self/fd/{handle}") == str(place):
            seen.append(files(place))

    with monkeypatch.context() as noting:
        noting.setattr(os, "fsync", note)
        CHANGES[name].make(place)
    assert seen and seen[-1] == files(place) == CHANGES[name].left
    assert open_below(place) == []


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_whose_directory_cannot_be_synced_is_an_error_that_names_it(
    place: Path, fail_of_directories: Callable[[], None], name: str
) -> None:
    fail_of_directories()
    with pytest.raises(FlushFailed, match="the directory") as raised:
        CHANGES[name].make(place)
    assert raised.value.filename == str(place) and raised.value.errno == errno.EIO
    assert files(place) == CHANGES[name].left_unsynced
    assert open_below(place) == []


def test_a_sync_that_fails_is_not_to_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: int) -> None:
        raise OSError(errno.EIO, "the file")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(FlushFailed, match="the file") as raised:
        sync_file(0)
    assert raised.value.errno == errno.EIO


@pytest.mark.parametrize(
    ("is_there", "error", "is_refused"),
    [
        (False, OSError(errno.EIO, "x"), True),
        (False, PermissionError(errno.EACCES, "x"), True),
        (True, OSError(errno.EIO, "x"), True),
        (True, PermissionError(errno.EACCES, "x"), False),
    ],
)
def test_only_a_directory_that_was_there_may_have_a_parent_that_cannot_be_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_there: bool,
    error: OSError,
    is_refused: bool,
) -> None:
    """An administrator has made it, and answers for its name."""
    directory, real = tmp_path / "directory", cast("Any", os.open)
    if is_there:
        directory.mkdir()

    def refuse(path: object, *arguments: int, **others: int) -> int:
        if path == tmp_path:
            raise error
        return real(path, *arguments, **others)

    with monkeypatch.context() as refusing:
        refusing.setattr(os, "open", refuse)
        if is_refused:
            with pytest.raises(type(error)):
                make_directory(directory)
        else:
            make_directory(directory)
    assert directory.is_dir() == is_there


def test_files_in_the_making_are_closed_and_removed_where_one_cannot_be_made(place: Path) -> None:
    wanted = [NewFile(str(place / name), b"") for name in ("one", "two")]
    with pytest.raises(OSError, match="Invalid argument"):
        make_files(place / "staging", wanted, -1, sparse=True)
    assert files(place) == BOTH and open_below(place) == []


def test_of_what_lies_in_the_making_expired_segments_and_directories_are_told_apart(
    place: Path,
) -> None:
    staging = place / "staging"
    assert unfinished_files(staging) == [] == expired_segments(staging)
    set_aside(place / "old", staging)
    (staging / "directory").mkdir()
    (staging / "link").symlink_to(staging / "directory")
    (staging / f"x-{EXPIRED}").touch()
    expired = staging / f"{EXPIRED}old"
    assert sorted(unfinished_files(staging)) == sorted(
        [expired, staging / "link", staging / f"x-{EXPIRED}"]
    )
    assert expired_segments(staging) == [expired]
    assert expired_segments(place / "nowhere") == []


@pytest.mark.parametrize("again", [False, True])
def test_zeros_are_written_over_zeros_only_where_the_disk_may_have_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    mebibyte, written = 1 << 20, list[tuple[int, int]]()
    write = os.pwrite

    def note(handle: int, raw: memoryview, at: int) -> int:
        written.append((at, len(raw)))
        return write(handle, raw, at)

    file = tmp_path / "file"
    # zeros, one other byte, zeros, and a part of a piece
    file.write_bytes(bytes(mebibyte) + b"\1".ljust(mebibyte, b"\0") + bytes(mebibyte) + b"\2\0\3")
    handle = os.open(file, os.O_RDWR)
    monkeypatch.setattr(os, "pwrite", note)
    try:
        assert zero_from(handle, 0, 3 * mebibyte + 3, again=again) == 3
    finally:
        os.close(handle)
    calls = [(at, WRITE_BYTES) for at in range(0, 3 * mebibyte, WRITE_BYTES)]
    of_the_second = [(at, size) for at, size in calls if mebibyte <= at < 2 * mebibyte]
    assert written == [*(calls if again else of_the_second), (3 * mebibyte, 3)]
    assert file.read_bytes() == bytes(3 * mebibyte + 3)
