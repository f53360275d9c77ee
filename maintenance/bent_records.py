"""Whole records that stand in one slot and name another: a bit has flipped in topic, queue or slot.

No checksum covers these by default, so the log alone cannot tell such a record from the message
that it names; least of all where it names a slot past its queue's end. What tells is a slot that
no record of the log names, whose entry leads to this one, between neighbours that lead to their own
records. Only reads.

    entries of orders/2    ... 335 -> names orders/2 335
                               336 -> names osders/2 336     bent: nothing else has this slot
                               337 -> names orders/2 337
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.maintenance.displaced_records import Queue, queues_of
from penstock.shared.errors import OffsetOutOfRange, StoreDamaged
from penstock.shared.formats.record import Record
from penstock.shared.queue.snapshot import QueueFiles
from penstock.shared.store.directory import StoreDirectory


def bent_records(
    store: StoreDirectory, vacant: Mapping[Queue, list[tuple[int, int]]]
) -> Iterator[int]:
    """Log offsets of such records. `vacant` are spans of slots of each queue that no record of the
    log names, those before its first record and after its last one too."""
    queues = {(each.topic, each.queue_id): each for each in store.queues()}
    known = queues_of(store.paths.topics)
    for key in queues.keys() & vacant.keys():
        queue = queues[key]
        for low, high in vacant[key]:
            for start, stop in queue.spans(max(low, queue.min_offset), min(high, queue.max_offset)):
                for slot in range(start, stop):
                    record = _record(store, queue, slot)
                    if record is None:
                        continue
                    named = record.topic, record.queue_id
                    if (*named, record.queue_offset) == (*key, slot):
                        continue
                    # where the files of a queue are gone it may be the other one's that are wrong
                    is_elsewhere = named in known and named not in queues
                    if (
                        not is_elsewhere
                        and not _has(queues.get(named), record)
                        and all(_is_own(store, queue, slot + step) for step in (-1, 1))
                    ):
                        yield record.physical_offset


def _record(store: StoreDirectory, queue: QueueFiles, slot: int) -> Record | None:
    """The whole record that an entry leads to; None without one."""
    try:
        record = store.record_at(position := queue.log_offset(slot))
    except (StoreDamaged, OffsetOutOfRange):
        return None
    return record if record.physical_offset == position else None


def _has(queue: QueueFiles | None, record: Record) -> bool:
    """Whether the queue that a record names has it there."""
    slot = record.queue_offset
    if queue is None or not queue.first_slot <= slot < queue.max_offset:
        return False
    try:
        return queue.log_offset(slot) == record.physical_offset
    except StoreDamaged:
        return True  # the file is missing: nobody can tell


def _is_own(store: StoreDirectory, queue: QueueFiles, slot: int) -> bool:
    """Whether an entry, if there is one of what has not expired, leads to its own message."""
    if not queue.min_offset <= slot < queue.max_offset:
        return True
    record = _record(store, queue, slot)
    key = queue.topic, queue.queue_id, slot
    return record is not None and (record.topic, record.queue_id, record.queue_offset) == key
