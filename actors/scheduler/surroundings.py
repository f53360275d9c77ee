"""What levels and timers share: where messages are read, and where their copies go."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from penstock.actors.scheduler.copies import Targets
from penstock.actors.scheduler.taken_over import Deliveries
from penstock.actors.scheduler.timer_files import ENTRY, Entries
from penstock.client.core.sending.record_sender import RecordSender
from penstock.shared.formats import queue_entry
from penstock.shared.formats.record_check import Kind, examine
from penstock.shared.formats.record_crc import Checksum
from penstock.shared.formats.record_layout import Shape
from penstock.shared.loops.active import delayed_copies, timer_entries
from penstock.shared.messaging.delivered import Copy, Waiting, delivered
from penstock.shared.queue.entry_arrays import entries as queue_entries
from penstock.shared.queue.reader import QueueReader


class Doubt(NamedTuple):
    """What an earlier life may have put: what was due by `due_ms`, of records below `below`."""

    due_ms: int
    below: int

    def holds(self, due_ms: int, place: int) -> bool:
        return due_ms <= self.due_ms and place < self.below

    def of(self, timers: Entries) -> list[bool]:
        """Whether the doubt covers each of them."""
        if self.due_ms < 0:
            return [False] * len(timers)
        return list((timers["due"] <= self.due_ms) & (timers["at"] < self.below))


NO_DOUBT = Doubt(-1, 0)


class Counted(Protocol):
    """A level, or the timers: it counts messages that have nowhere to go."""

    undelivered: int


class Surroundings(NamedTuple):
    """The surroundings of one scheduler."""

    queues: QueueReader
    sender: RecordSender
    targets: Targets
    shape: Shape
    doubt: Doubt
    deliveries: Deliveries

    def record(self, place: int, size: int) -> memoryview | None:
        """The record of this size at a log offset; None if it is not there, or no longer."""
        if self.queues.is_damaged(place, size):
            return None
        try:
            record = self.queues.view(place, place + size)
        except FileNotFoundError:
            return None
        found = examine(record, 0, len(record), position=place, checksum=Checksum.NONE)
        return record if found[:2] == (Kind.RECORD, size) else None

    def timers(self, raw: bytes, known: int, delivered_ms: int) -> Entries:
        """The timers that entries of the wheel queue point to: see `timer_entries`."""
        if self.queues.log.damaged:
            each = queue_entry.ENTRY.iter_unpack(raw)
            raw = b"".join(
                queue_entry.BLANK_ENTRY
                if self.queues.is_damaged(place, size)
                else queue_entry.ENTRY.pack(place, size, code)
                for place, size, code in each
            )
        read = queue_entries(raw)
        found = np.empty(0, ENTRY)
        for first, stop, base, segment in self._segments(read["offset"], read["size"]):
            at, end = first * queue_entry.ENTRY.size, stop * queue_entry.ENTRY.size
            made = timer_entries(raw[at:end], segment, base, max(0, known - first), delivered_ms)
            found = np.concatenate((found, np.frombuffer(made, ENTRY)))
        return found

    def copies(
        self, timers: Entries, timed: bool, recalled: Collection[bytes] = ()
    ) -> list[Copy | None]:
        """The copy of each; None also if it must be asked for on its own."""
        found: list[Copy | None] = [None] * len(timers)
        asked = self.deliveries.until_ms >= 0 and timers["due"].min() <= self.deliveries.until_ms
        if self.queues.log.damaged or asked:
            return found
        order = np.argsort(timers["at"] // self.queues.log.segment_bytes, kind="stable")
        timers = timers[order]
        for first, stop, base, segment in self._segments(timers["at"], timers["size"]):
            raw = timers[first:stop].tobytes()
            made = delayed_copies(raw, segment, base, self.shape, timed, recalled)
            for number, copy in zip(order[first:stop].tolist(), made, strict=True):
                found[number] = copy
        return found

    def _segments(
        self, places: npt.NDArray[np.int64], sizes: npt.NDArray[np.int32]
    ) -> Iterator[tuple[int, int, int, memoryview]]:
        """(first, stop, base, bytes) of consecutive places in one segment; places in a segment that
        is gone are left out."""
        each = self.queues.log.segment_bytes
        bases = places // each
        cuts = [0, *(np.flatnonzero(np.diff(bases)) + 1).tolist(), len(bases)]
        for first, stop in zip(cuts, cuts[1:], strict=False):
            if first == stop:
                continue
            base = int(bases[first]) * each
            size = int(sizes[first:stop].astype(np.int64).clip(0, each).sum())
            with suppress(FileNotFoundError):
                yield first, stop, base, self.queues.log.segment(base, size)

    def end_before(self, topic: str, queue_id: int, log_offset: int) -> int:
        """The first offset of a queue whose message is not before this log offset."""
        return self._first(topic, queue_id, lambda place, code: place >= log_offset)

    def first_due_after(self, topic: str, queue_id: int, due_ms: int) -> int:
        """The first offset of a level's queue whose message is due after this time."""
        return self._first(topic, queue_id, lambda place, code: code > due_ms)

    def _first(self, topic: str, queue_id: int, is_past: Callable[[int, int], bool]) -> int:
        """The first offset of a queue of whose entries place and code are past something, as then
        those of all that follow are."""
        slot = self.queues.queues(topic).get(queue_id)
        low, high = (0, 0) if slot is None else self.queues.range(slot)
        while slot is not None and low < high:
            middle = (low + high) // 2
            raw = self.queues.entries(slot, middle, middle + 1)
            place, _, code = queue_entry.ENTRY.unpack(raw)
            if is_past(place, code):
                high = middle
            else:
                low = middle + 1
        return low

    def queued(self) -> int:
        """The log offset up to which queues have the log's messages."""
        return self.queues.queued

    def copy(self, waiting: Waiting, due_ms: int, timed: bool, owner: Counted) -> Copy | None:
        """The copy to put for a due message; None if it is there already, or has nowhere to go,
        which its owner counts."""
        copy = delivered(waiting, self.shape, timed)
        if copy is not None:
            if self.deliveries.has(waiting, copy, due_ms):
                return None
            copy = self.targets.place(copy)
        owner.undelivered += copy is None
        return copy
