"""The log walked in parts, for a rebuild: what its records say to queues and to the index.

    parts    a stretch of the log each -> what its records say, in a file
    then     those files in log order  -> one builder of queues, one of the index

Reading, checksums and looking into records is what takes the time, and that is done in parts, by
whoever has processes for them: this machine's (side_by_side.py), or Spark's. What needs the order
of the log, slots of lost messages among it, is done by the one builder there is, so the files are
the same byte for byte however the log was cut.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from penstock.maintenance.cuts import between, costs_of, cuts_of
from penstock.maintenance.side_by_side import Progress, Work
from penstock.shared.config import Config
from penstock.shared.formats.delay_levels import parse_delay_levels
from penstock.shared.formats.index_chains import Entries
from penstock.shared.loops.active import QueueNumbers
from penstock.shared.loops.forms import ROW
from penstock.shared.recovery.build_index import index_entries
from penstock.shared.recovery.build_queues import LogRun, log_runs
from penstock.shared.store.directory import StoreDirectory

# Does the parts: of the work, the parts, what each costs, and where to tell how far it is.
RunParts = Callable[[Work, Sequence[bytes], Sequence[int], Progress | None], list[bytes]]

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


class WalkedLog:
    """The log, walked by tasks when this is made."""

    def __init__(
        self,
        store: StoreDirectory,
        config: Config,
        parts: tuple[Path, int, tuple[bool, bool]],
        run: RunParts,
        progress: Progress | None,
    ) -> None:
        """`parts` is where what they say is written, in a directory that is made, how long they
        are, about, in bytes, and whether they are asked for queues and for the index."""
        directory, part_bytes, wanted = parts
        directory.mkdir()
        root, at = str(store.paths.root.absolute()), directory.absolute()
        levels_ms = parse_delay_levels(config.message_delay_level)
        cuts = list(cuts_of(store, part_bytes))
        self._tasks = [
            _Task(root, str(at / str(number)), levels_ms, start, stop, *wanted)
            for number, (start, stop) in enumerate(between(cuts))
        ]
        encoded = [msgspec.msgpack.encode(task) for task in self._tasks]
        results = run(walk_part, encoded, costs_of(store, cuts), progress)
        self._mend([int.from_bytes(raw) for raw in results])

    def _mend(self, ends: list[int]) -> None:
        """A part that ends after the next one begins is walked again, as one with it."""
        for at in range(len(ends) - 1):
            task, following = self._tasks[at], self._tasks[at + 1]
            if ends[at] > following.start:
                Path(task.file).unlink()
                joined = msgspec.structs.replace(following, start=task.start)
                ends[at + 1] = int.from_bytes(walk_part(msgspec.msgpack.encode(joined)))
                self._tasks[at + 1] = joined

    def _parts(self) -> Iterator[_Part]:
        for task in self._tasks:
            if (file := Path(task.file)).exists():
                yield msgspec.msgpack.decode(file.read_bytes(), type=_Part)

    def runs(self, numbers: QueueNumbers) -> Iterator[LogRun]:
        """What the records say to queues, which have these numbers; in the order of the log."""
        for part in self._parts():
            own = np.array([numbers.number(*name) for name in part.names], np.int32)
            for run in part.runs:
                rows = np.frombuffer(run.rows, _ROW).copy()
                rows["number"] = own[rows["number"]]
                yield LogRun(run.start, run.stop, run.records, rows.tobytes(), run.is_damage)

    def keys(self) -> Iterator[Entries]:
        """What they say to the index."""
        for part in self._parts():
            for arrays in part.keys:
                yield Entries(*(np.frombuffer(each, np.int64) for each in arrays))


def walk_part(raw: bytes) -> bytes:
    """One task, in a process of its own perhaps; where the last record ends that began in it."""
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
    # whole or not at all: a task may be tried twice, at once, and by another machine of a cluster
    written = Path(f"{task.file}.{socket.gethostname()}.{os.getpid()}")
    written.write_bytes(msgspec.msgpack.encode(part))
    written.replace(task.file)
    return end.to_bytes(8)
