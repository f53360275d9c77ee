"""Checks one consume queue against the records of the log that belong to it.

The records come in log order through `add` and are compared in batches with the entries of their
slots, so memory does not grow with the store; only an 8-byte hash of each unique key stays. The
queue's end is recorded before the log is walked. Entries are written after their records, so a
running store never shows an entry whose record the walk could not have seen.

This file knows entries and slots. It does not know where records come from, or what a record is.
"""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.maintenance.verify.report import Findings, QueueSummary
from penstock.shared.formats.queue_entry import BLANK_SIZE
from penstock.shared.layout import CQ_ENTRY_BYTES
from penstock.shared.queue.snapshot import QueueFiles

# Records that a queue collects before they are compared with its entries.
BATCH = 16384
ROW_NUMBERS = 5
# Keys remembered for each queue; repetitions beyond these are not noticed (128 MiB).
MAX_KEYS = 16 << 20
# A smaller tags code is the address of an extension unit, not a hash.
_LEAST_TAGS_CODE = -(1 << 31)

Columns = npt.NDArray[np.int64]


class QueuePart(msgspec.Struct, frozen=True):
    """What the records of a part of the log tell of one queue: `QueueCheck.part`."""

    topic: bytes
    queue_id: int
    messages: int
    missing: int
    first: int  # the slot of its first record here; below, that record's log offset
    position: int
    next: int  # the slot after the last one
    first_missing: tuple[int, int] | None
    skipped: list[tuple[int, int]]
    keys: bytes  # hashes of unique keys, 8 bytes each


