"""A repair's walk through the log, most of which other processes have checked before.

    log, cut where records begin -> stretches of whole records, found by processes side by side
    steps_but(those)             -> the walker takes a stretch as one, or gets a scan's steps

A stretch is whole records whose queues go on slot by slot, so the first and the last record of each
queue are enough. The walker decides what a stretch means, as it knows what comes before; here
nothing is left out or judged. The other processes stop within a part at anything but a record, as
the walker has to see each step of a damaged one anyhow.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing

import msgspec

from penstock.maintenance.cuts import PART_BYTES, parts_of
from penstock.maintenance.side_by_side import side_by_side
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_crc import Checksum
from penstock.shared.formats.record_layout import store_timestamp_ms
from penstock.shared.log.scan import WINDOW_BYTES, Step
from penstock.shared.loops.active import QueueNumbers, by_queue, dispatch, record_starts
from penstock.shared.store.directory import StoreDirectory

# This process looks at this many parts first: for a short log, starting others would take longer.
ALONE = 2


class QueueRun(msgspec.Struct, array_like=True, frozen=True):
    """Records of a queue in slots [first, end), and the log offset of the last one."""

    topic: str
    queue_id: int
    first: int
    end: int
    last_position: int


class Stretch(msgspec.Struct, array_like=True, frozen=True):
    """Whole records in [start, end) of the log; the last one was stored at `stored_ms`."""

    start: int
    end: int
    stored_ms: int
    runs: list[QueueRun]


class _Task(msgspec.Struct, array_like=True, frozen=True):
    """A part of the log, in one segment, which is read in windows of this size."""

    store: str
    start: int
    stop: int
    window_bytes: int


def whole_stretches(
    store: StoreDirectory,
    processes: int,
    part_bytes: int = PART_BYTES,
    window_bytes: int = WINDOW_BYTES,
) -> Generator[Stretch, None, None]:
    """The stretches of the whole log, in order. If you leave it before its end, close it: it may
    have processes. What begins at a cut may be a copy of a record in a body."""
    root = str(store.paths.root.absolute())
    tasks = (
        msgspec.msgpack.encode(_Task(root, start, stop, window_bytes))
        for start, stop in parts_of(store, part_bytes)
    )
    with closing(side_by_side(look, tasks, processes=processes, alone=ALONE)) as parts:
        for part in parts:
            yield from msgspec.msgpack.decode(part, type=list[Stretch])


def look(raw: bytes) -> bytes:
    """One part, perhaps in another process."""
    task = msgspec.msgpack.decode(raw, type=_Task)
    with StoreDirectory(task.store) as store:
        return msgspec.msgpack.encode(list(_stretches(store, task)))


def _stretches(store: StoreDirectory, task: _Task) -> Iterator[Stretch]:
    at = task.start
    while at < task.stop:
        window = memoryview(store.read_log(at, min(task.window_bytes, task.stop - at)))
        starts = record_starts(window, at, Checksum.BODY)
        if not starts[-1]:
            return
        numbers = QueueNumbers()
        found = dispatch(window[: starts[-1]], at, numbers)
        queues = by_queue(found.rows, numbers)
        if found.size == starts[-1] and all(len(pieces) == 1 for pieces in queues.values()):
            runs = [
                QueueRun(topic.decode(), queue_id, first, first + len(entries) // ENTRY.size, last)
                for (topic, queue_id), ((first, entries),) in queues.items()
                for last, *_ in (ENTRY.unpack(entries[-ENTRY.size :]),)
            ]
            stored_ms = store_timestamp_ms(window, starts[-2])
            yield Stretch(at, at + starts[-1], stored_ms, runs)
        at += starts[-1]


def steps_but(
    store: StoreDirectory, stretches: Iterable[Stretch], take: Callable[[Stretch], bool]
) -> Iterator[Step]:
    """The steps of a scan of the log, without those of the stretches that `take` has taken. It is
    called for a stretch when all steps before that have been given."""
    at = store.log_start
    for stretch in stretches:
        # skip a stretch that begins inside a record
        while at < stretch.start:
            for step in store.scan_log(at):
                yield step
                at = step[0] + step[2]
                if step[1] is Kind.END:
                    return
                if at >= stretch.start:
                    break
        if at == stretch.start and take(stretch):
            at = stretch.end
    yield from store.scan_log(at)
