"""The messages of one queue that a member has in hand: RocketMQ's ProcessQueue, with runs instead
of a tree.

    put() -> waiting -> take() -> in hand -> finish()      -> committed below the oldest unfinished
                  ^                   |
                  +---- give_back() --+   later, or at once

Messages arrive in the queue's order and may be finished in any order. An offset is committed only
when all messages below it are finished, so one that hangs holds the offset back. Messages finished
above it are handled again after a crash, and only then. Pure: times are passed in.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator

from penstock.client.core.message import Message

# A queue at one of these limits is not pulled until fewer wait. [pullThresholdForQueue etc.]
MAX_MESSAGES = 1000
MAX_BYTES = 100 << 20
MAX_SPAN = 2000

# `given_ms` of a message on its way back to the broker: it is in no handler's hands, and never old.
NOBODY_MS = 1 << 62


class Lot:
    """Messages that came together, and which of them are finished, a byte each."""

    __slots__ = ("messages", "size", "finished", "left", "given")

    def __init__(self, messages: list[Message], size: int) -> None:
        self.messages, self.size = messages, size
        self.finished = bytearray(len(messages))
        self.left = len(messages)
        # how many, from the first on, have been handed out at least once
        self.given = 0


class Handful:
    """Adjacent messages of a lot, in somebody's hands since `given_ms`."""

    __slots__ = ("queue", "lot", "start", "stop", "given_ms", "parted")

    def __init__(self, queue: ProcessQueue, lot: Lot, start: int, stop: int, given_ms: int) -> None:
        self.queue, self.lot = queue, lot
        self.start, self.stop, self.given_ms = start, stop, given_ms
        # places that have become handfuls of their own
        self.parted: set[int] = set()

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def messages(self) -> list[Message]:
        lot = self.lot
        if len(self) == len(lot.messages):
            return lot.messages
        return lot.messages[self.start : self.stop]

    @property
    def unfinished(self) -> Iterator[int]:
        """The places in the lot that are unfinished."""
        at = self.start
        while (at := self.lot.finished.find(0, at, self.stop)) >= 0:
            if at not in self.parted:
                yield at
            at += 1

    @property
    def is_finished(self) -> bool:
        return next(self.unfinished, -1) < 0

    def part(self, place: int) -> Handful:
        """Split off the message at this place of the lot, on its way back to the broker."""
        self.parted.add(place)
        return Handful(self.queue, self.lot, place, place + 1, NOBODY_MS)


