"""The checkpoint: it never says that something is on disk which was not when it says so."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.shared.config import Config
from penstock.shared.files.mapped_file_queue import MappedFileQueue
from penstock.shared.formats.checkpoint import Checkpoint, encode_checkpoint
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_layout import AT_STORE_TIMESTAMP_V4
from penstock.shared.layout import segment_name
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.run_directory import Run
from penstock.shared.store.checkpoint_file import CheckpointKeeper, load_checkpoint, make_checkpoint


class Disk:
    """A log of equal records stored at 1000, 2000, ... ms, and the positions of those who work."""

    def __init__(self, config: Config, run: Run, make: Callable[..., Record], file: Path) -> None:
        directory = config.store / "commitlog"
        directory.mkdir(parents=True)
        raw = b""
        self.starts = []
        for number in range(1, 11):
            self.starts.append(len(raw))
            record = make(physical_offset=len(raw), store_timestamp_ms=number * 1000)
            raw += encode_record(record)
        self.starts.append(len(raw))
        (directory / segment_name(0)).write_bytes(raw.ljust(4096, b"\0"))
        self.positions = Positions(run.positions, owner="supervisor")
        self.segments = MappedFileQueue(directory, 4096)
        self.file = file
        make_checkpoint(file, Checkpoint())
        self.keeper = CheckpointKeeper(file, self.positions, self.segments, Checkpoint())

    def wrote(self, count: int) -> None:
        """The writer stored this many records: first `wrote`, then the time."""
        self.positions.initialise("wrote", self.starts[count])
        self.positions.initialise("wrote_timestamp", count * 1000)

    def flushed(self, count: int) -> None:
        self.positions.initialise("flushed", self.starts[count])

    def dispatched(self, count: int) -> None:
        self.positions.initialise("dispatched_record", self.starts[max(count - 1, 0)])
        self.positions.initialise("dispatched", self.starts[count])

    def written(self) -> Checkpoint:
        self.keeper.write()
        return load_checkpoint(self.file)


@pytest.fixture
def disk(
    make_config: Callable[..., Config],
    make_run: Callable[[Config], Run],
    make_record: Callable[..., Record],
    tmp_path: Path,
) -> Iterator[Disk]:
    config = make_config()
    disk = Disk(config, make_run(config), make_record, tmp_path / "checkpoint")
    yield disk
    disk.keeper.close()
    disk.segments.close()
    disk.positions.close()


def test_a_new_checkpoint_is_a_page_of_zeros(disk: Disk) -> None:
    assert disk.file.read_bytes() == bytes(4096)
    assert load_checkpoint(disk.file.with_name("none")) == Checkpoint()


def test_a_time_counts_once_all_records_of_it_are_flushed(disk: Disk) -> None:
    disk.wrote(3)
    disk.keeper.sample_log()
    assert disk.written().physic_timestamp_ms == 0
    disk.flushed(2)
    assert disk.written().physic_timestamp_ms == 0, "a record of that time may be missing"
    disk.flushed(3)
    assert disk.written().physic_timestamp_ms == 3000


def test_a_time_that_came_after_the_sample_does_not_count(disk: Disk) -> None:
    disk.wrote(3)
    disk.keeper.sample_log()
    disk.wrote(5)
    disk.flushed(3)
    assert disk.written().physic_timestamp_ms == 3000
    disk.flushed(5)
    assert disk.written().physic_timestamp_ms == 3000, "nobody has looked since"
    disk.keeper.sample_log()
    assert disk.written().physic_timestamp_ms == 5000


def test_a_sample_stays_until_it_is_flushed_however_often_one_looks(disk: Disk) -> None:
    """Under load the log is never flushed as far as it was written when one looks."""
    disk.wrote(2)
    for count in range(3, 10):
        disk.keeper.sample_log()
        disk.wrote(count)
        disk.flushed(count - 2)
    assert disk.written().physic_timestamp_ms >= 2000


@pytest.mark.parametrize("synced", [4, 1])  # or it is the log's first one
def test_the_confirmed_record_is_the_last_one_whose_entry_was_synced(
    disk: Disk, synced: int
) -> None:
    disk.wrote(6)
    disk.keeper.sample_log()
    disk.flushed(6)
    disk.dispatched(synced)
    disk.keeper.sample_queues()
    disk.dispatched(synced + 1)
    disk.keeper.queues_are_synced()
    found = disk.written()
    last = disk.starts[synced - 1]
    assert (found.confirm_offset, found.logics_timestamp_ms) == (last, synced * 1000)


def test_a_record_that_is_not_flushed_is_not_confirmed(disk: Disk) -> None:
    """With asynchronous flushing the queues may be ahead of the log's disk."""
    disk.wrote(4)
    disk.keeper.sample_log()
    disk.wrote(6)
    disk.flushed(3)
    disk.dispatched(4)
    disk.keeper.sample_queues()
    disk.keeper.queues_are_synced()
    assert disk.written() == Checkpoint() and not disk.keeper.log_has_followed()
    disk.flushed(4)
    assert disk.keeper.log_has_followed()
    assert disk.written().confirm_offset == disk.starts[3]


