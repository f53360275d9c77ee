"""Records that have come and are not taken yet, part by part, and how many bytes may wait so."""

from __future__ import annotations

from collections import deque

from penstock.client.core.message import Part

PULL_BYTES = 1 << 20
# While this much waits to be taken, no more is asked for: one answer in hand, one in flight.
AHEAD_BYTES = 2 << 20
# The same limits if an answer only says where records are. Such an answer costs the same however
# many there are, so more are asked for at once.
DIRECT_PULL_BYTES = 2 << 20
DIRECT_AHEAD_BYTES = 3 << 20


def pull_bytes(direct: bool) -> int:
    """How many bytes one pull asks for."""
    return DIRECT_PULL_BYTES if direct else PULL_BYTES


class RecordsAtHand:
    """Parts in the order in which they came, which within each queue is the queue's own."""

    def __init__(self) -> None:
        self._parts: deque[Part] = deque()
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def is_enough(self, direct: bool) -> bool:
        """Whether no more is to be asked for."""
        return self.size_bytes >= (DIRECT_AHEAD_BYTES if direct else AHEAD_BYTES)

    @property
    def first(self) -> Part:
        """The part to be taken next; there must be one."""
        return self._parts[0]

    @property
    def starts(self) -> dict[int, int]:
        """The first offset at hand of each queue that has any."""
        return {part.queue_id: part.start for part in reversed(self._parts)}

    def put(self, part: Part) -> None:
        self._parts.append(part)
        self.size_bytes += part.size

    def pop(self) -> None:
        """Remove the first part, which is taken."""
        self.size_bytes -= self._parts.popleft().size

    def split_first(self, *pieces: Part) -> None:
        """Replace the first part by these pieces, which together have all of its bytes."""
        self._parts.popleft()
        self._parts.extendleft(reversed(pieces))

    def drop(self, queue_id: int | None = None) -> dict[int, int]:
        """Forget all parts, or those of one queue. Returns what `starts` had for them."""
        gone = [part for part in self._parts if queue_id in (None, part.queue_id)]
        self._parts = deque(part for part in self._parts if queue_id not in (None, part.queue_id))
        self.size_bytes -= sum([part.size for part in gone])
        return {part.queue_id: part.start for part in reversed(gone)}
