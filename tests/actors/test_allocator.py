"""The allocator: segments are there before the writer needs them, whole, or their lack is told."""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable
from typing import Any

import pytest

from penstock.actors.allocator import RETRY_MS, Allocator
from penstock.shared.layout import segment_name

SEGMENT_BYTES = 64 << 10


def _segments(pipeline: Any) -> list[str]:
    return sorted(path.name for path in pipeline.paths.commit_log.iterdir())


def test_an_empty_log_gets_one_segment_and_a_used_one_the_next(
    pipeline: Callable[..., Any], work: Callable[..., None], bells: Callable[..., int]
) -> None:
    broker = pipeline()
    writer = broker.stage("writer")
    allocator = broker.start(Allocator)
    work(allocator)
    assert _segments(broker) == [segment_name(0)]
    assert broker.positions["allocated"] == SEGMENT_BYTES
    assert bells(writer) == 1
    broker.append()
    work(allocator)
    assert _segments(broker) == [segment_name(0), segment_name(SEGMENT_BYTES)]
    assert {path.stat().st_size for path in broker.paths.commit_log.iterdir()} == {SEGMENT_BYTES}


def test_segments_that_the_writer_asks_for_are_made_one_after_the_other(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline()
    broker.positions.initialise("append_wanted", 3 * SEGMENT_BYTES - 5)
    allocator = broker.start(Allocator)
    assert allocator.work() == 1
    assert broker.positions["allocated"] == SEGMENT_BYTES
    work(allocator)
    assert broker.positions["allocated"] == 3 * SEGMENT_BYTES


def test_a_segment_is_allocated_on_disk_and_not_a_hole(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    """A hole would become a SIGBUS in the writer when the disk is full."""
    broker = pipeline()
    work(broker.start(Allocator))
    path = broker.paths.commit_log / segment_name(0)
    assert path.stat().st_blocks * 512 >= SEGMENT_BYTES


def test_a_successor_goes_on_behind_what_is_there_and_removes_what_is_half_made(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline()
    first = broker.start(Allocator)
    work(first)
    broker.crash(first)
    half = broker.paths.half_made / f"commitlog-{segment_name(SEGMENT_BYTES)}-4711"
    half.write_bytes(b"half")
    other = broker.paths.half_made / f"0-{segment_name(0)}-4712"
    other.write_bytes(b"the reput's")
    broker.append()
    second = broker.start(Allocator)
    assert broker.positions["allocated"] == SEGMENT_BYTES
    work(second)
    assert broker.positions["allocated"] == 2 * SEGMENT_BYTES
    assert not half.exists() and other.exists()


def test_a_full_disk_is_told_and_tried_again_every_second(
    pipeline: Callable[..., Any], work: Callable[..., None]
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
    assert _segments(broker) == [] and list(broker.paths.half_made.iterdir()) == []
    broker.clock.advance(RETRY_MS - 1)
    work(allocator)
    assert broker.positions["allocated"] == 0
    broker.clock.advance(1)
    work(allocator)
    assert broker.positions["allocated"] == SEGMENT_BYTES
    assert broker.positions["allocate_error"] == 0


def test_a_stray_file_among_the_segments_is_named(pipeline: Callable[..., Any]) -> None:
    broker = pipeline()
    (broker.paths.commit_log / "notes.txt").write_text("mine")
    with pytest.raises(Exception, match="notes.txt"):
        broker.start(Allocator)
