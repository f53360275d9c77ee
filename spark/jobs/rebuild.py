"""Makes consume queues and index again from the log, which is walked side by side.

    tasks    a part of the log each -> what its records say to queues and index, in a file
    driver   those files in log order -> queues and index, as a rebuild without Spark makes them

Reading, checksums and looking into records is what takes the time, and that is done in parts. What
needs the order of the log, slots of lost messages among it, is done by the one builder there is, so
the files are the same byte for byte. Workers read the store and write into its penstock/rebuild/.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from penstock.maintenance.rebuild import Rebuilt, rebuild_store
from penstock.shared.clock import SystemClock
from penstock.shared.config import Config
from penstock.shared.formats.delay_levels import parse_delay_levels
from penstock.shared.formats.index_chains import Entries
from penstock.shared.layout import StorePaths
from penstock.shared.loops.active import QueueNumbers
from penstock.shared.loops.forms import ROW
from penstock.shared.recovery.build_index import index_entries
from penstock.shared.recovery.build_queues import LogRun, log_runs
from penstock.shared.store.directory import StoreDirectory
from penstock.spark.cuts import PART_BYTES, costs_of, cuts_of
from penstock.spark.jobs.parts import Progress, run_parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROW = np.dtype([("number", "=i4"), ("rest", f"V{ROW.size - 4}")])


class _Task(msgspec.Struct, frozen=True):
    """A stretch of the log, up to its end where `stop` is None, and the file for what it says."""

    store: str
    file: str
    levels_ms: tuple[int, ...]
    start: int
    stop: int | None
    queues: bool
    index: bool


class _Run(msgspec.Struct, array_like=True):
    start: int
    stop: int
    records: int
    rows: bytes
    is_damage: bool


class _Part(msgspec.Struct):
    """What a task writes. Rows have the numbers of `names`; `keys` are the arrays of Entries."""

    names: list[tuple[bytes, int]]
    runs: list[_Run]
    keys: list[tuple[bytes, bytes, bytes]]


def rebuild_on(
    spark: SparkSession,
    paths: StorePaths,
    config: Config,
    *,
    queues: bool = True,
    index: bool = True,
    part_bytes: int = PART_BYTES,
    progress: Progress | None = None,
) -> Rebuilt:
    """Rebuild; durable on return. The caller holds the store's lock. `progress` is told of the log
    three times: as it is walked, for queues, for the index. For the rest, and what is raised, see
    `rebuild_store`."""

    def walk(store: StoreDirectory, directory: Path) -> _WalkedLog:
        return _WalkedLog(
            spark, store, directory / "parts", config, (queues, index), part_bytes, progress
        )

    return rebuild_store(
        paths, config, SystemClock(), queues=queues, index=index, progress=progress, walk=walk
    )


class _WalkedLog:
    """The log, walked by tasks when this is made."""

    def __init__(
        self,
        spark: SparkSession,
        store: StoreDirectory,
        directory: Path,
        config: Config,
        wanted: tuple[bool, bool],
        part_bytes: int,
        progress: Progress | None,
    ) -> None:
        directory.mkdir()
        root, levels_ms = (
            str(store.paths.root.absolute()),
            parse_delay_levels(config.message_delay_level),
        )
        cuts = list(cuts_of(store, part_bytes))
        self._tasks = [
            _Task(root, str(directory.absolute() / str(at)), levels_ms, start, stop, *wanted)
            for at, (start, stop) in enumerate(zip(cuts, [*cuts[1:], None], strict=True))
        ]
        encoded = [msgspec.msgpack.encode(task) for task in self._tasks]
        ends = [
            int.from_bytes(raw)
            for raw in run_parts(spark, _work, encoded, costs_of(store, cuts), progress)
        ]
        self._mend(ends)

    def _mend(self, ends: list[int]) -> None:
        """A part that ends after the next one begins is walked again, as one with it."""
        for at in range(len(ends) - 1):
            task, following = self._tasks[at], self._tasks[at + 1]
            if ends[at] > following.start:
                Path(task.file).unlink()
                joined = msgspec.structs.replace(following, start=task.start)
                ends[at + 1] = int.from_bytes(_work(msgspec.msgpack.encode(joined)))
                self._tasks[at + 1] = joined

    def _parts(self) -> Iterator[_Part]:
        for task in self._tasks:
            if (file := Path(task.file)).exists():
                yield msgspec.msgpack.decode(file.read_bytes(), type=_Part)

    def runs(self, numbers: QueueNumbers) -> Iterator[LogRun]:
        for part in self._parts():
            own = np.array([numbers.number(*name) for name in part.names], np.int32)
            for run in part.runs:
                rows = np.frombuffer(run.rows, _ROW).copy()
                rows["number"] = own[rows["number"]]
                yield LogRun(run.start, run.stop, run.records, rows.tobytes(), run.is_damage)

    def keys(self) -> Iterator[Entries]:
        for part in self._parts():
            for arrays in part.keys:
                yield Entries(*(np.frombuffer(each, np.int64) for each in arrays))


def _work(raw: bytes) -> bytes:
    """One task, in a worker; where the last record ends that began in it."""
    task = msgspec.msgpack.decode(raw, type=_Task)
    numbers = QueueNumbers()
    part = _Part([], [], [])
    keys: list[Entries] = []
    end, is_damaged = task.start, False
    with StoreDirectory(task.store) as store:
        runs = log_runs(store, numbers, task.levels_ms, task.start, task.stop, task.index)
        for run in runs:
            end = run.stop if run.records else end
            is_damaged |= run.is_damage
            if task.queues:
                part.runs.append(_Run(*run[:5]))
            if run.keys is not None:
                keys.append(run.keys)
        if is_damaged and task.index:
            # a record whose body is damaged has its keys all the same
            keys = list(index_entries(store, task.start, task.stop))
    part.names = list(numbers.names)
    part.keys = [(e.hashes.tobytes(), e.offsets.tobytes(), e.stored_ms.tobytes()) for e in keys]
    # whole or not at all: Spark may run a task twice
    written = Path(f"{task.file}.{uuid.uuid4().hex}")
    written.write_bytes(msgspec.msgpack.encode(part))
    written.replace(task.file)
    return end.to_bytes(8)
