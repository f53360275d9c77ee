"""Pulls with a filter: the reader looks through queues for what matches, a bounded bit at a time.

    put() -> turn(), turn(), ... -> something matches, or the time is over -> the answer

A filter may match one message in a million, so a pull is not looked through at once: it takes turns
with the others, and a look takes in at most `max_filter_message_size_bytes` of queue entries. What
has been looked at is not looked at again: the pull's cursors move on here, and the answer says how
far, also when nothing matched. A pull at its queues' end waits for more, and only what matches
wakes its consumer. This file knows no sockets: answers go through functions it is given.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from penstock.shared.errors import PenstockError
from penstock.shared.filters.message_filter import Filter
from penstock.shared.formats.queue_entry import BLANK_SIZE
from penstock.shared.layout import CQ_ENTRY_BYTES
from penstock.shared.queue.entry_arrays import entries
from penstock.shared.queue.found_records import FoundRecords
from penstock.shared.queue.reader import MAX_PULL_BYTES, QueueReader
from penstock.shared.wire.messages import Pull, QueueSlice

# A turn ends after so many looks, or so much time: others wait for the reader too.
LOOKS_AT_ONCE = 256
TURN_MS = 5
NO_END = 1 << 63


class HeldPull(NamedTuple):
    """A filtered pull on its way. Its cursors move on; `pull.cursors` is where it began.

    Once the queues hold everything up to the log offset `position`, a cursor behind a queue's end
    is a wrong one.
    """

    peer: bytes
    pull: Pull
    filter: Filter
    ends: dict[int, int]
    until_ms: int
    position: int
    cursors: dict[int, int]


class Answers(NamedTuple):
    """How the reader hears of an outcome: (peer, pull, slices, records) and (peer, pull, error).

    `room` says how many bytes an answer may have at the moment.
    """

    found: Callable[[bytes, Pull, list[QueueSlice], list[FoundRecords]], None]
    failed: Callable[[bytes, Pull, PenstockError | OSError], None]
    room: Callable[[], int]


class FilteredPulls:
    """All filtered pulls that have no answer yet, one for each consumer."""

    def __init__(self, queues: QueueReader, look_bytes: int, answers: Answers) -> None:
        self._queues = queues
        self._look_entries = max(1, look_bytes // CQ_ENTRY_BYTES)
        self._answers = answers
        self._wanted: dict[bytes, HeldPull] = {}
        # those that may have entries to look at, next first
        self._turns: OrderedDict[bytes, None] = OrderedDict()
        self._next_due_ms = 0
        self._queued = -1
        self._has_time: Callable[[], bool] = lambda: True

    def __len__(self) -> int:
        return len(self._wanted)

    def put(self, wanted: HeldPull) -> None:
        """Take a pull in place of the consumer's last one. Asked again, it changes nothing."""
        before = self._wanted.get(wanted.peer)
        if before is None or before.pull.request != wanted.pull.request:
            self._wanted[wanted.peer] = wanted
            self._turns[wanted.peer] = None
            self._next_due_ms = min(self._next_due_ms or wanted.until_ms, wanted.until_ms)

    def drop(self, peer: bytes) -> None:
        self._wanted.pop(peer, None)
        self._turns.pop(peer, None)

    def turn(self, queued: int, now_ms: Callable[[], int]) -> int:
        """Look for those that may have entries to look at: for all, if `queued` moved.

        How many looks that were; more than none means that there may be more to do at once.
        """
        moved, self._queued = queued != self._queued, queued
        if not self._wanted:
            return 0
        if moved:
            self._turns.update(dict.fromkeys(self._wanted))
        looks, began_ms = 0, now_ms()
        self._has_time = lambda: now_ms() - began_ms < TURN_MS
        while self._turns and looks < LOOKS_AT_ONCE and self._has_time():
            peer, _ = self._turns.popitem(last=False)
            looks += 1
            if self._look(self._wanted[peer]):
                self._turns[peer] = None
        if began_ms >= self._next_due_ms:
            for wanted in [each for each in self._wanted.values() if each.until_ms <= began_ms]:
                self._answer(wanted, {})
            self._next_due_ms = min((each.until_ms for each in self._wanted.values()), default=0)
        return looks

    def answer_all(self) -> None:
        """Tell everybody how far it has come: the reader stops."""
        for wanted in list(self._wanted.values()):
            self._answer(wanted, {})

    def _look(self, wanted: HeldPull) -> bool:
        """Look once; whether there is more to look at before an answer.

        A queue that cannot be read is an error for who asks for it, and for nobody else.
        """
        found: dict[int, FoundRecords] = {}
        try:
            complete, more = self._find(wanted, found)
        except FileNotFoundError as error:
            if self._has_expired(wanted):
                return True  # the cleaner moves the min offset before it deletes: look again
            self.drop(wanted.peer)
            self._answers.failed(wanted.peer, wanted.pull, error)
            return False
        except (PenstockError, OSError) as error:
            self.drop(wanted.peer)
            self._answers.failed(wanted.peer, wanted.pull, error)
            return False
        if complete:
            self._answer(wanted, found)
        return more and not complete

    def _has_expired(self, wanted: HeldPull) -> bool:
        queues = self._queues.queues(wanted.pull.topic)
        return any(
            queue_id in queues and cursor < self._queues.range(queues[queue_id])[0]
            for queue_id, cursor in wanted.cursors.items()
        )

    def _find(self, wanted: HeldPull, found: dict[int, FoundRecords]) -> tuple[bool, bool]:
        """(there is something to tell, there is more to look at). Moves the cursors on."""
        queues = self._queues.queues(wanted.pull.topic)
        complete, more = len(queues) > wanted.pull.known_queues, False
        left = self._look_entries
        left_bytes = min(max(wanted.pull.max_bytes, 1), MAX_PULL_BYTES, self._answers.room())
        for queue_id, cursor in list(wanted.cursors.items()):
            slot = queues.get(queue_id, -1)
            low, high = self._queues.range(slot) if slot >= 0 else (0, 0)
            end = wanted.ends.get(queue_id, NO_END)
            stop = min(high, end)
            if low <= cursor < stop and left > 0 and left_bytes > 0:
                until = min(stop, cursor + left)
                records, after = read_matching(
                    self._queues, slot, cursor, until, left_bytes, wanted.filter, self._has_time
                )
                complete = complete or after == cursor  # it is lost: see _answer
                left -= after - cursor
                left_bytes -= records.size
                # what has been looked at goes behind the others: no queue starves another
                del wanted.cursors[queue_id]
                wanted.cursors[queue_id] = cursor = after
                if records.size:
                    found[queue_id] = records
            complete = complete or cursor < low or cursor >= end or queue_id in found
            complete = complete or self._is_too_far(wanted, cursor, high)
            more = more or cursor < stop
        return complete, more

    def _answer(self, wanted: HeldPull, found: dict[int, FoundRecords]) -> None:
        """Say how far each queue has been looked through, with what has been found."""
        self.drop(wanted.peer)
        try:
            slices = [
                part
                for queue_id in wanted.cursors
                if (part := self._slice(wanted, queue_id, found))
            ]
        except (PenstockError, OSError) as error:
            self._answers.failed(wanted.peer, wanted.pull, error)
        else:
            records = [found[part.queue_id] for part in slices if part.queue_id in found]
            self._answers.found(wanted.peer, wanted.pull, slices, records)

    def _slice(
        self, wanted: HeldPull, queue_id: int, found: dict[int, FoundRecords]
    ) -> QueueSlice | None:
        began, cursor = wanted.pull.cursors[queue_id], wanted.cursors[queue_id]
        slot = self._queues.queues(wanted.pull.topic).get(queue_id, -1)
        low, high = self._queues.range(slot) if slot >= 0 else (0, 0)
        if cursor > began:
            size = found[queue_id].size if queue_id in found else 0
            # what it was shown has not expired, even if it has by now
            return QueueSlice(queue_id, cursor, min(low, began), high, size)
        if cursor < low:
            return QueueSlice(queue_id, cursor, low, high, 0)
        if cursor < high and (whole := self._queues.whole_from(slot, cursor)) > cursor:
            return QueueSlice(queue_id, cursor, whole, high, 0)
        if self._is_too_far(wanted, cursor, high):
            return QueueSlice(queue_id, high, low, high, 0)
        return None

    def _is_too_far(self, wanted: HeldPull, cursor: int, high: int) -> bool:
        return cursor > high and self._queued >= wanted.position


