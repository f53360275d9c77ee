"""Expired segments that others open, that cannot be deleted, or that are there when it stops."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.actors.allocator import Allocator, recycled_segments
from penstock.shared.files.durable import expired_segments, set_aside
from penstock.shared.layout import segment_name
from penstock.shared.process.retry import RETRY_MS

SEGMENT_BYTES = 3 << 20


@pytest.fixture
def broker(pipeline: Callable[..., Any]) -> Any:
    return pipeline(mapped_file_size_commit_log_bytes=SEGMENT_BYTES)


def _expire(broker: Any, base: int = 0, size: int = SEGMENT_BYTES) -> Path:
    """A segment that the cleaner sets aside; where it is then."""
    path = broker.paths.commit_log / segment_name(base)
    path.write_bytes(b"\xda" * size)
    before = set(expired_segments(broker.paths.staging))
    set_aside(path, broker.paths.staging)
    (found,) = set(expired_segments(broker.paths.staging)) - before
    return found


def test_who_opens_one_that_is_being_filled_waits_for_nobody(
    broker: Any, work: Callable[..., None]
) -> None:
    """A lease that stayed would hold up an opener for 45 s."""
    it = broker.start(Allocator)
    work(it)
    path = _expire(broker)
    assert it.work() == 1
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        assert file.read(1) == b"\0"


def test_what_is_filled_goes_to_the_disk_bit_by_bit(
    broker: Any, work: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync of all of it would hold up the log's."""
    monkeypatch.setattr(recycled_segments, "SYNC_BYTES", 2 << 20)
    it, sync, synced = broker.start(Allocator), os.fdatasync, list[int]()
    work(it)
    path = _expire(broker)

    def note(handle: int) -> None:
        synced.append(os.lseek(handle, 0, os.SEEK_END))
        sync(handle)

    monkeypatch.setattr(os, "fdatasync", note)
    work(it)
    assert path.exists() and synced == [SEGMENT_BYTES] * 2, "after 2 MiB, and after 3"


def test_of_two_the_other_is_taken_where_somebody_has_deleted_one(
    broker: Any, work: Callable[..., None]
) -> None:
    it = broker.start(Allocator)
    work(it)
    files = [_expire(broker, base) for base in (5 * SEGMENT_BYTES, 6 * SEGMENT_BYTES)]
    work(it)
    inodes = {path: path.stat().st_ino for path in files}
    assert it._recycled._filled == files or it._recycled._filled == files[::-1]
    it._recycled._filled[-1].unlink()
    (left,) = (path for path in files if path.exists())
    base = broker.positions["allocated"]
    broker.positions.initialise("append_wanted", base + SEGMENT_BYTES)
    work(it)
    made = broker.paths.commit_log / segment_name(base)
    assert made.stat().st_ino == inodes[left]
    assert broker.positions["recycled_segments"] == 1


def test_one_that_came_just_before_a_stop_goes_with_the_others(broker: Any) -> None:
    it = broker.start(Allocator)
    path = _expire(broker)
    it.close()
    assert not path.exists()


def test_one_that_cannot_be_deleted_stays_and_that_is_said_once(
    broker: Any,
    work: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    it, unlink = broker.start(Allocator), os.unlink
    work(it)
    path = _expire(broker, size=SEGMENT_BYTES - 1)

    def refuse(name: Any, *words: Any, **others: Any) -> None:
        if str(name) == str(path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(name))
        unlink(name, *words, **others)

    monkeypatch.setattr(os, "unlink", refuse)
    for _ in range(6):
        work(it)
        broker.clock.advance(max(recycled_segments.HELD_MS, RETRY_MS))
    assert path.exists()
    assert capsys.readouterr().err.count("an expired segment stays") == 1
