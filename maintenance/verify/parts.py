"""A check in parts that are walked side by side, each in a process of its own.

    log, cut where records begin -> a walk for each part     \\
    index files                  -> their chains, one by one  >  joined in log order -> a report
    queues, checkpoint, groups   -> here                     /

Those that start the workers, `verify` and Spark's audit, pass `work` to them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec

from penstock.maintenance.cuts import between, cuts_of
from penstock.maintenance.verify.walk import (
    How,
    LogPart,
    Walk,
    checked_queues,
    walk_chains,
)
from penstock.shared.files.bad_sectors import read_at
from penstock.shared.files.durable import opened
from penstock.shared.formats.record_layout import BLANK
from penstock.shared.queue.deleted_topics import load_deleted_topics
from penstock.shared.store.directory import StoreDirectory

# The least log for one task; and the tasks for each worker, several so that all end together.
PART_BYTES, PARTS = 256 << 20, 4
_Walk = Callable[[int, int | None], LogPart]


class Task(msgspec.Struct, frozen=True):
    """A stretch of the log, up to its end if `stop` is None; or an index file, by its number."""

    store: str
    how: How
    start: int = 0
    stop: int | None = None
    index_file: int | None = None


def work(raw: bytes) -> bytes:
    """One Task in a worker. Returns a LogPart or an IndexPart."""
    task = msgspec.msgpack.decode(raw, type=Task)
    with StoreDirectory(task.store) as store:
        if task.index_file is not None:
            return msgspec.msgpack.encode(walk_chains(store, task.how, task.index_file))
        gone = load_deleted_topics(store.paths.deleted_topics).ends()
        queues = checked_queues(store, gone)
        part = Walk(store, task.how, queues, gone, task.start, task.stop).run()
        return msgspec.msgpack.encode(part)


def mended(walk: _Walk, tasks: Sequence[Task], parts: Iterable[LogPart]) -> Iterator[LogPart]:
    """The parts, without those that began inside a record whose body contains a copy of a record.

    What was cut there is walked again as one part.
    """
    begun: int | None = None
    for task, part in zip(tasks, parts, strict=True):
        joined = part if begun is None else walk(begun, task.stop)
        begun = joined.start if joined.overran else None
        if begun is None:
            yield joined


def tasks_of(
    store: StoreDirectory, root: str, how: How, index_files: int, part_bytes: int
) -> list[Task]:
    """The log, cut about every `part_bytes`; then the index files. No task at all if the log is too
    short to be cut."""
    cuts = [store.log_start]
    for cut in cuts_of(store, part_bytes):
        # the record that is found after a place may be nearer to the next place
        if cut - cuts[-1] >= part_bytes // 2 and _is_written(store, cut):
            cuts.append(cut)
    if len(cuts) < 2:
        return []
    tasks = [Task(root, how, start, stop) for start, stop in between(cuts)]
    return tasks + [Task(root, how, index_file=each) for each in range(index_files)]


def _is_written(store: StoreDirectory, position: int) -> bool:
    """Whether the segment was written: one made ahead is all zeros. It may also have expired."""
    segment = store.segment_of(position)
    with suppress(FileNotFoundError), opened(str(segment.path), os.O_RDONLY) as handle:
        return any(read_at(handle, BLANK.size, position - segment.base))
    return False
