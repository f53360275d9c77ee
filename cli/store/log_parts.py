"""Splits the log into parts for `store inspect`, and makes rows of the requested records in each.

    log, cut where records begin -> rows and damage of each part, by processes side by side
    Listing.parts()              -> those in log order, as one walk through the log finds them

Each part is walked by itself, from where a record begins, so only rows go from one process to
another. record_parts.py decides how a row looks, and listing.py where it goes.

The consume queue is only a shortcut to the first requested record; from there the log is walked. So
records that are not dispatched yet are found too, and those of a store without queues.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from penstock.cli.store.record_parts import Form, rows_of
from penstock.maintenance.cuts import parts_of
from penstock.maintenance.side_by_side import side_by_side
from penstock.shared.errors import PenstockError
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_outline import outline
from penstock.shared.log.scan import Run
from penstock.shared.store.directory import StoreDirectory

# The size of a part of the log: rows of three parts for each process wait for their turn.
PART_BYTES = 2 << 20
# This many parts are done here first: for fewer, starting other processes would take longer.
ALONE = 8
# The size of a read, which fits into the processor's cache, as the bytes are looked at twice.
WINDOW_BYTES = 256 << 10
# How far past the next part the disk is asked to read ahead.
AHEAD_BYTES = 16 << 20


class Selection(msgspec.Struct, array_like=True, frozen=True):
    """Which records are requested: all, or those of a topic, of a queue, and from an offset on."""

    topic: str | None = None
    queue_id: int | None = None
    first_offset: int = 0

    def is_all(self) -> bool:
        return self.topic is None and self.queue_id is None


def start_of(store: StoreDirectory, selection: Selection) -> int:
    """The log offset of the first requested record if a queue's files name it, else the beginning
    of the log."""
    if selection.topic is None or selection.queue_id is None:
        return store.log_start
    for queue in store.queues():
        if (queue.topic, queue.queue_id) != (selection.topic, selection.queue_id):
            continue
        slot = max(selection.first_offset, queue.min_offset)
        if slot >= queue.max_offset:
            break
        position = int(queue.entries(slot, slot + 1)["offset"][0])
        try:
            record = store.record_at(position)
        except PenstockError:
            break  # a wrong entry, which the walk does not need; `verify` reports it
        named = record.topic, record.queue_id, record.queue_offset
        return position if named == (queue.topic, queue.queue_id, slot) else store.log_start
    return store.log_start


class Task(msgspec.Struct, array_like=True, frozen=True):
    """The records that begin in [start, stop) of a store's log. Rows are made of at most `most`;
    after that the walk stops if `ends`, or only counts."""

    store: str
    start: int
    stop: int
    selection: Selection
    form: Form
    most: int
    ends: bool


class Part(msgspec.Struct, array_like=True, frozen=True):
    """What a task has found. `count` counts all requested records; damage is position, size and
    reason. `end` is where its last step ended, and `is_end` whether the log ended there."""

    rows: memoryview
    count: int
    damage: list[tuple[int, int, str]]
    end: int
    is_end: bool


class Listing:
    """The log from the task's `start` on, where a record must begin. If the task `ends`, nothing
    after the last requested record is read."""

    def __init__(self, store: StoreDirectory, task: Task, processes: int) -> None:
        """`task` covers everything that is listed."""
        self._store, self._task, self._processes = store, task, processes
        self._waiting: deque[Task] = deque()

    def parts(self) -> Generator[Part, None, None]:
        """The parts in log order. If left early, close the generator: it may have processes."""
        end, left = 0, self._task.most
        count, work = self._processes, self._tasks()
        with closing(side_by_side(list_part, work, processes=count, alone=ALONE)) as results:
            for raw in results:
                task, part = self._waiting.popleft(), _decoded(raw)
                # The log may have been cut at a copy of a record inside a body. Then the part
                # before this one goes on past the cut.
                start = max(task.start, end)
                is_over = task.ends and part.count >= left
                if start > task.start or is_over and left < task.most:
                    part = _decoded(list_part(_encoded(replace(task, start=start, most=left))))
                end = part.end
                left -= min(left, part.count)
                yield part
                if part.is_end or task.ends and not left:
                    return

    def _tasks(self) -> Iterator[bytes]:
        for start, stop in parts_of(self._store, PART_BYTES, self._task.start):
            task = replace(self._task, start=start, stop=stop)
            self._waiting.append(task)
            ahead = start + AHEAD_BYTES
            size = min(stop - start, self._store.segment_of(start).end - ahead)
            if size > 0:
                self._store.expect_log(ahead, size)
            yield _encoded(task)


def _encoded(task: Task) -> bytes:
    return msgspec.msgpack.encode(task)


def _decoded(raw: bytes) -> Part:
    return msgspec.msgpack.decode(raw, type=Part)


def list_part(raw: bytes) -> bytes:
    """Do one Task, perhaps in another process. Returns a Part; both are encoded."""
    task = msgspec.msgpack.decode(raw, type=Task)
    with StoreDirectory(task.store) as store:
        walk = _Walk(store, task)
        rows = rows_of(walk.records(), task.form)
    return msgspec.msgpack.encode(
        Part(memoryview(rows), walk.count, walk.damage, walk.end, walk.is_end)
    )


class _Walk:
    """One walk through a part. Call `records` once; its other findings are complete after that."""

    def __init__(self, store: StoreDirectory, task: Task) -> None:
        self._store, self._task = store, task
        self.count, self.end, self.is_end = 0, task.start, False
        self.damage: list[tuple[int, int, str]] = []

    def records(self) -> Iterator[memoryview]:
        """The records that become rows, some at a time."""
        task = self._task
        for run in self._store.scan_runs(task.start, WINDOW_BYTES):
            self.is_end = run.found is Kind.END
            if self.is_end or run.position >= task.stop:
                return
            self.end = run.position + run.size
            if run.found is Kind.DAMAGED:
                self.damage.append((run.position, run.size, run.reason))
            elif run.found is Kind.RECORD:
                within = bisect_left(run.starts, task.stop - run.position, hi=len(run.starts) - 1)
                self.end = run.position + run.starts[within]
                asked = _asked(run, within, task.selection)
                made = asked[: max(task.most - self.count, 0)]
                if made:
                    yield _joined(run, made)
                self.count += len(made) if task.ends else len(asked)
                if task.ends and self.count == task.most:
                    return
            if self.end >= task.stop:
                return  # what follows, perhaps the log's end, is not part of this task


def _asked(run: Run, within: int, selection: Selection) -> list[tuple[int, int]]:
    """Where the requested ones among the first `within` records of a run begin and end."""
    found = list(pairwise(run.starts[: within + 1]))
    if selection.is_all():
        return found
    topic = None if selection.topic is None else selection.topic.encode()
    queue_id = selection.queue_id
    asked = []
    for start, stop in found:
        fields = outline(run.record[start:stop])
        if (
            (topic is None or fields.topic == topic)
            and (queue_id is None or fields.queue_id == queue_id)
            and fields.queue_offset >= selection.first_offset
        ):
            asked.append((start, stop))
    return asked


def _joined(run: Run, found: list[tuple[int, int]]) -> memoryview:
    """Records of a run, joined. Adjacent ones are one piece, and a single piece is not copied."""
    pieces, begun = [], found[0][0]
    for (_, stop), (start, _) in pairwise(found):
        if start != stop:
            pieces.append(run.record[begun:stop])
            begun = start
    pieces.append(run.record[begun : found[-1][1]])
    return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
