"""Expired segments become the next ones, all zeros; what anybody has open is never written to."""

from __future__ import annotations

import errno
import mmap
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.actors.allocator import Allocator
from penstock.actors.allocator.recycled_segments import HELD_MS, STEP_BYTES
from penstock.chaos.machine.processes import descriptors
from penstock.shared.files import disk_space
from penstock.shared.files.durable import EXPIRED, WRITE_BYTES, expired_segments, set_aside
from penstock.shared.layout import segment_name

SEGMENT_BYTES = 3 << 20


class Store:
    """A store whose first segment has expired, and whose allocator makes the next ones."""

    def __init__(self, broker: Any, work: Callable[..., None]) -> None:
        self.broker = broker
        self.positions = broker.positions
        self.allocator = broker.start(Allocator)
        self._work = work
        work(self.allocator)
        self.path = broker.paths.commit_log / segment_name(0)
        self.path.write_bytes(b"\xda" * SEGMENT_BYTES)
        self.file = self.path.stat().st_ino

    def expire(self) -> Path:
        """The cleaner sets the first segment aside; where it is then."""
        set_aside(self.path, self.broker.paths.staging)
        (found,) = expired_segments(self.broker.paths.staging)
        return found

    def work(self) -> None:
        self._work(self.allocator)

    def next_segment(self) -> Path:
        """The writer wants one more."""
        base = self.positions["allocated"]
        self.positions.initialise("append_wanted", base + SEGMENT_BYTES)
        self.work()
        assert self.positions["allocated"] == base + SEGMENT_BYTES
        found: Path = self.broker.paths.commit_log / segment_name(base)
        return found


@pytest.fixture
def store(pipeline: Callable[..., Any], work: Callable[..., None]) -> Callable[..., Store]:
    def make(**settings: Any) -> Store:
        return Store(pipeline(mapped_file_size_commit_log_bytes=SEGMENT_BYTES, **settings), work)

    return make


def test_an_expired_segment_is_the_next_one_and_has_nothing_of_its_earlier_life(
    store: Callable[..., Store],
) -> None:
    it = store()
    it.expire()
    it.work()
    after = it.next_segment()
    assert after.stat().st_ino == it.file
    assert after.read_bytes() == bytes(SEGMENT_BYTES)
    assert it.positions["recycled_segments"] == 1
    assert expired_segments(it.broker.paths.staging) == []


def test_what_is_filled_or_gone_is_closed(store: Callable[..., Store]) -> None:
    """Room on the disk is free again when the last who has a deleted file open closes it."""
    it = store()
    path = it.expire()
    it.allocator.work()
    assert _opened_here() == 1, "it is filled in steps"
    it.work()
    assert _opened_here() == 0
    assert it.next_segment().stat().st_ino == it.file
    assert not path.exists()


def _opened_here() -> int:
    """How many expired segments this process has open."""
    return sum(count for name, count in descriptors().items() if EXPIRED in name)


def test_without_one_the_next_segment_is_a_new_file(store: Callable[..., Store]) -> None:
    it = store()
    it.work()
    assert it.next_segment().stat().st_ino != it.file
    assert it.positions["recycled_segments"] == 0


def test_one_that_is_not_filled_yet_keeps_the_writer_not_waiting(
    store: Callable[..., Store],
) -> None:
    it = store()
    it.expire()
    assert it.allocator.work() == 1, "a part of it"
    base = it.positions["allocated"]
    it.positions.initialise("append_wanted", base + SEGMENT_BYTES)
    assert it.allocator.work() == 1
    assert it.positions["allocated"] == base + SEGMENT_BYTES
    assert it.positions["recycled_segments"] == 0
    it.work()
    assert it.next_segment().stat().st_ino == it.file


@contextmanager
def _opened(path: Path) -> Iterator[Callable[[], bytes]]:
    with path.open("rb") as file:
        yield lambda: os.pread(file.fileno(), SEGMENT_BYTES, 0)


@contextmanager
def _mapped(path: Path) -> Iterator[Callable[[], bytes]]:
    with path.open("rb") as file:
        view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    yield lambda: view[:]
    view.close()


@contextmanager
def _linked(path: Path) -> Iterator[Callable[[], bytes]]:
    snapshot = path.parent.parent / "snapshot"
    snapshot.hardlink_to(path)
    yield snapshot.read_bytes


HOLDERS = pytest.mark.parametrize("hold", [_opened, _mapped, _linked])


@HOLDERS
def test_whoever_has_the_file_keeps_what_he_has_and_it_is_deleted_in_the_end(
    store: Callable[..., Store], hold: Callable[..., Any]
) -> None:
    it = store()
    it.broker.clock.advance(HELD_MS)
    with hold(it.path) as content:
        path = it.expire()
        it.work()
        it.broker.clock.advance(HELD_MS - 1)
        it.work()
        assert path.exists() and content() == b"\xda" * SEGMENT_BYTES
        it.broker.clock.advance(1)
        it.work()
        assert not path.exists() and content() == b"\xda" * SEGMENT_BYTES
        assert it.next_segment().stat().st_ino != it.file


