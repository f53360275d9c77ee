"""What a reader of the log keeps mapped: no more than a limit, and nothing while it rests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.shared.config import Config
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.log import reader as log_reader
from penstock.shared.log.reader import MOST_LOOKED_BYTES, REST_MS, LogReader
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.run_directory import Run

ConfigMaker = Callable[..., Config]
RunMaker = Callable[[Config], Run]
MIB = 1 << 20
# a fault maps up to 16 pages with the one that is read
FAULT_BYTES = 64 << 10


def _resident_bytes(path: Path) -> int:
    """How much of a mapped file counts as this process's memory."""
    resident, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            resident += int(line.split()[1]) * 1024
    return resident


def test_who_reads_without_a_rest_keeps_no_more_pages_than_the_limit(
    make_config: ConfigMaker, make_run: RunMaker
) -> None:
    segment_bytes = MOST_LOOKED_BYTES + (16 << 20)
    config = make_config(mapped_file_size_commit_log_bytes=segment_bytes)
    run = make_run(config)
    path = StorePaths(config.store).commit_log / segment_name(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(segment_bytes)
    positions = Positions(run.positions)
    log = LogReader(config, run, positions)
    for at in range(0, segment_bytes, 1 << 20):
        # what a consumer is sent, and what the reput walks
        for piece in (log.segment(0, 1 << 19)[at : at + (1 << 19)], log.view(at, at + (1 << 20))):
            assert not any(bytes(piece))
            piece.release()
        assert _resident_bytes(path) <= MOST_LOOKED_BYTES
    # the last megabytes, since what was looked at is counted from 0 when pages are given back
    assert _resident_bytes(path) >= 16 << 20
    log.close()
    positions.close()


def test_pages_are_given_back_after_a_rest_and_read_the_same_again(
    make_config: ConfigMaker, make_run: RunMaker
) -> None:
    config = make_config(mapped_file_size_commit_log_bytes=1 << 20)
    run = make_run(config)
    path = StorePaths(config.store).commit_log / segment_name(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(range(256)) * 4096)
    positions = Positions(run.positions)
    log = LogReader(config, run, positions)
    assert not log.rest(1) and not log.rest(2 + REST_MS), "nothing was looked at"
    view = log.view(0, 1 << 20)
    before = bytes(view)
    assert _resident_bytes(path) == 1 << 20
    assert not log.rest(1000)
    assert not log.rest(1000 + REST_MS)
    assert _resident_bytes(path) == 1 << 20
    assert log.rest(1001 + REST_MS), "just now"
    assert not log.rest(9000 + 9 * REST_MS), "and not once more"
    assert _resident_bytes(path) == 0
    assert bytes(view) == before
    view.release()
    log.close()
    positions.close()


@pytest.fixture
def three_mib(
    make_config: ConfigMaker, make_run: RunMaker, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[LogReader, Path]]:
    """A log of one segment, of which a reader keeps at most 2 MiB, and the segment's file."""
    monkeypatch.setattr(log_reader, "MOST_LOOKED_BYTES", 2 * MIB)
    config = make_config(
        mapped_file_size_commit_log_bytes=3 * MIB, transient_store_pool_enable=False
    )
    run = make_run(config)
    path = StorePaths(config.store).commit_log / segment_name(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(3 * MIB))
    positions = Positions(run.positions)
    log = LogReader(config, run, positions)
    yield log, path
    log.close()
    positions.close()


@pytest.mark.parametrize("sizes", [(3, 3), (4, 4, 3), (6, 1, 5), (1, 7, 1, 3), (3, 6, 3), (8, 4)])
def test_no_look_however_large_goes_beyond_the_limit(
    three_mib: tuple[LogReader, Path], sizes: tuple[int, ...]
) -> None:
    """Sizes in quarters of a MiB."""
    (log, path), at, kept = three_mib, 0, 0
    for size in (quarters * MIB // 4 for quarters in sizes):
        assert not any(bytes(log.view(at, at + size)))
        at, kept = at + size, size if kept + size > 2 * MIB else kept + size
        assert kept <= _resident_bytes(path) <= kept + 2 * FAULT_BYTES


def test_a_rest_begins_when_the_last_look_is_over(three_mib: tuple[LogReader, Path]) -> None:
    log, _ = three_mib
    log.view(0, 100)
    assert not log.rest(1000)
    log.view(0, 100)
    assert not log.rest(1500), "a pause between two looks is not part of it"
    assert not log.rest(1500 + REST_MS)
    assert log.rest(1501 + REST_MS)


def test_a_reader_that_is_closed_has_no_segment_open(three_mib: tuple[LogReader, Path]) -> None:
    log, path = three_mib
    log.view(0, 100).release()
    assert str(path) in _open_files()
    log.close()
    assert str(path) not in _open_files()


def _open_files() -> set[str]:
    return {os.readlink(each.path) for each in os.scandir("/proc/self/fd")}
