"""The entries that the queues had, before a start, for the records that are dispatched again.

    RUN/earlier-entries   msgpack: [[topic, queue id, slot of the first entry, entries], ...]

No checksum covers a record's topic, queue id and queue offset by default. A flipped bit in one of
them sends the record to a slot of another queue, where another message is or none ever was. From
the log alone nobody can tell which of two records is wrong. An entry says where the record stood
when it was first dispatched. So a start keeps the entries that it cuts, and the reput asks them
when a record, for example one that names 3/180, is not in the slot that it names:

    3/180 leads to another record, which names 3/180     this record is of another slot
    2/180 leads to this record, and its neighbours to    it stood there, and gets that entry again:
    records that name 2/179 or 2/181                     readers see that it names another queue

The entry itself may be wrong, or a whole file if files were mixed up. So an entry counts only where
the log agrees: with the entry that contradicts the record, or with one next to the entry that leads
to it. The caller says which records are whole and what they name. The file is a witness and nothing
more: without it the order of the log decides (slot_order.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.shared.errors import StoreDamaged
from penstock.shared.files.bad_sectors import read_file
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.layout import CQ_ENTRY_BYTES
from penstock.shared.loops.forms import ROW
from penstock.shared.names import LIGHT_QUEUE_PREFIX
from penstock.shared.queue.snapshot import QueueFiles

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# The file is in the run directory after a start that cut queues, until the reput has written them
# again.
EARLIER_ENTRIES = "earlier-entries"
# No more is kept. These are the entries of 1.6 million messages, in the seconds between two
# checkpoints.
MOST_BYTES = 32 << 20
# After this many pieces of the log in a row, of which the files of queues knew nothing better, they
# are not asked any more.
_MOST_IN_VAIN = 8

Queue = tuple[bytes, int]  # topic and queue id


class Place(NamedTuple):
    """A slot of a queue."""

    queue: Queue
    slot: int


class EarlierQueue(msgspec.Struct, frozen=True, array_like=True):
    """The entries of one queue, from slot `first` on."""

    topic: bytes
    queue_id: int
    first: int
    entries: bytes

    def at(self, slot: int) -> bytes:
        """The entry of a slot; b"" where there is none."""
        at = (slot - self.first) * CQ_ENTRY_BYTES
        return self.entries[at : at + CQ_ENTRY_BYTES] if at >= 0 else b""


def save_earlier_entries(file: Path, queues: Iterable[EarlierQueue]) -> None:
    """Write the file, in shared memory, unless there is no room for all. No actor may run."""
    kept, left = [], MOST_BYTES
    for queue in queues:
        # light queues lead to records of other topics by design
        if not queue.entries or queue.topic.startswith(LIGHT_QUEUE_PREFIX.encode()):
            continue
        left -= len(queue.entries)
        if left < 0:
            return
        kept.append(queue)
    if not kept:
        return
    try:
        file.write_bytes(msgspec.msgpack.encode(kept))
    except OSError:
        # No start should fail for want of a witness that it can do without.
        with suppress(OSError):
            file.unlink()


_decoder: msgspec.msgpack.Decoder[list[EarlierQueue]] = msgspec.msgpack.Decoder(list[EarlierQueue])


def load_earlier_entries(file: Path) -> list[EarlierQueue]:
    """What was saved; nothing where there is no file."""
    try:
        return _decoder.decode(read_file(file))
    except FileNotFoundError:
        return []


class EarlierEntries:
    """Where records stood when they were dispatched before.

    `named` gives the slot that the record at a log offset names; None without a whole record of
    this size.
    """

    def __init__(
        self, queues: Iterable[EarlierQueue], named: Callable[[int, int], Place | None]
    ) -> None:
        self._queues = {(queue.topic, queue.queue_id): queue for queue in queues}
        self._keys = list(self._queues)
        self._named = named

    @cached_property
    def end(self) -> int:
        """No entry leads to a record from this log offset on; 0 where there are no entries."""
        # a queue's entries are in log order
        ends = [queue.entries[-CQ_ENTRY_BYTES:] for queue in self._queues.values()]
        return max([0, *(int(ENTRY.unpack(each)[0]) + 1 for each in ends)])

    def place(self, queue: Queue, slot: int, entry: bytes) -> Place | None:
        """Where the record of this entry, which names this slot, has its place: in this slot, if
        nothing contradicts that; None if the slot is another's and no entry says which is its
        own."""
        claimed, held = Place(queue, slot), self._queues.get(queue)
        if not self._queues:
            return claimed
        known = held.at(slot) if held is not None else b""
        if known == entry:
            return claimed
        position, size, _ = ENTRY.unpack(entry)
        known_position, known_size, _ = ENTRY.unpack(known) if known else (-1, 0, 0)
        if known_size <= 0:
            return self._stood(position, size, claimed) or claimed
        # The known entry may be the record's own, with other tags. Or it leads nowhere, or to the
        # next record of the queue, as the entry of a lost message does.
        if known_position == position or self._named(known_position, known_size) != claimed:
            return claimed
        return self._stood(position, size, claimed)

    def _stood(self, position: int, size: int, claimed: Place) -> Place | None:
        """The slot whose entry leads to this record."""
        starts, order, positions = self._by_position
        first, last = positions.searchsorted((position, position + 1)).tolist()
        for index in order[first:last].tolist():
            number = bisect_right(starts, index) - 1
            key = self._keys[number]
            queue = self._queues[key]
            place = Place(key, queue.first + index - starts[number])
            if ENTRY.unpack(queue.at(place.slot))[1] != size:
                continue
            # The queue's last slot may lead to the record instead of to a lost message, and the
            # record's own entry after it may not have reached the disk.
            is_stand_in = claimed == (key, place.slot + 1) and not self._queues[key].at(
                claimed.slot
            )
            around = [(step, self._led_to(key, place.slot + step)) for step in (-1, 1)]
            is_own = any(named == Place(key, place.slot + step) for step, named in around)
            # If so, a file of the claimed queue stands here, and this is its first entry.
            goes_on = any(
                named == Place(claimed.queue, claimed.slot + step) for step, named in around
            )
            if not is_stand_in and is_own and (not goes_on or key == claimed.queue):
                return place
        return None

    def _led_to(self, key: Queue, slot: int) -> Place | None:
        """The slot that is named by the record to which a slot's entry leads."""
        entry = self._queues[key].at(slot)
        position, size, _ = ENTRY.unpack(entry) if entry else (0, 0, 0)
        return self._named(position, size) if size > 0 else None

    @cached_property
    def _by_position(self) -> tuple[list[int], npt.NDArray[np.intp], npt.NDArray[np.int64]]:
        """The number of each queue's first entry, counting all entries in a row; the numbers of all
        entries in log order; and what the entries lead to, in that order."""
        # not at the top: a start, and a reput that finds nothing wrong, do without the slow import
        import numpy as np

        from penstock.shared.queue.entry_arrays import entries

        found = [entries(queue.entries)["offset"] for queue in self._queues.values()]
        starts = [0, *np.cumsum([len(each) for each in found]).tolist()][:-1]
        offsets = np.concatenate(found).astype(np.int64)
        order = np.argsort(offsets, kind="stable")
        return starts, order, offsets[order]


