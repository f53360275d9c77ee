"""The log walked in parts, for a rebuild: what its records tell the queues and the index.

    parts    a stretch of the log each -> what its records tell, in a file
    then     those files in log order  -> one builder of queues, one of the index

Most of the time goes into reading, checksums and decoding records. That is done in parts, by
whatever provides processes: this machine (side_by_side.py), or Spark. What needs the order of the
log, such as slots of lost messages, is done by the single builder, so the files are the same byte
for byte, however the log was cut.
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

# Runs the work: takes the work, the parts, the cost of each, and the progress function.
RunParts = Callable[[Work, Sequence[bytes], Sequence[int], Progress | None], list[bytes]]

_ROW = np.dtype([("number", "=i4"), ("rest", f"V{ROW.size - 4}")])


class _Task(msgspec.Struct, frozen=True):
    """A stretch of the log, up to its end if `stop` is None, and the file for its result."""

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
    """The log; tasks walk it when this is made."""

    def __init__(
        self,
        store: StoreDirectory,
        config: Config,
        parts: tuple[Path, int, tuple[bool, bool]],
        run: RunParts,
        progress: Progress | None,
    ) -> None:
        """`parts` is the directory for results, which is made here; about how long parts are, in
        bytes; and whether queues, and the index, are wanted."""
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
        """If a part ends after the next one begins, walk both again as one."""
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
        """What the records tell queues, numbered by `numbers`, in log order."""
        for part in self._parts():
            own = np.array([numbers.number(*name) for name in part.names], np.int32)
            for run in part.runs:
                rows = np.frombuffer(run.rows, _ROW).copy()
                rows["number"] = own[rows["number"]]
                yield LogRun(run.start, run.stop, run.records, rows.tobytes(), run.is_damage)

    def keys(self) -> Iterator[Entries]:
        """What the records tell the index."""
        for part in self._parts():
            for arrays in part.keys:
                yield Entries(*(np.frombuffer(each, np.int64) for each in arrays))


def walk_part(raw: bytes) -> bytes:
    """One task, perhaps in another process. Returns where the last record ends that began in it."""
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
            # a record with a damaged body still has its keys
            keys = list(index_entries(store, task.start, task.stop))
    part.names = list(numbers.names)
    part.keys = [(e.hashes.tobytes(), e.offsets.tobytes(), e.stored_ms.tobytes()) for e in keys]
    # whole or not at all: a task may run twice at once, even on another machine of a cluster
    written = Path(f"{task.file}.{socket.gethostname()}.{os.getpid()}")
    written.write_bytes(msgspec.msgpack.encode(part))
    written.replace(task.file)
    return end.to_bytes(8)
