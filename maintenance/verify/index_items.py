"""Checks the index against the log: every item against a record, every key of a record for an item.

The keys of the records, of all the log or of a part, come in log order through `add`. They are
compared in batches with the items of the same log offsets, so memory does not grow with the store.
Then each file's chains are made from the items and compared. The number of items is recorded before
the log is walked, since a running store goes on.

In an unclean store deviations are notes: a start of Penstock corrects the index, and RocketMQ drops
what it does not trust.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.maintenance.verify.report import Findings
from penstock.maintenance.verify_loops import chain
from penstock.shared.files.segments import shown
from penstock.shared.formats.index_layout import ITEM, Geometry, IndexHeader
from penstock.shared.index.directory import begun_index_files
from penstock.shared.index.index_file import IndexFile

# Keys, or items, that are compared at once: enough for numpy to pay, few enough for memory.
BATCH = 65_536

Numbers = npt.NDArray[np.int64]
Pairs = npt.NDArray[np.int64]  # a row for each key: its hash, and the record's log offset


class IndexCheck:
    """The state of an index's check. index_headers.py reports files whose headers make no sense.

    Call `add` for every record in log order, then `finish_items`; `finish_files`, in this check or
    in another one; `close`. Without a geometry it accepts everything and checks nothing: an item's
    place depends on the geometry.
    """

    def __init__(
        self,
        directory: Path,
        geometry: Geometry | None,
        start: int,
        unclean: bool,
        found: Findings,
    ) -> None:
        """`start` is where the walk begins whose records are added."""
        self._geometry = geometry or Geometry(0, 0)
        self._unclean = unclean
        self._found = found
        self.deviations = self.repeated = 0
        self._files: list[tuple[IndexFile, IndexHeader]] = []
        self._misfits: list[tuple[str, str]] = []
        if geometry is not None:
            self._open(directory)
        self._batch = array("q")
        self._checked_to = start
        # Only records between these are compared. Index files of older ones may have expired, and
        # newer ones may not have been dispatched when the headers were read.
        headers = [header for _, header in self._files if header.next_item > 1]
        self._first = headers[0].begin_offset if headers else 0
        self._last = headers[-1].end_offset if headers else -1

    def _open(self, directory: Path) -> None:
        """Map the files that can be read. All headers are read here, before the log is walked."""
        slots, items = self._geometry
        for path in begun_index_files(directory):
            if (length := path.lstat().st_size) != self._geometry.file_bytes:
                detail = (
                    f"{length} bytes, where one of {slots} slots and {items} items has "
                    f"{self._geometry.file_bytes}"
                )
                self._misfits.append((shown(path), detail))
                continue
            file = IndexFile(path, self._geometry)
            if file.header.next_item <= self._geometry.items:
                self._files.append((file, file.header))

    def add(self, items: bytes) -> None:
        """What the next records of the log should have in the index: for each of their keys its
        hash and the record's log offset, as 64-bit numbers. All keys of a record come at once."""
        if self._files:
            self._batch.frombytes(items)
            if len(self._batch) >= 2 * BATCH:
                self._compare(self._batch[-1] + 1)

    def finish_items(self, stop: int) -> None:
        """Everything below `stop` was added."""
        if self._files:
            self._compare(stop)

    def finish_files(self, log_end: int, chains: bool, moved: Callable[[int], None]) -> None:
        """What can be said of the files without records; checks `chains`, unless others have done
        that. `moved` is told how many more bytes of items were read for it."""
        for path, detail in self._misfits:
            self._found.report("index-size", (path, 0), None, detail)
        for number, (file, header) in enumerate(self._files):
            self._check_end(file, header, log_end)
            if chains:
                self.check_chains(number, moved)

    def take_notes(self) -> None:
        """Report deviations that are no problem, once everything was compared."""
        if self.deviations:
            self._found.note(f"{self.deviations} deviations of the index; a start puts them right")
        if self.repeated:
            self._found.note(f"{self.repeated} items of the index repeat another one")

    def __len__(self) -> int:
        """The number of files that are compared."""
        return len(self._files)

    def item_bytes(self, number: int) -> int:
        """The bytes of the items in one of these."""
        return (self._files[number][1].next_item - 1) * ITEM.size

    def close(self) -> None:
        for file, _ in self._files:
            file.close()
        self._files = []

    def _compare(self, stop: int) -> None:
        """Compare the keys that were added with the items of log offsets up to `stop`.

        Items are in log order, within each file and from file to file, so bisection finds those of
        a batch. Their times are not compared.
        """
        pairs, self._batch = np.frombuffer(self._batch, np.int64).reshape(-1, 2), array("q")
        pairs = pairs[(pairs[:, 1] >= self._first) & (pairs[:, 1] <= self._last)]
        start, self._checked_to = self._checked_to, stop
        seen = [
            (file, first, _pairs(file.items[first:last]))
            for file, header in self._files
            for first, last in [[file.first_at(at, header.next_item) for at in (start, stop)]]
            if first < last
        ]
        # A healthy index has the same keys in the same order, which is a quick comparison.
        items = np.concatenate([pairs[:0], *(found for *_, found in seen)])
        if not np.array_equal(items, pairs) or _has_repeated(items):
            self._compare_sets(pairs, seen)

    def _compare_sets(self, expected: Pairs, seen: list[tuple[IndexFile, int, Pairs]]) -> None:
        """Compare the two as sets, if they differ, so that each difference is named.

        `seen` has, for each file, the number of its first item here, and the items.
        """
        records = _distinct(expected[:, 1])

        def identities(pairs: Pairs) -> Numbers:
            # One number for a record and a hash: the hash has 31 bits, and above them stands the
            # record's index in the batch. So both sides are compared as sets of plain integers.
            return np.searchsorted(records, pairs[:, 1]) << 31 | pairs[:, 0]

        wanted = _distinct(np.sort(identities(expected)))
        all_keys = [wanted[:0]]
        for file, first, pairs in seen:
            keys, offsets = identities(pairs), pairs[:, 1]
            # Both are checked: an offset that is not a record's gets the number of the next one.
            strange = np.flatnonzero(~(_are_in(offsets, records) & _are_in(keys, wanted)))
            for number in strange.tolist()[:1000]:
                detail = f"item {first + number} is of no key of a record at its log offset"
                at = self._geometry.item_at(first + number)
                self._report("index-item", file, at, int(offsets[number]), detail)
            all_keys.append(keys)
        found, counts = np.unique(np.concatenate(all_keys), return_counts=True)
        self.repeated += int(counts.sum()) - len(found)
        for identity in wanted[~_are_in(wanted, found)][:1000].tolist():
            position = int(records[identity >> 31])
            # A running store may so far have put only some keys of the newest record.
            if position < self._last or not self._unclean:
                self._report("index-missing", self._files[-1][0], 0, position, "a key has no item")

    def _check_end(self, file: IndexFile, header: IndexHeader, log_end: int) -> None:
        """Items of records past the log's end, with which no batch was compared. One finding says
        from where on: items ascend with the log."""
        first = file.first_at(log_end, header.next_item)
        if first < header.next_item:
            detail = f"items from {first} on are of log offsets behind its end, {log_end}"
            self._report("index-item", file, self._geometry.item_at(first), None, detail)

    def check_chains(self, number: int, moved: Callable[[int], None]) -> None:
        """Check one file: items name their predecessor in the slot, and slots their newest item."""
        file, header = self._files[number]
        slots, in_use = array("i", bytes(4 * self._geometry.slots)), 0
        for start in range(1, header.next_item, BATCH):
            items = file.items[start : min(start + BATCH, header.next_item)]
            # The chains continue from what is made here and not from what the file has, so one
            # wrong `previous` is one finding.
            previous = np.frombuffer(chain(items.view(np.uint8).data, start, slots), np.int32)
            in_use += int(np.count_nonzero(previous == 0))
            for number in np.flatnonzero(previous != items["previous"])[:1000].tolist():
                detail = f"item {start + number} does not name the one before it in its slot"
                at = self._geometry.item_at(start + number) + ITEM.size - 4
                self._report("index-chain", file, at, None, detail)
            moved(items.nbytes)
        newest = np.frombuffer(slots, np.int32)
        for slot in np.flatnonzero(newest != file.slots)[:1000].tolist():
            detail = f"slot {slot} names item {file.slots[slot]}; its newest one is {newest[slot]}"
            self._report("index-slot", file, 40 + 4 * slot, None, detail)
        if in_use != header.slots_in_use:
            detail = f"{header.slots_in_use} slots in use; its items use {in_use}"
            self._report("index-header", file, 32, None, detail)

    def _report(
        self, kind: str, file: IndexFile, at: int, position: int | None, detail: str
    ) -> None:
        """A problem in a clean store. In an unclean one it is only counted, as a start corrects it.

        `at` is a byte of the file, `position` the log offset that it is about, if any.
        """
        if self._unclean:
            self.deviations += 1
        else:
            self._found.report(kind, (shown(file.path), at), position, detail)


def _pairs(items: npt.NDArray[np.void]) -> Pairs:
    pairs = np.empty((len(items), 2), np.int64)
    pairs[:, 0], pairs[:, 1] = items["hash"], items["offset"]
    return pairs


def _has_repeated(pairs: Pairs) -> bool:
    """Whether two keys of one record are the same. The keys of a record are next to each other."""
    for distance in range(1, len(pairs)):
        is_same = pairs[distance:] == pairs[:-distance]
        if not is_same[:, 1].any():
            return False
        if is_same.all(axis=1).any():
            return True
    return False


# numpy's unique, isin and setdiff1d hash their arguments, which takes longer than sorting them.


def _distinct(ordered: Numbers) -> Numbers:
    """Each number once, given numbers in ascending order."""
    is_new: npt.NDArray[np.bool_] = np.append(True, ordered[1:] != ordered[:-1])
    kept: Numbers = ordered[is_new[: len(ordered)]]
    return kept


def _are_in(numbers: Numbers, ordered: Numbers) -> npt.NDArray[np.bool_]:
    """Which of the numbers are among the others, which are in ascending order."""
    places = np.searchsorted(ordered, numbers)
    found = places < len(ordered)
    found[found] = ordered[places[found]] == numbers[found]
    return found