class EarlierFiles:
    """The same from the files of queues while they are made again from the log, piece by piece."""

    def __init__(
        self, queues: Iterable[QueueFiles], named: Callable[[int, int], Place | None]
    ) -> None:
        self._queues = {(queue.topic.encode(), queue.queue_id): queue for queue in queues}
        self._named = named
        self._in_vain = 0

    def has(self, queue: Queue, slot: int, entries: bytes) -> bool:
        """Whether a queue's files have these entries from this slot on."""
        files, stop = self._queues.get(queue), slot + len(entries) // CQ_ENTRY_BYTES
        if files is None or not files.first_slot <= slot <= stop <= files.max_offset:
            return False
        try:
            return files.raw_entries(slot, stop) == entries
        except (OSError, StoreDamaged):  # what cannot be read is no witness
            return False

    def has_elsewhere(self, queue: Queue, slot: int, entries: bytes) -> bool:
        """Whether another queue of the topic has these entries from this slot on: a record whose
        queue id has a flipped bit names the same slot of another queue."""
        others = (each for each in self._queues if each[0] == queue[0] and each != queue)
        return any(self.has(other, slot, entries) for other in others)

    def placed(
        self, rows: bytes, names: Sequence[Queue], start: int, stop: int
    ) -> tuple[list[tuple[Place, bytes]], list[int]]:
        """For each row of the log's [start, stop) its place and its entry; and the log offsets of
        the records that name another place.

        Returns nothing if no record stood in another queue than it names. Which of two records of
        one queue has a slot, the order of the log tells better, because these files may be wrong.
        If they seem to be of no use, they are not asked any more.
        """
        if self._in_vain == _MOST_IN_VAIN:
            return [], []
        parts = [self._part(key, start, stop) for key in self._queues]
        earlier = EarlierEntries([part for part in parts if part.entries], self._named)
        found, moved = [], list[int]()
        for number, slot, entry in ROW.iter_unpack(rows):
            claimed = Place(names[number], slot)
            place = earlier.place(claimed.queue, slot, entry) or claimed
            place = place if place.queue != claimed.queue else claimed
            found.append((place, entry))
            if place != claimed:
                moved.append(ENTRY.unpack(entry)[0])
        self._in_vain = 0 if moved else self._in_vain + 1
        return (found, moved) if moved else ([], [])

    def _part(self, key: Queue, start: int, stop: int) -> EarlierQueue:
        """A queue's entries for [start, stop) of the log, and for the messages next to that."""
        files = self._queues[key]
        first = max(files.end_before(start) - 1, files.first_slot)
        last = min(files.end_before(stop) + 1, files.max_offset)
        try:
            entries = files.raw_entries(first, last) if first < last else b""
        except (
            OSError,
            StoreDamaged,
        ):  # a file is missing in its midst: what it says is no witness
            entries = b""
        return EarlierQueue(*key, first, entries)
