"""Retries: a frame that is sent again is looked for in the log before it is stored.

    put() -> turn(), turn(), ... -> a frame, without what an earlier try of it has stored

A frame is stored with one store to `wrote`, and a power failure cuts the log from its end: so if
only a part of the frame is left, it is its beginning. An exception is an actor that packs other
frames than its predecessor did: any record of a frame may be there, and the actor marks the frame
as `scattered`. A block that works exactly once is there whole or not at all.

A search takes up to seconds if much was stored since. So each producer with a retry gets a step in
its turn, and others are served in between. Frames that a producer sends after a retry wait for it,
because they are stored in their order. The writer gets the result and stores it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.actors.writer.frame_check import CheckedFrame
from penstock.actors.writer.retry_index import RetryIndex
from penstock.actors.writer.send_queue import BUSY_RETRY_MS
from penstock.shared.errors import BrokerBusy, PenstockError
from penstock.shared.wire.messages import Append, StoredRun

# For one producer, and for all. A producer's own limit never refuses its first frame; the limit for
# all refuses nothing while nothing waits.
MAX_WAITING_BYTES, MAX_WAITING_FRAMES = 8 << 20, 64
MAX_ALL_BYTES = 64 << 20
# The index is forgotten this long after the last retry.
MEMORY_MS = 8000
# Messages of a frame to look for in one step.
_FOUND_AT_ONCE = 64


class _Waiting(NamedTuple):
    frame: CheckedFrame
    looking: Iterator[tuple[StoredRun, ...] | None]


class Looked(NamedTuple):
    """A frame that may be stored now, or why it cannot be."""

    frame: CheckedFrame
    error: PenstockError | None


class Retries:
    """Frames to look for, and those that their producers sent after them."""

    def __init__(self, index: RetryIndex, wrote: Callable[[], int]) -> None:
        """`wrote` says where the log ends."""
        self._index = index
        self._wrote = wrote
        # producer -> its frames, oldest first; the producer whose turn it is comes first
        self._waiting: OrderedDict[int, deque[_Waiting]] = OrderedDict()
        self.size_bytes = 0
        self._last_ms = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __contains__(self, producer: int) -> bool:
        return producer in self._waiting

    def put(self, frame: CheckedFrame, stored_after: int) -> None:
        """Take a frame. If it is a retry, its first copy cannot be before `stored_after`.

        Raises BrokerBusy if too much waits; then the frame is not taken.
        """
        waiting = self._waiting.get(frame.request.producer)
        if waiting is not None or self.size_bytes:
            own_bytes = sum(len(each.frame.data) for each in waiting or ())
            is_full = len(waiting or ()) >= MAX_WAITING_FRAMES
            is_full |= bool(waiting) and own_bytes + len(frame.data) > MAX_WAITING_BYTES
            if is_full or self.size_bytes + len(frame.data) > MAX_ALL_BYTES:
                raise BrokerBusy(
                    "more is sent again than is looked for at a time",
                    f"{own_bytes} bytes of this producer wait, {self.size_bytes} in all",
                    "the message is not stored, send it later",
                    retry_after_ms=BUSY_RETRY_MS,
                )
        # copied: while it waits, the next frame from a ring overwrites the buffer of this one
        frame = frame._replace(data=memoryview(bytes(frame.data)))
        looking = self._look(frame, stored_after) if frame.request.retry else iter([()])
        self._waiting.setdefault(frame.request.producer, deque()).append(_Waiting(frame, looking))
        self.size_bytes += len(frame.data)

    def drop_before(self, producer: int, session: int) -> None:
        """The producer has begun this session, and sends frames of older ones again."""
        self._keep(producer, lambda request: request.session >= session)

    def drop_behind(self, refused: Append) -> None:
        """This frame was turned away: its producer sends it again, with all that followed it."""
        self._keep(refused.producer, lambda request: request.seq < refused.seq)

    def _keep(self, producer: int, is_wanted: Callable[[Append], bool]) -> None:
        waiting = self._waiting.get(producer, ())
        kept = deque(each for each in waiting if is_wanted(each.frame.request))
        if len(kept) < len(waiting):
            self.size_bytes -= sum(len(each.frame.data) for each in waiting)
            self.size_bytes += sum(len(each.frame.data) for each in kept)
            self._waiting[producer] = kept
            if not kept:
                del self._waiting[producer]

    def turn(self, now_ms: int) -> Looked | None:
        """One step for one producer; returns its frame once the search for it is over."""
        self._last_ms = now_ms
        producer, waiting = next(iter(self._waiting.items()))
        self._waiting.move_to_end(producer)
        frame, looking = waiting[0]
        try:
            stored = next(looking)
        except PenstockError as error:
            self._take(producer, waiting)
            return Looked(frame, error)
        if stored is None:
            return None
        self._take(producer, waiting)
        return Looked(frame.without(stored) if stored else frame, None)

    def release_deleted(self, now_ms: int) -> None:
        """Free memory that nobody needs; to be called every second or so."""
        self._index.mark(self._wrote())
        if now_ms - self._last_ms > MEMORY_MS and not self._waiting:
            self._index.forget()

    def _take(self, producer: int, waiting: deque[_Waiting]) -> None:
        self.size_bytes -= len(waiting.popleft().frame.data)
        if not waiting:
            del self._waiting[producer]

    def _look(
        self, frame: CheckedFrame, stored_after: int
    ) -> Iterator[tuple[StoredRun, ...] | None]:
        """None for each step, then where the frame's stored records are."""
        wrote = self._wrote()
        for _ in self._index.cover(min(stored_after, wrote), wrote):
            yield None
        scattered = frame.request.scattered and frame.move is None
        stored: list[StoredRun] = []
        for number, place in enumerate(self._index.places(frame.data, frame.starts)):
            if place is not None:
                stored.append(StoredRun(number, *place))
            elif not scattered:
                break
            if number % _FOUND_AT_ONCE == _FOUND_AT_ONCE - 1:
                yield None
        yield tuple(stored)