def read_matching(
    queues: QueueReader,
    slot: int,
    start: int,
    stop: int,
    max_bytes: int,
    chosen: Filter,
    has_time: Callable[[], bool] = lambda: True,
) -> tuple[FoundRecords, int]:
    """Records that match, of the entries from `start` to below `stop`; where to go on.

    About `max_bytes` of them but at least one, if any matches, all in one segment, and none behind
    one that is lost with a damaged part of the log. Nothing is copied. A condition may be long and
    the properties too: without time it ends behind a record, but not before the first.
    """
    raw = queues.entries(slot, start, stop)
    found = entries(raw)
    stop = start + len(found)  # a segment of the queue may end before
    sizes = found["size"]
    may = chosen.may_match(found["tags_code"].astype(np.int64)) & (sizes != BLANK_SIZE)
    picked = np.flatnonzero(may)
    matching = bytearray()
    left = max_bytes
    base, looked = -1, False
    for number, at, size in zip(
        picked.tolist(), found["offset"][picked].tolist(), sizes[picked].tolist(), strict=True
    ):
        is_full = matching and (left < size or queues.base_of(at) != base)
        if is_full or queues.is_damaged(at, size) or looked and not has_time():
            stop = start + number
            break
        looked = chosen.decided_by_broker
        if chosen.decided_by_broker and not chosen.matches(queues.view(at, at + size)):
            continue
        base = queues.base_of(at)
        left -= size
        matching += raw[number * CQ_ENTRY_BYTES : (number + 1) * CQ_ENTRY_BYTES]
    return queues.found_by(bytes(matching), max_bytes)[0], stop
