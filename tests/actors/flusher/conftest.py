"""Queues of a store with their flusher's half, and what of their files and names is synced."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.actors.flusher.queue_sync import ConsumeQueueSync
from penstock.shared.config import Config
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.layout import StorePaths
from penstock.shared.loops.active import QueueNumbers
from penstock.shared.loops.forms import rows_of
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.queue_table import QueueKey, QueueTable
from penstock.shared.memory.run_directory import Run
from penstock.shared.queue.known_queues import make_known_queues
from penstock.shared.queue.windows import QueueWindows

ConfigMaker = Callable[..., Config]


def entry(number: int) -> bytes:
    return ENTRY.pack(number * 1000, 100 + number, -number)


def entries(start: int, stop: int) -> bytes:
    return b"".join(map(entry, range(start, stop)))


class Queues:
    """What the reput keeps, and the flusher's half."""

    def __init__(self, config: Config, run: Run) -> None:
        self.config, self.run = config, run
        self.paths = StorePaths(config.store)
        self.paths.staging.mkdir(parents=True, exist_ok=True)
        make_known_queues(self.paths.known_queues)
        self.numbers = QueueNumbers()
        self.windows = QueueWindows(self.paths, config, self.numbers)
        self.table = QueueTable(run.queues, writable=True)
        self.positions = Positions(run.positions, owner="supervisor")
        self.sync = self.flusher()

    def flusher(self) -> ConsumeQueueSync:
        return ConsumeQueueSync(self.paths, self.config, self.run, self.positions)

    def put(self, slot: int, start: int, stop: int, topic: str = "t") -> None:
        key = QueueKey(topic, slot)
        if slot == self.positions["queue_count"]:
            self.table.add(slot, key, start, start)
            self.positions.initialise("queue_count", slot + 1)
            self.numbers.number(topic.encode(), slot)
        rows = rows_of(slot, start, entries(start, stop))
        self.windows.put(rows)
        self.table.move_max_offsets(rows)

    def complete(self, least_pages: int) -> bool:
        """Run all steps; whether everything is on disk."""
        steps = self.sync.sync(least_pages)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return bool(end.value)

    def close(self) -> None:
        for each in (self.sync, self.windows, self.table, self.positions):
            each.close()


@pytest.fixture
def queues(make_config: ConfigMaker, make_run: Callable[[Config], Run]) -> Iterator[Queues]:
    config = make_config(mapped_file_size_consume_queue_bytes=8000)
    queues = Queues(config, make_run(config))
    yield queues
    queues.close()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the segments that were synced, shortened."""
    done: list[str] = []

    def note(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path.name != "queues":  # the list of names
            done.append(f"{path.parent.name}/{int(path.name)}")

    monkeypatch.setattr(os, "fdatasync", note)
    return done


@pytest.fixture
def directories(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the directories that were synced; files and the list of names are left out."""
    done: list[str] = []
    sync = os.fsync

    def note(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path.is_dir() and path.name != "penstock":
            done.append(path.name)
        sync(handle)

    monkeypatch.setattr(os, "fsync", note)
    return done