class ProcessQueue:
    """One queue's messages between pull and commit."""

    def __init__(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        epoch: int,
        orderly: bool,
        given: int | None = None,
    ) -> None:
        """`given` is the offset that came with the claim, if the queue does not go on there."""
        self.topic, self.queue_id, self.epoch = topic, queue_id, epoch
        self.given = offset if given is None else given
        self._orderly = orderly
        self._lots: deque[Lot] = deque()
        # the lots that have messages which were never handed out
        self._fresh: deque[Lot] = deque()
        self._again: list[tuple[int, Lot, int, int]] = []
        # a dict for its order, that of handing out
        self._in_hand: dict[Handful, None] = {}
        self._next = offset
        self.count = self.bytes = 0
        # set when nothing of the queue may be handed out or handled any more
        self.dropped = False
        # an orderly queue whose handler has failed waits until then
        self.suspended_until_ms = 0
        # queue offset -> how often the handler has failed here, on top of what the record says
        self.failures: dict[int, int] = {}

    # --- in ---

    def put(self, messages: list[Message], size: int, stop: int) -> None:
        """Take pulled messages: `size` bytes of records with offsets below `stop`."""
        if messages:
            lot = Lot(messages, size)
            self._lots.append(lot)
            self._fresh.append(lot)
            self.count += len(messages)
            self.bytes += size
        self._next = stop

    def is_full(self, max_messages: int, max_bytes: int, max_span: int) -> bool:
        """Whether the queue is not to be pulled now. Orderly queues have no gaps to bound."""
        if self.count >= max_messages or self.bytes >= max_bytes:
            return True
        return not self._orderly and self._lots != deque() and self.span >= max_span

    @property
    def span(self) -> int:
        """The distance from the oldest unfinished message to the newest message, in offsets."""
        if not self._lots:
            return 0
        newest = self._lots[-1].messages[-1].queue_offset
        return newest - self.committable

    # --- out ---

    def has_work(self, now_ms: int) -> bool:
        """Whether `take` would give something."""
        if self.dropped or now_ms < self.suspended_until_ms or self._orderly and self._in_hand:
            return False
        if self._orderly and self._again:
            return self._again[0][0] <= now_ms  # nothing overtakes the oldest
        return bool(self._fresh) or any(due <= now_ms for due, *_ in self._again)

    def due_ms(self) -> int:
        """When a waiting message is next to be handed out; 1 << 62 if nothing waits."""
        again = self._again[:1] if self._orderly else self._again
        times = [max(due, self.suspended_until_ms) for due, *_ in again]
        if self._fresh and not (self._orderly and again):
            times.append(self.suspended_until_ms)
        return min(times, default=1 << 62)

    def take(self, most: int, now_ms: int) -> Handful | None:
        """Hand out up to `most` messages, returned ones first; None if there is nothing."""
        if not self.has_work(now_ms):
            return None
        if (old := self._take_again(most, now_ms)) is not None:
            return self._hand_out(*old, now_ms)
        if not self._fresh:
            return None
        lot = self._fresh[0]
        start, stop = lot.given, min(len(lot.messages), lot.given + most)
        lot.given = stop
        if stop == len(lot.messages):
            self._fresh.popleft()
        return self._hand_out(lot, start, stop, now_ms)

    def _take_again(self, most: int, now_ms: int) -> tuple[Lot, int, int] | None:
        """Adjacent messages that were given back, are due, and are unfinished still. Runs that are
        finished as a whole are no longer in the list: see `_finish`."""
        for place, (due, lot, start, stop) in enumerate(self._again):
            if due > now_ms:
                continue
            del self._again[place]
            first = lot.finished.find(0, start, stop)
            end = lot.finished.find(1, first, stop)
            cut = min(stop if end < 0 else end, first + most)
            if lot.finished.find(0, cut, stop) >= 0:
                self._again.insert(place, (due, lot, cut, stop))
            return lot, first, cut
        return None

    def _hand_out(self, lot: Lot, start: int, stop: int, now_ms: int) -> Handful:
        handful = Handful(self, lot, start, stop, now_ms)
        self._in_hand[handful] = None
        return handful

    @property
    def has_returned(self) -> bool:
        """Whether a message waits that was handed out before."""
        return bool(self._again)

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it is in anybody's hands."""
        return not self._in_hand

    @property
    def is_sent_back(self) -> bool:
        """Whether a message is on its way back to the broker."""
        return any(each.given_ms == NOBODY_MS for each in self._in_hand)

    def held_since(self, before_ms: int) -> list[Handful]:
        """The handfuls that were handed out before that time."""
        return [each for each in self._in_hand if each.given_ms < before_ms]

    # --- finished, or not ---

    def finish(self, handful: Handful, start: int, stop: int) -> None:
        """The messages at these places of its lot are done. Those done already stay so, and those
        that were split off are left out."""
        lot = handful.lot
        for place in sorted(handful.parted):
            if start <= place < stop:
                self._finish(lot, start, place)
                start = place + 1
        self._finish(lot, start, stop)
        if self.failures:
            done_below = self.committable
            self.failures = {at: n for at, n in self.failures.items() if at >= done_below}
        if handful.is_finished:
            self._in_hand.pop(handful, None)

    def _finish(self, lot: Lot, start: int, stop: int) -> None:
        if start >= stop:
            return
        fresh = lot.finished.count(0, start, stop)
        if fresh:
            lot.finished[start:stop] = b"\1" * (stop - start)
            lot.left -= fresh
            self.count -= fresh
            if self._again:  # a handler may end after its messages were given back
                self._again = [
                    (due, lot, start, stop)
                    for due, lot, start, stop in self._again
                    if lot.finished.find(0, start, stop) >= 0
                ]
            self._drop_finished()

    def part(self, handful: Handful, place: int) -> Handful:
        """Send one message of a handful back to the broker; the others may be finished without it.
        It stays in hand until its next record is stored, however long that takes."""
        single = handful.part(place)
        self._in_hand[single] = None
        if handful.is_finished:
            self._in_hand.pop(handful, None)
        return single

    def cut(self, handful: Handful, place: int) -> Handful:
        """Move the messages from this place on into a handful of their own, and return that."""
        rest = Handful(self, handful.lot, place, handful.stop, handful.given_ms)
        rest.parted = handful.parted
        handful.stop = place
        self._in_hand[rest] = None
        if handful.is_finished:
            self._in_hand.pop(handful, None)
        return rest

    def holds(self, handful: Handful) -> bool:
        """Whether the handful is still in hand and was not taken back."""
        return handful in self._in_hand

    def give_back(self, handful: Handful, due_ms: int) -> None:
        """Have its unfinished messages handed out again from that time on, in their order."""
        if self._in_hand.pop(handful, self) is self:
            return  # the handful was taken back before
        runs: list[list[int]] = []
        for at in handful.unfinished:
            if runs and runs[-1][1] == at:
                runs[-1][1] += 1
            else:
                runs.append([at, at + 1])
        back = [(due_ms, handful.lot, start, stop) for start, stop in runs]
        # orderly: only one handful is out at a time, so what comes back is the oldest
        self._again = back + self._again if self._orderly else self._again + back

    def _drop_finished(self) -> None:
        while self._lots and not self._lots[0].left:
            self.bytes -= self._lots.popleft().size

    def unfinished_below(self, offset: int) -> int:
        """How many messages below that offset are not done, whoever has them."""
        count = 0
        for lot in self._lots:
            if lot.messages[0].queue_offset >= offset:
                break
            stop = bisect_left(lot.messages, offset, key=_offset_of)
            count += lot.finished.count(0, 0, stop)
        return count

    @property
    def committable(self) -> int:
        """All below this offset is done."""
        if not self._lots:
            return self._next
        lot = self._lots[0]
        return lot.messages[lot.finished.find(0)].queue_offset


def _offset_of(message: Message) -> int:
    return message.queue_offset
