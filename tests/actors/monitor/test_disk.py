"""How much room a disk has, for how long, and what a store takes of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.actors.monitor import disk
from penstock.actors.monitor.disk import Room, full_in_s, room_of
from penstock.actors.monitor.history import History
from penstock.actors.monitor.reading import Reading
from penstock.shared.layout import CQ_ENTRY_BYTES
from penstock.shared.memory.queue_table import QueueKey, QueueTable

YEARS_S = 10 * 365 * 86_400


def test_the_room_of_a_disk_is_what_an_ordinary_user_has(tmp_path: Path) -> None:
    """A size that is not true has the day on which the disk refuses messages come unannounced."""
    while True:
        before, found, after = (
            shutil.disk_usage(tmp_path),
            room_of(tmp_path),
            shutil.disk_usage(tmp_path),
        )
        if before == after:  # nobody has written meanwhile
            break
    assert found == Room(before.used + before.free, before.free)


@pytest.mark.parametrize(
    ("allocated", "wrote", "bytes_per_s", "seconds"),
    [
        (700, 700, 10, 15.0),  # 250 are free, of which the disk keeps 100
        (700, 650, 10, 20.0),  # the last segment has room for 50 more
        (700, 900, 10, 15.0),  # the next segment is not made yet
        (700, 700, 0, None),
        (700, 700, 1e-9, None),  # in 4,000 years
        (YEARS_S - 150, 0, 1, None),
        (YEARS_S - 151, 0, 1, YEARS_S - 1),
    ],
)
def test_it_is_full_when_what_is_free_and_what_is_allocated_ahead_are_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    allocated: int,
    wrote: int,
    bytes_per_s: float,
    seconds: float | None,
) -> None:
    monkeypatch.setattr(disk, "room_of", lambda path: Room(1000, 250))
    reading = SimpleNamespace(
        paths=SimpleNamespace(commit_log=tmp_path),
        positions={"allocated": allocated, "wrote": wrote},
        config=SimpleNamespace(disk_space_warning_level_ratio_percent=90),
    )
    history = SimpleNamespace(bytes_per_s=lambda: bytes_per_s)
    assert full_in_s(cast(Any, reading), cast(Any, history)) == seconds


def test_nothing_is_left_where_more_is_used_than_the_disk_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "room_of", lambda path: Room(1000, 50))
    reading = SimpleNamespace(
        paths=SimpleNamespace(commit_log=tmp_path),
        positions={"allocated": 700, "wrote": 690},
        config=SimpleNamespace(disk_space_warning_level_ratio_percent=90),
    )
    assert full_in_s(cast(Any, reading), cast(Any, SimpleNamespace(bytes_per_s=lambda: 1.0))) == 0


@pytest.fixture
def reading(pipeline: Callable[..., Any]) -> Iterator[Reading]:
    broker = pipeline()
    found = Reading(broker.config, broker.run, broker.positions, broker.clock)
    yield found
    found.close()


def test_files_are_those_that_there_are_and_queues_those_that_the_table_says(
    pipeline: Callable[..., Any],
) -> None:
    broker = pipeline()
    entries = broker.config.mapped_file_size_consume_queue_bytes // CQ_ENTRY_BYTES
    table = QueueTable(broker.run.queues, writable=True)
    ranges = [
        (0, 0, 0),
        (0, 1, 1),
        (0, entries, 1),
        (0, entries + 1, 2),
        (entries - 1, entries + 1, 2),
        (entries, entries + 1, 1),
        (2 * entries, 5 * entries, 3),
    ]
    for slot, (low, high, _) in enumerate(ranges):
        table.add(slot, QueueKey("orders", slot), low, high)
    table.close()
    broker.positions.initialise("queue_count", len(ranges))
    broker.allocate(2)
    broker.paths.index.mkdir()
    (broker.paths.index / "20260101000000000").write_bytes(bytes(7))
    (broker.paths.index / "no file").mkdir()
    reading = Reading(broker.config, broker.run, broker.positions, broker.clock)
    found, count = disk.disk(reading, History())["files"], sum(files for *_, files in ranges)
    assert found == {
        "commitlog": {
            "files": 2, "bytes": 2 * broker.config.mapped_file_size_commit_log_bytes
        },
        "consumequeue": {
            "files": count, "bytes": count * broker.config.mapped_file_size_consume_queue_bytes
        },
        "index": {"files": 1, "bytes": 7},
    }  # fmt: skip
    shutil.rmtree(broker.paths.index)
    assert disk.disk(reading, History())["files"]["index"] == {"files": 0, "bytes": 0}
    reading.close()


def test_what_cannot_be_looked_at_is_unknown(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading.paths.index.write_bytes(b"no directory")
    reading.paths.deletions.write_bytes(b"{")
    monkeypatch.setattr(disk, "room_of", lambda path: None)
    found = disk.disk(reading, History())
    assert found["files"]["index"] is found["deletions"] is found["disk"] is None
    assert found["disk_used_percent"] is found["disk_full_percent"] is found["full_in_s"] is None


def test_how_full_a_full_disk_is_and_what_it_has(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"disk_full": 93, "disk_used": 94, "log_start": 5, "wrote": 9}.items():
        reading.positions.initialise(name, value)
    monkeypatch.setattr(disk, "room_of", lambda path: Room(1000, 250))
    found = disk.disk(reading, History())
    assert (found["disk_full_percent"], found["disk_used_percent"]) == (93, 93)
    assert found["disk"] == {"size": 1000, "free": 250} and found["log"] == {"start": 5, "end": 9}
    assert found["bytes_per_s"] is found["full_in_s"] is None and found["deletions"] == []