def test_a_record_is_not_confirmed_before_its_time_is(disk: Disk) -> None:
    """The next start believes a record only if it is no newer than the checkpoint's times."""
    disk.wrote(2)
    disk.keeper.sample_log()
    disk.wrote(6)
    disk.flushed(5)
    disk.dispatched(4)
    disk.keeper.sample_queues()
    disk.keeper.queues_are_synced()
    assert not disk.keeper.log_has_followed()
    assert disk.written().confirm_offset == 0
    disk.keeper.sample_log()
    disk.flushed(6)
    found = disk.written()
    assert found.confirm_offset == disk.starts[3]
    assert found.logics_timestamp_ms <= found.physic_timestamp_ms


def test_before_the_first_record_nothing_is_confirmed(disk: Disk) -> None:
    disk.keeper.sample_queues()
    disk.keeper.queues_are_synced()
    assert disk.written() == Checkpoint()


def test_a_successor_goes_on_with_what_its_predecessor_wrote(disk: Disk) -> None:
    before = Checkpoint(7, 8, 9, 10, 11)
    disk.file.write_bytes(encode_checkpoint(before))
    known = Checkpoint(6, 8, 9, 10, 11)
    keeper = CheckpointKeeper(disk.file, disk.positions, disk.segments, known)
    assert keeper.durable == known, "nobody knows whether the others were synced"
    keeper.write()
    assert keeper.durable == before
    assert load_checkpoint(disk.file) == before
    disk.wrote(3)
    disk.flushed(3)
    keeper.sample_log()
    keeper.write()
    keeper.close()
    after = load_checkpoint(disk.file)
    assert after == Checkpoint(3000, 8, 9, 10, 11), "words that are not ours are kept"


@pytest.mark.parametrize("length", [0, 39, 40, 4095, 4096, 5000])
def test_a_file_that_is_not_what_was_believed_becomes_a_whole_page(disk: Disk, length: int) -> None:
    raw = encode_checkpoint(Checkpoint(7, 8)).ljust(5000, b"\7")
    for believed in (Checkpoint(), Checkpoint(7, 8), Checkpoint(6, 8, 9)):
        disk.file.write_bytes(raw[:length])
        make_checkpoint(disk.file, believed)
        assert load_checkpoint(disk.file) == believed
        as_it_was = length >= 4096 and believed == Checkpoint(7, 8)
        assert disk.file.stat().st_size == (length if as_it_was else 4096)


def test_nothing_is_synced_when_nothing_has_changed(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    disk.keeper.write()
    assert len(synced) == 1, "its predecessor may not have come to it"
    disk.keeper.write()
    assert len(synced) == 1
    disk.wrote(1)
    disk.flushed(1)
    disk.keeper.sample_log()
    disk.keeper.write()
    disk.keeper.write()
    assert len(synced) == 2


def test_a_record_that_the_log_has_by_the_next_round_is_confirmed_though_that_one_s_is_not(
    disk: Disk,
) -> None:
    disk.wrote(4)
    disk.keeper.sample_log()
    disk.dispatched(4)
    disk.keeper.sample_queues()
    disk.keeper.queues_are_synced()
    disk.flushed(4)
    disk.dispatched(6)
    disk.keeper.sample_queues()
    disk.keeper.queues_are_synced()
    found = disk.written()
    assert (found.confirm_offset, found.logics_timestamp_ms) == (disk.starts[3], 4000)


def test_a_record_of_the_very_time_that_counts_is_not_confirmed_before_it_is_flushed(
    disk: Disk,
) -> None:
    (path,) = disk.segments.directory.iterdir()
    with path.open("r+b") as file:
        file.seek(disk.starts[3] + AT_STORE_TIMESTAMP_V4)
        file.write((3000).to_bytes(8, "big"))
    disk.wrote(3)
    disk.keeper.sample_log()
    disk.flushed(3)
    disk.dispatched(4)
    disk.keeper.sample_queues()
    disk.keeper.queues_are_synced()
    assert disk.written() == Checkpoint(3000)
    disk.flushed(4)
    assert disk.written().confirm_offset == disk.starts[3]


@pytest.mark.parametrize(("full_ms", "expected"), [([0], 0), ([5], 5), ([5, 4], 5), ([5, 6, 0], 6)])
def test_the_index_counts_up_to_the_latest_time_of_a_full_file(
    disk: Disk, full_ms: list[int], expected: int
) -> None:
    for each in full_ms:
        disk.keeper.index_is_synced(each)
    assert disk.written() == Checkpoint(index_timestamp_ms=expected)
    assert disk.keeper.durable == Checkpoint(index_timestamp_ms=expected)
