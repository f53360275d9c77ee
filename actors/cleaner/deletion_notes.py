"""What the cleaner records and reports of a deletion, before it and after a crash in the middle.

Used by the cleaner alone. It knows how to count a deletion's messages and how much of it was done,
and deletes nothing. Counting goes through all queues, so it goes in steps, like all the cleaner's
work.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from msgspec import structs

from penstock.actors.cleaner.queue_expiry import QueueExpiry
from penstock.shared.clock import Clock
from penstock.shared.config import Config
from penstock.shared.errors import StoreDamaged
from penstock.shared.faults import crash_point
from penstock.shared.formats.record_layout import SMALLEST_RECORD_BYTES, store_timestamp_ms
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.store.deletions import Deletion, Deletions, Reason, describe

# Queues to count between two pauses.
QUEUES_AT_ONCE = 1000

# Yields pauses in ms; returns messages, and the number of queues that could not be counted.
Counting = Generator[int, None, tuple[int, int]]


class DeletionNotes:
    """The list of deletions, and the report of each."""

    def __init__(
        self, config: Config, clock: Clock, queues: QueueExpiry, report: Callable[[str], None]
    ) -> None:
        self._config = config
        self._clock = clock
        self._queues = queues
        self._report = report
        self._paths = StorePaths(config.store)
        self._segment_bytes = config.mapped_file_size_commit_log_bytes
        self._deletions = Deletions(self._paths, report)

    def note(
        self, log_start: int, segments: int, why: Reason, used_percent: int
    ) -> Generator[int, None, None]:
        """Record and report what goes next, before it goes."""
        log_end = log_start + segments * self._segment_bytes
        messages, uncounted = yield from self._count(log_end)
        row = Deletion(
            at_ms=self._clock.now_ms(),
            why=why,
            disk_used_percent=used_percent,
            segments=segments,
            log_start=log_start,
            log_end=log_end,
            messages=messages,
            uncounted_queues=uncounted,
            stored_before_ms=self._stored_ms(log_end),
        )
        self._deletions.add(row)
        self._report(describe(row, self._config))
        crash_point("clean.noted")

    def correct(self, log_start: int) -> Generator[int, None, None]:
        """Strike off the list what did not go, because the broker, or its cleaner, died before."""
        while (row := self._deletions.last()) and row.log_end > log_start:
            if row.log_start >= log_start:
                self._deletions.correct(None)
                self._report(f"nothing went yet of [{row.log_start}, {row.log_end})")
                continue
            kept, uncounted = yield from self._count(row.log_end)
            done = structs.replace(
                row,
                segments=(log_start - row.log_start) // self._segment_bytes,
                log_end=log_start,
                messages=max(0, row.messages - kept),
                uncounted_queues=max(row.uncounted_queues, uncounted),
                stored_before_ms=self._stored_ms(log_start),
            )
            self._deletions.correct(done)
            self._report(f"so far only this was done: {describe(done, self._config)}")

    def settle(self) -> None:
        """Write what the disk had no room for before: a deletion has made some."""
        self._deletions.settle()

    def _count(self, log_end: int) -> Counting:
        """The messages that queues have in the log before `log_end`."""
        messages = uncounted = 0
        for slot in self._queues.slots():
            try:
                messages += self._queues.expiring(slot, log_end)
            except (OSError, StoreDamaged):  # the cleaner meets the error again, and reports it
                uncounted += not self._queues.is_deleted(slot)
            if slot % QUEUES_AT_ONCE == QUEUES_AT_ONCE - 1:
                yield 0
        return messages, uncounted

    def _stored_ms(self, base: int) -> int:
        """The store time of a segment's first record; 0 if it cannot be read."""
        try:
            with (self._paths.commit_log / segment_name(base)).open("rb") as file:
                return max(0, store_timestamp_ms(file.read(SMALLEST_RECORD_BYTES), 0))
        except OSError:
            return 0
