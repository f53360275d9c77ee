"""What levels and timers have in common: where messages are read, and where their copies go."""

from __future__ import annotations

from typing import NamedTuple

from penstock.actors.scheduler.copies import Targets
from penstock.actors.scheduler.taken_over import Deliveries
from penstock.client.core.sending.record_sender import RecordSender
from penstock.shared.formats.record_layout import AT_PHYSICAL_OFFSET, Shape
from penstock.shared.messaging.delivered import Copy, Waiting, delivered
from penstock.shared.queue.reader import QueueReader


class Doubt(NamedTuple):
    """What an earlier life may have put: what was due by then, of records below a log offset."""

    due_ms: int
    below: int

    def holds(self, due_ms: int, place: int) -> bool:
        return due_ms <= self.due_ms and place < self.below


NO_DOUBT = Doubt(-1, 0)


class Surroundings(NamedTuple):
    """One scheduler's."""

    queues: QueueReader
    sender: RecordSender
    targets: Targets
    shape: Shape
    doubt: Doubt
    deliveries: Deliveries

    def record(self, place: int, size: int) -> memoryview | None:
        """The record of this size at a log offset; None where there is none, or none any more."""
        if self.queues.is_damaged(place, size):
            return None
        try:
            record = self.queues.view(place, place + size)
        except FileNotFoundError:
            return None
        at = AT_PHYSICAL_OFFSET
        if len(record) != size or record[at : at + 8] != place.to_bytes(8, "big"):
            return None
        return record if record[:4] == size.to_bytes(4, "big") else None

    def queued(self) -> int:
        """The log offset up to which queues have what the log has."""
        return self.queues.queued

    def copy(self, waiting: Waiting, due_ms: int, timed: bool) -> Copy | None:
        """What is to be put of a message that is due; None where it has nowhere to go, or is there
        already."""
        copy = delivered(waiting, self.shape, timed)
        if copy is None or self.deliveries.has(waiting, copy, due_ms):
            return None
        return self.targets.place(copy)
