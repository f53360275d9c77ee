"""Start-up of the consume queues: cut what the reput will write again, and fill the queue table.

Entries of records before `dispatch_from` are known to be on disk. What stands after them may have
holes after a power failure, so it is cut, and the reput puts it there again from the log. What a
failed start has cut may be cut in the page cache only, so it is cut again.

Before all that, queues of deleted topics are put aside. A crash may come after the deletion and
before the reput has taken them away, and a power failure may bring them back. Their last entry
tells them from the queues of a topic created again under the name: the deleted topic's records all
begin before the deletion's `log_end`. If a broker that does not know of the deletion has appended
to a queue after that, the queue stays as it is.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from penstock.shared.errors import StoreDamaged
from penstock.shared.faults import crash_point
from penstock.shared.files.durable import drop_empty_last, make_directory, sync_directory, zero_from
from penstock.shared.files.mounts import put_aside
from penstock.shared.layout import CQ_ENTRY_BYTES, segment_name
from penstock.shared.memory.queue_table import QueueKey, QueueTable
from penstock.shared.queue.deleted_topics import (
    DeletedTopics,
    is_of_deleted,
    settle_deleted_topics,
)
from penstock.shared.queue.earlier_entries import MOST_BYTES, EarlierQueue, save_earlier_entries
from penstock.shared.queue.known_queues import QueueEnd, replace_known_queues
from penstock.shared.queue.snapshot import QueueFiles
from penstock.shared.store.survey import StoreSurvey
from penstock.shared.store.topics import load_topics


def recover_queues(
    store: StoreSurvey,
    good_to: int | None,
    table: QueueTable,
    *,
    again: bool = False,
    keep: Path | None = None,
    doubted: range = range(0),
) -> int:
    """Cut the queues at the log offset `good_to`; None leaves them. Returns how many have files.

    `again` says that a start in this boot has failed: what that one cut is cut again, and synced.
    `keep` is the file for the entries that the queues have of the records in `doubted`, a part of
    the log that is to be dispatched again (earlier_entries.py). The list of known queues is written
    here too, so no flusher may be at work. Fills `table` with the queues that have files, in the
    order of the store's listing; the caller stores their count.

    Raises StoreDamaged, naming the file, for a segment that is not one; OSError.
    """
    size = store.config.mapped_file_size_consume_queue_bytes
    for queue in store.queues():
        if queue.problems:
            # check_files.py lets one problem pass: an empty last file, which RocketMQ died making.
            drop_empty_last(queue.directory)
            store.list_again(queue)
    # All ends are found before the first cut, because the list has to have them all.
    cuts = [_find_cut(store, queue, good_to) for queue in store.queues()]
    # The list comes before the cuts, since the next start compares the queues with it. Otherwise,
    # if this start died in between, the next one would miss what was cut, and make these queues
    # again from the log.
    ends = {f"{cut.queue.topic}/{cut.queue.queue_id}": cut.end for cut in cuts if cut.end.end}
    replace_known_queues(store.paths.known_queues, ends)
    if keep is not None:
        slots = [_doubted_slots(cut, good_to, doubted) for cut in cuts]
        # checked before anything is read: without a checkpoint it may be all that the queues have
        if sum(map(len, slots)) * CQ_ENTRY_BYTES <= MOST_BYTES:
            save_earlier_entries(keep, map(_kept, cuts, slots))
    if good_to is not None:
        for cut in cuts:
            _cut(cut, size, again)
            # where nothing was left to cut, the queue's two ends as found before are still right
            if not cut.end.end or cut.end.end != cut.queue.max_offset:
                store.list_again(cut.queue)
            crash_point("recover.mid_cq_fix")
    count = 0
    for queue in store.queues():
        if queue.segments:
            key = QueueKey(queue.topic, queue.queue_id)
            table.add(count, key, queue.min_offset, queue.max_offset)
            count += 1
    return count


class _Cut(NamedTuple):
    """Where a queue is to end."""

    queue: QueueFiles
    bases: list[int]
    end: QueueEnd  # (0, 0): nothing of it stays


def _find_cut(store: StoreSurvey, queue: QueueFiles, good_to: int | None) -> _Cut:
    """Where a queue is to end: after its last entry of a record before `good_to`, whatever stands
    there now; or where it ends already, if that is None."""
    bases = store.queue_bases(queue)
    end = queue.max_offset if good_to is None else queue.end_before(good_to)
    if end <= queue.first_slot:
        return _Cut(queue, bases, QueueEnd())
    return _Cut(queue, bases, QueueEnd(end, queue.log_offset(end - 1)))


def _doubted_slots(cut: _Cut, good_to: int | None, doubted: range) -> range:
    """The slots of a queue that have entries of the records in `doubted`.

    Entries of what is cut from the log are not among them: other records will take its place, and
    older entries say nothing about those.
    """
    queue = cut.queue
    at = cut.end.end if good_to == doubted.start else queue.end_before(doubted.start)
    return range(max(at, queue.first_slot), queue.end_before(doubted.stop))


def _kept(cut: _Cut, slots: range) -> EarlierQueue:
    queue, entries = cut.queue, b""
    if slots:
        with suppress(OSError, StoreDamaged):  # what cannot be read is no witness
            entries = queue.raw_entries(slots.start, slots.stop)
    return EarlierQueue(queue.topic.encode(), queue.queue_id, slots.start, entries)


def _cut(cut: _Cut, size: int, again: bool) -> None:
    """Remove what a queue has after its end; durable on return."""
    directory, end_at = cut.queue.directory, cut.end.end * CQ_ENTRY_BYTES
    if again or not cut.bases:  # a start that removed all files may have died before this sync
        sync_directory(directory)
    # Files go from the last one back, and each removal is synced before the next. So a crash leaves
    # a queue that is longer than it should be, and never one with a hole.
    for base in reversed(cut.bases):
        path = directory / segment_name(base)
        if base < end_at:
            handle = os.open(path, os.O_RDWR)
            try:
                # Where nothing is cut, nothing is synced: there may be thousands of queues.
                if zero_from(handle, min(end_at - base, size), size, again=again) or again:
                    os.fdatasync(handle)
            finally:
                os.close(handle)
            return
        # RocketMQ does not start on a queue segment without entries
        path.unlink()
        sync_directory(directory)


def forget_topics(store: StoreSurvey) -> DeletedTopics:
    """Put the queues of deleted topics aside, for the cleaner. Returns all deletions.

    Durable on return. Doing it again changes nothing. Raises StoreDamaged, OSError.
    """
    paths = store.paths
    deleted = settle_deleted_topics(paths.deleted_topics, load_topics(paths.topics).names())
    rows = {row.topic: row for row in deleted.rows}
    if not rows:
        return deleted
    ends = deleted.ends()
    old = [queue for queue in store.queues() if queue.topic in rows and is_of_deleted(queue, ends)]
    if not old:
        return deleted
    make_directory(paths.deleted_queues)
    for queue in old:
        row = rows[queue.topic]
        name = f"{row.number}-{row.at_ms}-{queue.queue_id}"
        put_aside(queue.directory, paths.deleted_queues / name)
        crash_point("topic.forgotten_at_start")
    for topic in {queue.directory.parent for queue in old}:
        sync_directory(topic)
        with suppress(OSError):  # it has other queues
            topic.rmdir()
    sync_directory(paths.deleted_queues)
    sync_directory(paths.consume_queue)
    store.refresh()
    return deleted
