"""A store with its shared memory, for whatever reads its queues as a running broker does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.shared.config import Config
from penstock.shared.formats.record import Record, decode_record
from penstock.shared.layout import StorePaths
from penstock.shared.log.found_records import piece_of
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.queue_table import QueueKey, QueueTable
from penstock.shared.memory.run_directory import Run
from penstock.shared.queue.reader import QueueReader


class Store(NamedTuple):
    """A store with its shared memory, as the reader finds them."""

    reader: QueueReader
    table: QueueTable
    positions: Positions
    paths: StorePaths

    def count(self, slot: int, topic: str, queue_id: int, low: int, high: int) -> None:
        self.table.add(slot, QueueKey(topic, queue_id), low, high)
        self.positions.initialise("queue_count", slot + 1)

    def all(self, slot: int, start: int, max_bytes: int) -> list[tuple[int, bytes]]:
        """(queue offset, body) of everything from `start` on, pull by pull."""
        found = []
        while start < self.reader.range(slot)[1]:
            records, next_offset = self.reader.read(slot, start, max_bytes)
            assert next_offset > start
            raw = bytes(piece_of([records]))
            assert len(raw) == records.size
            at = 0
            while at < len(raw):
                record = decode_record(raw, at)
                found.append((record.queue_offset, record.body))
                at += record.total_size
            assert len(raw) <= max_bytes or at == decode_record(raw).total_size
            start = next_offset
        return found


@pytest.fixture
def open_store(
    store_builder: Callable[..., Path],
    make_config: Callable[..., Config],
    make_run: Callable[[Config], Run],
) -> Iterator[Callable[..., Store]]:
    opened = []

    def open_it(records: list[Record], **layout: object) -> Store:
        paths = StorePaths(store_builder(records, **layout))
        config = make_config()
        assert config.store == paths.root
        run = make_run(config)
        positions = Positions(run.positions, owner="supervisor")
        for name in ("wrote", "committed"):
            positions.initialise(name, 1 << 40)
        store = Store(
            QueueReader(config, run, positions), QueueTable(run.queues, True), positions, paths
        )
        opened.append(store)
        return store

    yield open_it
    for store in opened:
        for each in (store.reader, store.table, store.positions):
            each.close()
