"""Queues that a producer leaves alone for a while, by the latency table of RocketMQ 5.x.

    what is known of a queue              the latency that counts
    a frame with messages of it answered  the time since the frame left
    it was refused                        EXCEPTION_MS

The largest latency of the table that is reached says how long the queue rests. While another queue
does not rest, a resting queue gets no message that may go to any queue. It still gets all messages
with a queue or a sharding key.

RocketMQ does this for brokers, of which a topic has several. Here there is only one, so the rule is
applied to its queues. A refusal does say something about the queue: it no longer exists, and each
frame with messages of it costs a session. A slow answer mostly says nothing about it: one writer
stores the frames of all queues and waits for one disk, so all queues in use rest together, and when
all rest, all have their turns. That is why this is off unless `send_latency_fault_enable` is on, as
with RocketMQ. RocketMQ's middle step, a broker that is reachable though not available, has no
meaning for a queue: what reaches one reaches all.

Pure: every call passes the time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator

# [MQFaultStrategy.latencyMax, notAvailableDuration]
LATENCY_MAX_MS = (50, 100, 550, 1800, 3000, 5000, 15000)
NOT_AVAILABLE_MS = (0, 0, 2000, 5000, 6000, 10000, 30000)
EXCEPTION_MS = 10_000


def rest_ms(latency_ms: int) -> int:
    """How long a queue rests after this latency."""
    row = bisect_right(LATENCY_MAX_MS, latency_ms)
    return NOT_AVAILABLE_MS[row - 1] if row else 0


class QueueFaults:
    """The queues of one producer that rest."""

    def __init__(self) -> None:
        # topic -> queue -> when it has rested enough
        self._until_ms: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._changed: set[str] = set()

    def note(self, topic: str, queues: Iterable[int], latency_ms: int, now_ms: int) -> None:
        """Note an answer's latency, or a refusal's. A rest never becomes shorter."""
        if not (rest := rest_ms(latency_ms)):
            return
        until_ms = self._until_ms[topic]
        for queue in queues:
            until_ms[queue] = max(until_ms.get(queue, 0), now_ms + rest)
        self._changed.add(topic)

    def changes(self, now_ms: int) -> Iterator[tuple[str, frozenset[int]]]:
        """The topics whose resting queues have changed since the last call, and those queues."""
        for topic, until_ms in list(self._until_ms.items()):
            for queue in [each for each, end_ms in until_ms.items() if end_ms <= now_ms]:
                del until_ms[queue]
                self._changed.add(topic)
            if not until_ms:
                del self._until_ms[topic]
        for topic in self._changed:
            yield topic, frozenset(self._until_ms.get(topic, ()))
        self._changed.clear()
