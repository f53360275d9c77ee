"""Follows the half queue and the op queue into the table, and saves how far it came.

The saved progress may be older than the queues: a start reads again what it lacks, and reading
twice changes nothing. It is never newer than the log on disk: a power failure may take the log's
end with a commit, and a RocketMQ broker that went on from here would not ask about that half
message. If a RocketMQ broker has used the store since, its offsets are further.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager

from penstock.actors.transactions.endings import Ending
from penstock.actors.transactions.half_queues import HalfQueues, OpMarks
from penstock.actors.transactions.half_table import (
    COMMITTED,
    DISCARDED,
    ENDED,
    PUT_BACK,
    ROLLED_BACK,
    STATE_OF,
    HalfTable,
)
from penstock.shared.clock import Clock
from penstock.shared.faults import crash_point
from penstock.shared.layout import StorePaths
from penstock.shared.memory.positions import Positions
from penstock.shared.messaging.system_topics import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from penstock.shared.store.rocketmq_json import load_document
from penstock.shared.store.transaction_progress import (
    TransactionProgress,
    load_transaction_progress,
    save_transaction_progress,
)

# As often as RocketMQ saves its consumer offsets.
SAVE_MS = 5000
_COUNTED = {
    COMMITTED: "transactions_committed",
    ROLLED_BACK: "transactions_rolled_back",
    DISCARDED: "transactions_discarded",
}


class Follower:
    """The table of half messages, up to date with the queues."""

    def __init__(
        self,
        queues: HalfQueues,
        paths: StorePaths,
        disk: AbstractContextManager[object],
        positions: Positions,
        clock: Clock,
        report: Callable[[str], None],
    ) -> None:
        """`disk` is held while the file is replaced. Raises OSError, and StoreDamaged if
        consumerOffset.json cannot be read."""
        self._queues, self._file = queues, paths.transactions
        self._disk, self._positions, self._clock, self._report = disk, positions, clock, report
        self._failed = False
        self._saved = start = _where_to_begin(paths)
        low, high = queues.range(HALF_TOPIC)
        self.table = HalfTable(min(max(start.from_half, low), high))
        ops_low, ops_high = queues.range(OP_TOPIC)
        self._next_op = min(max(start.from_op, ops_low), ops_high)
        self._marks = OpMarks(self._next_op)
        # half messages that were put back: old offset -> new offset
        self._moved: dict[int, int] = {}
        # progress to be saved once the log is on disk up to this log offset
        self._unsaved: tuple[TransactionProgress, int] | None = None
        self._save_at_ms = clock.monotonic_ms() + SAVE_MS
        self._counts: Counter[str] = Counter()

    def follow(self) -> int:
        """Read new entries of the queues, a bounded number; returns how many op records."""
        # Ops first: each names half messages that were stored before it, and those are then there.
        ops, self._next_op = self._queues.ops(self._next_op)
        self.extend()
        for op in ops:
            # An op record may come from a client and name what is no half message yet. Such a name
            # would be needed for ever, so it is left out.
            known = tuple([offset for offset in op.halves if offset < self.table.end])
            self._marks.note(op._replace(halves=known))
            state = STATE_OF.get(op.outcome, ENDED)
            for offset in op.halves:
                self._finish(offset, state)
        return len(ops)

    def extend(self) -> None:
        """Add the half messages that are new in their queue."""
        self.table.extend(self._queues.range(HALF_TOPIC)[1])

    def stands_at(self, offset: int) -> int:
        """The present offset of a half message; the same one unless it was put back."""
        while offset in self._moved:
            offset = self._moved[offset]
        return offset

    def is_at_end(self) -> bool:
        """Whether both queues are read to their present ends."""
        ends = self._queues.range(HALF_TOPIC)[1], self._queues.range(OP_TOPIC)[1]
        return self.table.end >= ends[0] and self._next_op >= ends[1]

    def ended(self, ending: Ending) -> None:
        """The ending's mark is stored; it will be read in the op queue too."""
        if ending.state == PUT_BACK and ending.place is not None:
            self._moved[ending.offset] = ending.place.queue_offset
        self._finish(ending.offset, ending.state)

    def _finish(self, offset: int, state: int) -> None:
        if self.table.finish(offset, state) and state in _COUNTED:
            self._counts[_COUNTED[state]] += 1

    def take_counts(self) -> Counter[str]:
        """The endings since the last call, by position."""
        counts, self._counts = self._counts, Counter()
        return counts

    @property
    def progress(self) -> TransactionProgress:
        table, marks = self.table, self._marks
        return TransactionProgress(
            table.oldest, marks.first_for(table.oldest), table.base, marks.first_for(table.base)
        )

    def save(self, at_once: bool = False) -> None:
        """Forget what is old, and save the progress if that has changed and is due.

        If the disk takes nothing, the older file stays: a start then reads more.
        """
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._save_at_ms or at_once:
            self._save_at_ms = now_ms + SAVE_MS
            self.table.forget()
            self._marks.forget(self.table.base)
            # the copy may stay open for long: requests with its old offset are still answered
            base = self.table.base
            self._moved = {old: new for old, new in self._moved.items() if new >= base}
            if self._unsaved is None and self.progress != self._saved:
                self._unsaved = self.progress, self._positions["wrote"]
        if self._unsaved is not None and self._positions["flushed"] >= self._unsaved[1]:
            (progress, _), self._unsaved = self._unsaved, None
            self._write_down(progress)

    def _write_down(self, progress: TransactionProgress) -> None:
        crash_point("txn.before_save")
        try:
            with self._disk:
                save_transaction_progress(self._file, progress)
        except OSError as error:
            if not self._failed:
                self._report(f"{self._file} cannot be written: {error}; trying again")
            self._failed = True
            return
        self._saved, self._failed = progress, False


def _where_to_begin(paths: StorePaths) -> TransactionProgress:
    """The offsets of our own file, or RocketMQ's if those are further."""
    own = load_transaction_progress(paths.transactions) or TransactionProgress()
    half, op = load_document(paths.consumer_offsets, _rows)
    if half <= own.half:
        return own
    return TransactionProgress(half, op, half, op)


def _rows(document: object) -> tuple[int, int]:
    """The offsets of queue 0 of both topics in consumerOffset.json; 0 if it has none."""
    table = document.get("offsetTable") if isinstance(document, dict) else None
    found = []
    for topic in (HALF_TOPIC, OP_TOPIC):
        row = table.get(f"{topic}@{TRANSACTION_GROUP}") if isinstance(table, dict) else None
        offset = row.get("0") if isinstance(row, dict) else None
        found.append(offset if isinstance(offset, int) and offset >= 0 else 0)
    return found[0], found[1]
