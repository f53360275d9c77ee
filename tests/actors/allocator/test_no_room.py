"""Where the disk takes no segment: that is told, and tried again until it takes one."""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.actors.allocator import Allocator
from penstock.actors.allocator import actor as allocator
from penstock.shared.files import disk_space
from penstock.shared.process.doorbells import QUIET_TICK_MS, TICK_MS
from penstock.shared.process.retry import RETRY_MS

SEGMENT_BYTES = 64 << 10


def test_a_full_disk_is_told_and_tried_again_soon(
    pipeline: Callable[..., Any], work: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit on file sizes stands for the disk: the same call fails, and leaves the same."""
    broker = pipeline()
    allocator = broker.start(Allocator)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SEGMENT_BYTES // 2, before[1]))
    try:
        work(allocator)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert broker.positions["allocate_error"] == errno.EFBIG
    for place in (broker.paths.commit_log, broker.paths.staging):
        assert list(place.iterdir()) == []
    broker.clock.advance(RETRY_MS - 1)
    work(allocator)
    assert broker.positions["allocated"] == 0
    assert allocator.idle_ms() == TICK_MS, "nobody tells it of room"
    broker.clock.advance(1)
    publish, published = allocator._positions.publish, []

    def note(name: str, value: int) -> None:
        published.append(name)
        publish(name, value)

    monkeypatch.setattr(allocator._positions, "publish", note)
    work(allocator)
    assert broker.positions["allocated"] == SEGMENT_BYTES
    assert broker.positions["allocate_error"] == 0
    assert published == ["allocate_error", "allocated"], "behind that a successor has no work"
    assert allocator.idle_ms() == QUIET_TICK_MS


def test_another_reason_for_which_there_is_no_segment_is_told_too_and_each_of_them_once(
    pipeline: Callable[..., Any],
    work: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    broker = pipeline()
    it = broker.start(Allocator)
    make_file = allocator.make_file
    for number in (errno.EROFS, errno.EIO):

        def failing(*words: Any, number: int = number, **others: Any) -> None:
            raise OSError(number, f"error {number}")

        monkeypatch.setattr(allocator, "make_file", failing)
        for _ in range(3):
            work(it)
            assert broker.positions["allocate_error"] == number
            broker.clock.advance(RETRY_MS)
        said = capfd.readouterr().err
        assert said.count("there is no next segment") == said.count(f"error {number}") == 1
    monkeypatch.setattr(allocator, "make_file", make_file)
    work(it)
    assert broker.positions["allocate_error"] == 0


def test_where_its_messages_had_no_room_either_no_segment_is_even_begun(
    pipeline: Callable[..., Any],
    work: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A file system takes all it has before it says that this is not enough."""
    free = [SEGMENT_BYTES + SEGMENT_BYTES // 8 - 1]
    monkeypatch.setattr(disk_space, "_used_and_size", lambda path: (1 << 30, (1 << 30) + free[0]))
    begun: list[Path] = []
    make_file = allocator.make_file
    monkeypatch.setattr(
        allocator, "make_file", lambda *a, **k: begun.append(a[1]) or make_file(*a, **k)
    )
    broker = pipeline(message_index_enable=False)
    it = broker.start(Allocator)
    for _ in range(3):
        work(it)
        broker.clock.advance(RETRY_MS)
    assert begun == [] and broker.positions["allocated"] == 0
    assert broker.positions["allocate_error"] == errno.ENOSPC
    said = capfd.readouterr().err
    assert said.count("there is no next segment") == 1 and f"{free[0]} are free" in said
    free[0] += 1
    work(it)
    assert broker.positions["allocated"] == SEGMENT_BYTES
    assert broker.positions["allocate_error"] == 0