@HOLDERS
def test_who_lets_go_in_time_keeps_nobody_from_using_it(
    store: Callable[..., Store], hold: Callable[..., Any]
) -> None:
    it = store()
    with hold(it.path):
        it.expire()
        it.work()
    (it.path.parent.parent / "snapshot").unlink(missing_ok=True)
    it.work()
    assert it.next_segment().stat().st_ino == it.file


def test_a_file_of_another_length_and_a_link_are_deleted_and_what_it_names_is_not(
    store: Callable[..., Store], tmp_path: Path
) -> None:
    it = store()
    short = it.expire()
    os.truncate(short, SEGMENT_BYTES - 1)
    other = tmp_path / "other"
    other.write_bytes(bytes([1]) * SEGMENT_BYTES)
    link = short.with_name(short.name + "1")
    link.symlink_to(other)
    it.work()
    assert short.exists() and not link.is_symlink()
    it.broker.clock.advance(HELD_MS)
    it.work()
    assert not short.exists()
    assert other.read_bytes() == bytes([1]) * SEGMENT_BYTES


@pytest.mark.parametrize("is_filled", [True, False])
def test_they_go_where_the_disk_has_no_room_for_another_segment(
    store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, is_filled: bool
) -> None:
    it = store()
    path = it.expire()
    if is_filled:
        it.work()
    else:
        it.allocator.work()
    assert path.exists()
    monkeypatch.setattr(disk_space, "_used_and_size", lambda path: (99, 100))
    it.allocator.work()
    assert not path.exists(), "at once, and not when it is filled"


def test_one_is_no_next_segment_where_the_disk_has_no_room_for_what_comes_with_it(
    store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues and index grow, too; what it takes is free for them then."""
    it = store()
    path = it.expire()
    it.work()
    assert path.exists()
    before = it.positions["allocated"]
    monkeypatch.setattr(disk_space, "_used_and_size", lambda path: (99, 100))
    it.positions.initialise("append_wanted", before + SEGMENT_BYTES)
    it.work()
    assert not path.exists()
    assert it.positions["allocate_error"] == errno.ENOSPC
    assert (it.positions["allocated"], it.positions["recycled_segments"]) == (before, 0)


def test_one_that_the_disk_does_not_take_zeros_for_is_deleted_and_told(
    store: Callable[..., Store], capsys: pytest.CaptureFixture[str]
) -> None:
    it = store()
    path = it.expire()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SEGMENT_BYTES // 2, before[1]))
    try:
        it.work()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not path.exists()
    assert "an expired segment is not used again: [Errno 27]" in capsys.readouterr().err
    it.next_segment()
    assert it.positions["recycled_segments"] == 0


def test_it_is_written_to_when_its_name_is_durably_gone_and_has_the_next_when_it_is_zeros(
    store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power failure would leave a segment without its messages, or with those of another."""
    it = store()
    steps: list[tuple[str, str]] = []

    def note(name: str, label: Callable[[Any], str]) -> None:
        real = getattr(os, name)

        def called(first: Any, *more: Any) -> Any:
            steps.append((name, label(first)))
            return real(first, *more)

        monkeypatch.setattr(os, name, called)

    def of(handle: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{handle}")).name

    it.expire()
    for name, label in (
        ("fsync", of),
        ("fdatasync", of),
        ("pwrite", of),
        ("rename", lambda path: path.name),
    ):
        note(name, label)
    it.work()
    it.next_segment()
    expired, log = EXPIRED + segment_name(0), "commitlog"
    zeros = [("pwrite", expired)] * (SEGMENT_BYTES // min(STEP_BYTES, WRITE_BYTES))
    assert steps == [
        ("fsync", log),
        *zeros,
        ("fdatasync", expired),
        ("rename", expired),
        ("fsync", log),
    ]


@pytest.mark.parametrize("is_filled", [False, True])
def test_one_that_somebody_has_deleted_is_not_missed(
    store: Callable[..., Store], is_filled: bool
) -> None:
    it = store()
    path = it.expire()
    if is_filled:
        it.work()
    else:
        it.allocator.work()
    path.unlink()
    assert it.next_segment().read_bytes() == bytes(SEGMENT_BYTES)
    assert it.positions["allocate_error"] == 0


def test_none_outlives_its_allocator(store: Callable[..., Store]) -> None:
    it = store()
    path = it.expire()
    it.allocator.work()
    it.broker.crash(it.allocator)
    assert path.exists()
    again = it.broker.start(Allocator)
    assert not path.exists(), "nobody knows how far it was filled"
    it.path.write_bytes(b"\xda" * SEGMENT_BYTES)
    path = it.expire()
    again.work()
    it.broker.stop(again)
    assert not path.exists()


def test_without_its_directory_there_is_nothing_to_use_again(store: Callable[..., Store]) -> None:
    it = store()
    it.broker.paths.staging.rmdir()
    it.work()
    assert it.positions["allocate_error"] == 0
