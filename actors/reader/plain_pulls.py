"""Pulls for all messages: answered at once if there are some, otherwise held until there are.

Nearly every message reaches its consumer this way, so a pull is answered in one pass over its
queues. A held pull costs a comparison of arrays each time the queues have grown: thousands of
consumers may wait at the ends of their queues while others are served.

A consumer at the ends of its queues gives credit for several answers. Its pull is held again after
each, so that a message that comes alone wakes the reader once, and not for the next pull too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from msgspec.structs import replace

from penstock.actors.reader.held_pulls import (
    MAX_WAIT_MS,
    NEVER_MS,
    HeldPull,
    Outcome,
    moved,
    unreadable_queue,
)
from penstock.shared.errors import PenstockError
from penstock.shared.log.found_records import LEAST_DIRECT_BYTES, NOTHING, FoundRecords
from penstock.shared.queue.cursor_snapshot import CursorSnapshot
from penstock.shared.queue.fresh_records import FreshRecords
from penstock.shared.queue.reader import MAX_PULL_BYTES, QueueDeleted, QueueReader
from penstock.shared.wire.messages import QueueSlice


class PlainPulls:
    """All plain pulls that have no answer yet, one for each consumer."""

    def __init__(self, queues: QueueReader, fresh: FreshRecords, room: Callable[[], int]) -> None:
        """`room` says how many bytes an answer may have at the moment."""
        self._queues = queues
        self._fresh = fresh
        self._room = room
        self._held: dict[bytes, tuple[HeldPull, CursorSnapshot | None]] = {}
        # no pull's time is over before this; after an answer it may be earlier than needed
        self.due_ms = NEVER_MS
        self._queued = -1

    def __len__(self) -> int:
        return len(self._held)

    def put(self, held: HeldPull, queued: int, now_ms: int) -> Outcome | None:
        """Take a pull in place of the consumer's last one: its answer, or None if it waits.

        `queued` is the position of the queues, which may have moved since the last turn.
        """
        before = self._held.pop(held.peer, None)
        if before is not None and before[0].pull.request == held.pull.request:
            # the consumer asks again because no answer has come: that does not extend the wait
            held = held._replace(until_ms=min(held.until_ms, before[0].until_ms))
        is_to_wait = held.until_ms > now_ms
        outcome = self._answer(held, queued, final=not is_to_wait)
        if outcome is None:
            self._hold(held)
        elif is_to_wait:
            return self._hold_again(held, outcome, held.position, now_ms)
        return outcome

    def drop(self, peer: bytes) -> None:
        self._held.pop(peer, None)

    def clear(self) -> None:
        """All connections have closed."""
        self._held.clear()

    def waiting(self) -> list[HeldPull]:
        """The pulls that have no answer yet."""
        return [held for held, _ in self._held.values()]

    def turn(
        self, queued: int, news: Collection[str], acknowledged: int, now_ms: int
    ) -> Iterator[Outcome]:
        """Answer pulls for which there is something now, or whose time is over. `news` are topics
        that have fresh records, and `acknowledged` is how far the log is acknowledged.

        One at a time: how much of one answer was sent decides how much the next may have.
        """
        has_moved, self._queued = queued != self._queued, queued
        is_due = now_ms >= self.due_ms
        for held, standing in list(self._held.values()) if has_moved or news or is_due else ():
            final = held.until_ms <= now_ms
            # the consumer may have the newest messages already, before the queues have them
            is_late = queued < held.position
            is_at_ends = not has_moved or self._queues.is_at_ends(standing, or_past=is_late)
            if is_at_ends and not final and held.pull.topic not in news:
                continue
            outcome = self._answer(held, queued, final=final)
            if outcome is None:
                self._hold(held)
            else:
                del self._held[held.peer]
                yield self._hold_again(held, outcome, acknowledged, now_ms)
        if is_due:
            waiting = (held.until_ms for held, _ in self._held.values())
            self.due_ms = min(waiting, default=NEVER_MS)

    def answer_all(self) -> Iterator[Outcome]:
        """Tell all consumers that there is nothing: the reader stops."""
        for held, _ in self._held.values():
            outcome = self._answer(held, self._queued, final=True)
            assert outcome is not None
            yield outcome

    def answer_oldest(self) -> Outcome:
        """Tell the consumer that has waited longest that there is nothing: it asks again."""
        held, _ = self._held.pop(next(iter(self._held)))
        outcome = self._answer(held, self._queued, final=True)
        assert outcome is not None
        return outcome

    def _hold(self, held: HeldPull) -> None:
        """Keep a pull for which there is nothing now, to compare it when queues grow."""
        standing = self._queues.standing(held.pull.topic, held.pull.cursors)
        self._held[held.peer] = held, standing
        self.due_ms = min(self.due_ms, held.until_ms)

    def _hold_again(
        self, held: HeldPull, outcome: Outcome, acknowledged: int, now_ms: int
    ) -> Outcome:
        """Hold a pull again after this answer, if it has credit and will be at its queues' ends."""
        pull = held.pull
        if pull.credit <= 1 or not _is_short(outcome) or self._has_news(held):
            return outcome
        ends = {part.queue_id: part.next_offset for part in outcome.slices}
        again = replace(pull, cursors=pull.cursors | ends, credit=pull.credit - 1)
        until_ms = now_ms + min(pull.wait_ms, MAX_WAIT_MS)
        self._hold(HeldPull(held.peer, again, until_ms, acknowledged))
        return outcome._replace(credit=again.credit)

    def _has_news(self, held: HeldPull) -> bool:
        """Whether the topic has more queues than the consumer knows."""
        return len(self._queues.queues(held.pull.topic)) > held.pull.known_queues

    def _answer(self, held: HeldPull, queued: int, *, final: bool) -> Outcome | None:
        """The answer; None if there is nothing to tell, unless this is the last chance."""
        outcome = Outcome(held.peer, held.pull, [], [], [])
        self._find(held, queued >= held.position, outcome)
        if outcome.slices or outcome.unreadable or final or self._has_news(held):
            return outcome
        return None

    def _find(self, held: HeldPull, is_complete: bool, outcome: Outcome) -> None:
        """Look through the queues, and put what there is into the outcome."""
        pull = held.pull
        queues = self._queues.queues(pull.topic)
        left = min(max(pull.max_bytes, 1), MAX_PULL_BYTES, self._room())
        # every pull begins with another queue, so that no queue starves another
        order = sorted(pull.cursors)
        turn = pull.request % len(order) if order else 0
        for queue_id in order[turn:] + order[:turn]:
            slot = queues.get(queue_id, -1)
            cursor = pull.cursors[queue_id]
            span = low, high = self._queues.range(slot) if slot >= 0 else (0, 0)
            part, found = None, NOTHING
            try:
                if cursor >= high and slot >= 0 and left > 0:
                    newest = self._fresh.read(pull.topic, queue_id, cursor, left)
                    if newest is not None:
                        found, after, end = newest
                        part = QueueSlice(queue_id, cursor, after, low, end, found.size)
                # otherwise it is at its end, as are most queues of a consumer that keeps up
                if part is None and cursor != high:
                    part, found = self._read(slot, queue_id, cursor, span, left, is_complete)
            except QueueDeleted:
                continue  # the next look will not find it
            except (PenstockError, OSError) as error:
                outcome.unreadable.append(unreadable_queue(held, queue_id, error))
                continue
            if part is not None:
                outcome.slices.append(part)
            if found.size:
                outcome.records.append(found)
                left -= found.size

    def _read(
        self,
        slot: int,
        queue_id: int,
        cursor: int,
        span: tuple[int, int],
        left: int,
        is_complete: bool,
    ) -> tuple[QueueSlice | None, FoundRecords]:
        """What a queue's files have for this cursor, or where it must go."""
        low, high = span
        if low <= cursor < high:
            if left <= 0:
                return None, NOTHING
            try:
                found, after = self._queues.read(slot, cursor, left)
            except FileNotFoundError as error:
                # expired meanwhile: the cleaner moves the min offset before it deletes
                span = self._queues.range(slot)
                if isinstance(error, QueueDeleted) or cursor >= span[0]:
                    raise
            else:
                if after > cursor:
                    return QueueSlice(queue_id, cursor, after, low, high, found.size), found
        return moved(self._queues, slot, queue_id, cursor, span, is_complete), NOTHING


def _is_short(outcome: Outcome) -> bool:
    """Whether an answer has everything there was, and little: its consumer keeps up."""
    size = sum([part.size for part in outcome.slices])
    is_all = all([part.next_offset == part.max_offset for part in outcome.slices])
    return is_all and 0 < size < LEAST_DIRECT_BYTES and not outcome.unreadable