class QueueCheck:
    """The state of one queue's check: call `add` for each of its records, `finish` once, then
    `summary`. A log can be walked in parts. Then each part's check returns a `part` instead of the
    last two, and one check without records of its own takes these in log order with `join`.

    `files` is None for a queue that has records and no directory; then findings name `place`. They
    go into `findings`, with the file and the byte of the entry.
    """

    def __init__(
        self, topic: str, queue_id: int, files: QueueFiles | None, place: str, findings: Findings
    ) -> None:
        self.name = f"{topic}/{queue_id}"
        self.topic = topic
        self.queue_id = queue_id
        self.messages = 0  # records of the log
        self.missing = 0  # those of them past the queue's last entry
        self.repeated_keys = 0  # as far as MAX_KEYS goes
        self._files = files
        # only next to extension files may a code be the address of one of their units
        self._extended = (
            files is not None and (files.directory.parents[2] / "consumequeue_ext").is_dir()
        )
        self._place = place
        self._findings = findings
        self._min = files.min_offset if files else 0
        self._max = files.max_offset if files else 0
        self._first_seen: int | None = None
        self._first_position = 0
        self._next = 0  # the slot the next record should have
        self._first_missing: tuple[int, int] | None = None  # slot, log offset
        self._skipped: list[tuple[int, int]] = []  # slots that no record has claimed
        self._rows = array("q")  # of records that are not compared yet
        self._keys = array("q")

    def add(self, rows: bytes) -> None:
        """The next records of this queue, in log order, as five 64-bit numbers each: queue offset,
        log offset, the size and the code that the entry must have, and a hash of the UNIQ_KEY, 0 if
        there is none."""
        self._rows.frombytes(rows)
        if len(self._rows) >= ROW_NUMBERS * BATCH:
            self.compare()

    def compare(self) -> None:
        """Compare what was added since the last time with the entries."""
        if not self._rows:
            return
        rows = np.frombuffer(self._rows, np.int64).reshape(-1, ROW_NUMBERS)
        self._rows = array("q")
        self.messages += len(rows)
        # To save memory only hashes are kept. Two keys with the same hash cause a needless note,
        # but no problem.
        keys = rows[:, 4][rows[:, 4] != 0]
        self._keys.frombytes(keys[: max(MAX_KEYS - len(self._keys), 0)].tobytes())
        if self._first_seen is None:
            # The queue begins where its first record says: earlier ones may have expired.
            self._first_seen = self._next = int(rows[0, 0])
            self._first_position = int(rows[0, 1])
        # a run is a stretch of consecutive slots; a healthy queue is one run
        for run in np.split(rows, np.flatnonzero(np.diff(rows[:, 0]) != 1) + 1):
            self._check_order(int(run[0, 0]), int(run[0, 1]))
            self._compare_run(run)
            self._next = max(self._next, int(run[-1, 0]) + 1)

    def part(self) -> QueuePart | None:
        """What was added, for the check of the whole queue; None if nothing was."""
        self.compare()
        if self._first_seen is None:
            return None
        return QueuePart(
            self.topic.encode(),
            self.queue_id,
            self.messages,
            self.missing,
            self._first_seen,
            self._first_position,
            self._next,
            self._first_missing,
            self._skipped,
            self._keys.tobytes(),
        )

    def join(self, part: QueuePart) -> None:
        """Take what the next part of the log tells."""
        self.messages += part.messages
        self.missing += part.missing
        if self._first_seen is None:
            self._first_seen = self._next = part.first
        self._check_order(part.first, part.position)
        self._skipped += part.skipped
        self._first_missing = self._first_missing or part.first_missing
        self._next = max(self._next, part.next)
        room = max(MAX_KEYS - len(self._keys), 0)
        self._keys.frombytes(part.keys[: room * self._keys.itemsize])

    def finish(self, log_start: int, log_end: int, *, unclean: bool) -> None:
        """Everything was added. Entries may lag the log, but only in an unclean store.

        `log_start` is the log's start after the walk, `log_end` the offset that the walk has
        reached. Raises StoreDamaged for a file that has become shorter since it was listed.
        """
        self.compare()
        if self._first_seen is None:
            self._skipped.append((self._min, self._max))
        else:
            self._skipped.append((self._min, min(self._first_seen, self._max)))
            self._skipped.append((max(self._next, self._min), self._max))
        for start, stop in self._skipped:
            if start < stop:
                self._report_unclaimed(start, stop, log_start, log_end)
        if self._first_missing and not unclean:
            slot, position = self._first_missing
            self._findings.report(
                "queue-entries-missing",
                self._where(slot),
                position,
                f"queue {self.name} has no entry for {self.missing} records from offset {slot} on",
            )
        keys = np.sort(np.frombuffer(self._keys, np.int64))
        self.repeated_keys = int(np.count_nonzero(keys[1:] == keys[:-1]))
        self._check_files()

    def summary(self) -> QueueSummary:
        """The queue by log and files together: either may know offsets that the other does not."""
        first = self._min if self._max > self._min or self._first_seen is None else self._first_seen
        last = max(self._max, self._next)
        return QueueSummary(self.topic, self.queue_id, first, last, self.messages)

    def _check_order(self, slot: int, position: int) -> None:
        """Check that a record's queue offset follows its predecessor's. Only needed for the first
        of a run: within a run that is so."""
        if slot == self._next:
            return
        if slot > self._next:
            # The slots that the log skips may still have entries. Whether these lead anywhere is
            # checked last.
            self._skipped.append((max(self._next, self._min), min(slot, self._max)))
            detail = f"queue offset {slot} of {self.name} follows {self._next - 1}"
        else:
            detail = f"queue offset {slot} of {self.name} comes again, after {self._next - 1}"
        self._findings.report("queue-offset", self._where(slot), position, detail)

    def _compare_run(self, run: Columns) -> None:
        """Compare records of consecutive slots with their entries: row k is slot start + k.

        Records past the queue's last entry are counted as missing, and `finish` says what that
        means.
        """
        start, stop = int(run[0, 0]), int(run[-1, 0]) + 1
        # The reput may not have reached these yet, or the files have lost them.
        if stop > self._max:
            first = max(start, self._max)
            self.missing += stop - first
            self._first_missing = self._first_missing or (first, int(run[first - start, 1]))
        low, high = max(start, self._min), min(stop, self._max)
        # The log still has these records, so their entries cannot have expired.
        if start < self._min:
            self._findings.report(
                "queue-entry-missing",
                self._where(start),
                int(run[0, 1]),
                f"{min(stop, self._min) - start} records from queue offset {start} on stand before "
                f"the first entry of {self.name}, {self._min}",
            )
        if self._files is None or low >= high:
            return
        for first, last in self._files.spans(low, high):
            rows, table = run[first - start : last - start], self._files.entries(first, last)
            codes = table["tags_code"]
            differs = (table["offset"] != rows[:, 1]) | (table["size"] != rows[:, 2])
            # The extension unit is not read, so nothing can be said of an address.
            is_address = self._extended & (codes < _LEAST_TAGS_CODE)
            differs |= (codes != rows[:, 3]) & ~is_address
            for index in np.flatnonzero(differs):
                self._report_difference(first + int(index), rows[index], table[index])

    def _report_difference(self, slot: int, row: Columns, entry: Any) -> None:
        if entry["size"] == BLANK_SIZE:
            shown = "is blank"
        else:
            shown = "is offset {} size {} code {}".format(*entry.tolist())
        self._findings.report(
            "queue-entry-differs",
            self._where(slot),
            int(row[1]),
            f"entry {slot} of {self.name} {shown}; the record is at {row[1]}, "
            f"size {row[2]}, code {row[3]}",
        )

    def _report_unclaimed(self, start: int, stop: int, log_start: int, log_end: int) -> None:
        """Entries [start, stop) that no record has: one problem for each reason.

        Records before `log_start` have expired while the log was walked.
        """
        assert self._files is not None, "a queue without files has no entries"
        # One lost segment can leave millions of these, so the first one stands for all of its kind.
        found: dict[str, tuple[int, int, int]] = {}  # kind -> first slot, its offset, how many
        for at, upto in self._files.spans(start, stop):
            offsets = self._files.entries(at, upto)["offset"]
            beyond = offsets >= log_end
            for kind, chosen in (
                ("queue-entry-past-log-end", beyond),
                ("queue-entry-without-record", ~beyond & (offsets >= log_start)),
            ):
                hits = np.flatnonzero(chosen)
                if len(hits):
                    index = int(hits[0])
                    slot, offset, count = found.get(kind, (at + index, int(offsets[index]), 0))
                    found[kind] = (slot, offset, count + len(hits))
        for kind, (slot, offset, count) in found.items():
            self._findings.report(
                kind,
                self._where(slot),
                offset,
                f"{count} entries of {self.name} from queue offset {slot} on point where the log "
                f"(end {log_end}) has no such record",
            )

    def _check_files(self) -> None:
        """What can be said of the files without the log: names, lengths, what follows the end."""
        if self._files is None:
            return
        for problem in self._files.problems:
            self._findings.add(problem)
        last = self._files.segments[-1] if self._files.segments else None
        if last and last.base and self._max * CQ_ENTRY_BYTES <= last.base:
            self._findings.report(
                "queue-segment-empty",
                self._where(last.base // CQ_ENTRY_BYTES),
                None,
                "a file without an entry at the queue's end; RocketMQ would not start",
            )
        # Bisection finds the queue's end, so erased entries in the middle may look like the end.
        # What stands after them shows the difference.
        hole = self._files.interruption()
        if hole:
            self._findings.report(
                "queue-entries-interrupted",
                self._where(hole[0]),
                None,
                f"no entry at offset {hole[0]} of {self.name}, but something at {hole[1]}",
            )

    def _where(self, slot: int) -> tuple[str, int]:
        """File and byte of a slot's entry; if there is no file, the place of queues."""
        return self._files.place(slot) if self._files else (self._place, 0)
