"""Whole records that stand in one slot and name another: a bit has flipped in topic, queue or slot.

No checksum covers these by default, so the log alone cannot tell such a record from the message
that it names; least of all if it names a slot past its queue's end. What gives it away is a slot
that no record of the log names: its entry leads to this record, while its neighbours' entries lead
to their own records. Only reads.

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
    """Log offsets of such records. `vacant` has, for each queue, the spans of slots that no record
    of the log names, including those before its first record and after its last one."""
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
                    # if all of a queue's files are gone the entry's queue may be the wrong one
                    is_elsewhere = named in known and named not in queues
                    if (
                        not is_elsewhere
                        and not _has(queues.get(named), record)
                        and all(_is_own(store, queue, slot + step) for step in (-1, 1))
                    ):
                        yield record.physical_offset


def _record(store: StoreDirectory, queue: QueueFiles, slot: int) -> Record | None:
    """The whole record that an entry leads to; None if there is none."""
    try:
        record = store.record_at(position := queue.log_offset(slot))
    except (StoreDamaged, OffsetOutOfRange):
        return None
    return record if record.physical_offset == position else None


def _has(queue: QueueFiles | None, record: Record) -> bool:
    """Whether the queue that a record names has an entry for it there."""
    slot = record.queue_offset
    if queue is None or not queue.first_slot <= slot < queue.max_offset:
        return False
    try:
        return queue.log_offset(slot) == record.physical_offset
    except StoreDamaged:
        return True  # the file is missing, so this cannot be told


def _is_own(store: StoreDirectory, queue: QueueFiles, slot: int) -> bool:
    """Whether an entry leads to its own message; true where there is none, or it has expired."""
    if not queue.min_offset <= slot < queue.max_offset:
        return True
    record = _record(store, queue, slot)
    key = queue.topic, queue.queue_id, slot
    return record is not None and (record.topic, record.queue_id, record.queue_offset) == key
