"""Queue files that are looked at: what is there is read, nothing is made, and few stay open."""

from __future__ import annotations

import fcntl
import os
import resource
from pathlib import Path

import pytest

from penstock.shared.config import Config
from penstock.shared.errors import StoreDamaged
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.memory.queue_table import QueueKey
from penstock.shared.queue import open_files as consume_queue_files
from penstock.shared.queue.open_files import ConsumeQueueFiles

SEGMENT = 100  # five entries
KEY = QueueKey("orders", 3)


def entries(start: int, stop: int) -> bytes:
    return b"".join(
        ENTRY.pack(number * 1000, 100 + number, -number) for number in range(start, stop)
    )


def files_in(root: Path) -> ConsumeQueueFiles:
    return ConsumeQueueFiles(StorePaths(root), Config(mapped_file_size_consume_queue_bytes=SEGMENT))


def make_queue(root: Path, key: QueueKey, raw: bytes) -> None:
    directory = StorePaths(root).queue(*key)
    directory.mkdir(parents=True)
    for base in range(0, len(raw), SEGMENT):
        piece = raw[base : base + SEGMENT].ljust(SEGMENT, b"\0")
        (directory / segment_name(base)).write_bytes(piece)


def test_entries_are_read_up_to_the_end_of_their_segment(tmp_path: Path) -> None:
    make_queue(tmp_path, KEY, entries(0, 7))
    files = files_in(tmp_path)
    assert files.read(KEY, 0, 3) == entries(0, 3)
    assert files.read(KEY, 3, 7) == entries(3, 5)
    assert files.read(KEY, 5, 7) == entries(5, 7)
    files.close()


def test_reading_makes_nothing(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    with pytest.raises(FileNotFoundError):
        files.read(KEY, 0, 1)
    assert not StorePaths(tmp_path).consume_queue.exists()


def test_a_segment_that_is_too_short_is_damage(tmp_path: Path) -> None:
    make_queue(tmp_path, KEY, entries(0, 5))
    files = files_in(tmp_path)
    os.truncate(files.path(KEY, 0), 50)
    with pytest.raises(StoreDamaged, match=segment_name(0)):
        files.read(KEY, 0, 5)
    assert files.read(KEY, 0, 2) == entries(0, 2)
    files.close()


def test_no_more_files_stay_open_than_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume_queue_files, "MOST_OPEN", 4)
    for number in range(12):
        make_queue(tmp_path, QueueKey("t", number), entries(number, number + 1))
    files = files_in(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        for number in range(12):
            assert files.read(QueueKey("t", number), 0, 1) == entries(number, number + 1)
            assert len(os.listdir("/proc/self/fd")) - before <= 4
    files.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("writable", [False, True])
def test_files_are_opened_for_what_they_are_for_once_and_never_by_a_link(
    tmp_path: Path, writable: bool
) -> None:
    make_queue(tmp_path, KEY, entries(0, 5))
    config = Config(mapped_file_size_consume_queue_bytes=SEGMENT)
    files = ConsumeQueueFiles(StorePaths(tmp_path), config, *[True][: int(writable)])
    before = len(os.listdir("/proc/self/fd"))
    assert files.read(KEY, 0, 5) == entries(0, 5)
    mode = fcntl.fcntl(files.handle(KEY, 0), fcntl.F_GETFL) & os.O_ACCMODE
    assert mode == (os.O_RDWR if writable else os.O_RDONLY)
    assert len(os.listdir("/proc/self/fd")) == before + 1, "read and looked at by one handle"
    os.symlink(files.path(KEY, 0), files.path(KEY, SEGMENT))
    with pytest.raises(OSError, match="symbolic links"):
        files.read(KEY, 5, 6)
    files.close()


def test_a_deleted_file_is_closed_and_the_others_are_not(tmp_path: Path) -> None:
    make_queue(tmp_path, KEY, entries(0, 10))
    files = files_in(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for base in (0, SEGMENT):
        files.handle(KEY, base)
    files.path(KEY, 0).unlink()
    files.release_deleted()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    assert files.read(KEY, 5, 10) == entries(5, 10)
    with pytest.raises(FileNotFoundError):
        files.read(KEY, 0, 1)
    files.close()


def test_a_queue_of_the_name_of_a_deleted_one_has_handles_of_its_own(tmp_path: Path) -> None:
    make_queue(tmp_path, KEY, entries(0, 5))
    files = files_in(tmp_path)
    assert files.read(KEY, 0, 1, 1) == entries(0, 1)
    directory = StorePaths(tmp_path).queue(*KEY)
    directory.rename(tmp_path / "deleted")
    make_queue(tmp_path, KEY, entries(7, 12))
    assert files.read(KEY, 0, 1, 1) == entries(0, 1)
    assert files.read(KEY, 0, 1, 2) == entries(7, 8)
    assert [files.begins_segment(offset) for offset in (0, 1, 4, 5, 6, 10)] == [
        True,
        False,
        False,
        True,
        False,
        True,
    ]
    files.close()


@pytest.mark.parametrize(("limit", "most"), [(15, 1), (80, 5), (95, 5), (96, 6)])
def test_of_the_files_that_a_process_may_open_at_all_one_in_16_is_for_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, most: int
) -> None:
    """The hard limit counts, for a start raises the soft one to it. What was used last stays."""
    for number in range(9):
        make_queue(tmp_path, QueueKey("t", number), entries(number, number + 1))
    with monkeypatch.context() as kernel:
        kernel.setattr(resource, "getrlimit", lambda which: (16, limit))
        files = files_in(tmp_path)
    used = list[int]()
    for number in (0, 1, 2, 3, 4, 5, 0, 6, 0, 7, 8, 3, 7):
        assert files.read(QueueKey("t", number), 0, 1) == entries(number, number + 1)
        used = [each for each in used if each != number] + [number]
        links = (
            os.readlink(each.path) for each in os.scandir("/proc/self/fd") if each.is_symlink()
        )
        found = {link for link in links if link.startswith(str(tmp_path))}
        assert found == {str(files.path(QueueKey("t", each), 0)) for each in used[-most:]}
    files.close()
