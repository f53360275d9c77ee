"""A producer's ring in shared memory: asked for, held, filled with frames, given up.

    none -> asked for -> held -> none

A producer asks the broker for a ring once it has sent enough to be worth one. If the broker
refuses, it asks again later; if the ring's file cannot be found on this machine, it never asks
again. Frames go through the socket if there is no ring, or if the ring has no room for them.

A frame's bytes must not change until it is answered, or until a new session is open, because then
the writer takes nothing from earlier sessions. This also holds for a frame whose messages have
timed out: the writer may still be reading it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.client.core import log
from penstock.shared.errors import RingUnavailable
from penstock.shared.faults import crash_point
from penstock.shared.memory.ring_space import RingSpace
from penstock.shared.wire.messages import OpenRing, RingOpened, RingSpan, Welcome, encode

if TYPE_CHECKING:
    import mmap

# A smaller frame costs no more through the socket.
LEAST_FRAME_BYTES = 32 << 10
# A producer that has sent this much in larger frames wants a ring.
ENOUGH_BYTES = 512 << 10
# The pause after a refusal, or without an answer.
ASK_AGAIN_MS = 5000


class FrameRing:
    """One producer's ring, or none. Without `wanted` there never is one."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted and sys.platform == "linux"
        self._sent_bytes = 0
        # whether the broker has rings, and the writer's generation
        self._offered, self._generation = False, -1
        self._asked = self._asked_ms = 0
        self._number = 0
        self._map: mmap.mmap | None = None
        # frame -> its offset in the ring
        self._offsets: dict[int, int] = {}

    @property
    def is_held(self) -> bool:
        return self._map is not None

    def outgoing(self, producer: int, now_ms: int, number: Callable[[], int]) -> list[tuple[bytes]]:
        """The request for a ring, if it is time for one."""
        if self._map is not None or not self._offered or self._sent_bytes < ENOUGH_BYTES:
            return []
        if self._asked_ms and now_ms < self._asked_ms + ASK_AGAIN_MS:
            return []
        self._asked, self._asked_ms = number(), now_ms
        return [(encode(OpenRing(self._asked, producer)),)]

    def opened(self, answer: RingOpened) -> None:
        """Take the ring, if this is the answer to the last request and its file is found here."""
        if self._map is not None or answer.request != self._asked:
            return
        self._asked = 0
        # imported here: other systems lack what it needs, and small producers need no ring at all
        from penstock.shared.memory.ring_file import take_ring

        try:
            found = take_ring(answer.run_id, answer.ring, answer.size, answer.token)
        except RingUnavailable as error:
            log().debug("frames go through the socket: %s", error)
            self._wanted = self._offered = False
            return
        self._map, self._view = found, memoryview(found)
        self._space, self._number = RingSpace(answer.size), answer.ring

    def refused(self, request: int) -> bool:
        """Whether this was the request for a ring."""
        return request == self._asked

    def session_open(self, welcome: Welcome) -> None:
        """The writer takes nothing from earlier sessions any more. A new writer has no rings."""
        self._offsets.clear()
        if welcome.generation != self._generation:
            self.close()
            self._generation, self._asked_ms = welcome.generation, 0
        self._offered = self._wanted and welcome.rings
        if self._map is not None:
            self._space.clear()

    def room(self, frame: int, size: int) -> memoryview | None:
        """Room for a frame of at most `size` bytes; None: it goes through the socket."""
        if size < LEAST_FRAME_BYTES:
            return None
        self._sent_bytes += size
        if self._map is None:
            return None
        offset = self._space.take(size)
        if offset < 0:
            return None
        self._offsets[frame] = offset
        return self._view[offset : offset + size]

    def filled(self, frame: int, length: int) -> RingSpan:
        """The frame that was last given room is written and has `length` bytes."""
        crash_point("ring.filled")
        self._space.shorten(length)
        return RingSpan(self._number, self._offsets[frame], length)

    def answered(self, frame: int) -> None:
        """The writer no longer reads this frame."""
        offset = self._offsets.pop(frame, None)
        if offset is not None:
            self._space.give_back(offset)

    def close(self) -> None:
        """Give the ring up, if there is one."""
        self._offsets.clear()
        if self._map is not None:
            self._view.release()
            self._map.close()
            self._map = None
