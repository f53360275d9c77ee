"""Which queue gets the next message that may go to any of its topic: all in turn.

Each queue that a frame has messages of costs the broker something, and so it does who reads them.
So those of one frame take turns among a few queues of their topic: those that have had the fewest,
the first of these in front. What one frame gives to one queue is all that two queues can ever
differ by; frames of one message each give one after the other. Knows no messages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from heapq import heappop, heappush
from itertools import compress, cycle, repeat
from operator import length_hint

# Messages that may go anywhere go to about so many queues, of all topics of a frame together.
QUEUES_OF_A_FRAME = 16
_MOST = 1 << 62


class _Few:
    """The queues of a topic that have their turns now, and how many turns were taken."""

    def __init__(self, had: list[tuple[int, int]], most: int) -> None:
        self.chosen = [heappop(had) for _ in range(min(most, len(had)))]
        self._left = repeat(True, _MOST)
        # one step in C for each message; how often it was taken, `repeat` knows
        self.turns = compress(cycle([queue for _, queue in self.chosen]), self._left)

    def give_back(self, had: list[tuple[int, int]]) -> None:
        """Put the queues back among the others, with what each has had now."""
        rounds, more = divmod(_MOST - length_hint(self._left), len(self.chosen))
        for place, (before, queue) in enumerate(self.chosen):
            heappush(had, (before + rounds + (place < more), queue))


class Turns:
    """The turns of one producer's topics, of those whose queues are known."""

    def __init__(self) -> None:
        # topic -> the queues of its next messages
        self.now: dict[str, Iterator[int]] = {}
        # topic -> (turns it has had, queue) of each queue, without those that have theirs: a heap
        self._had: dict[str, list[tuple[int, int]]] = {}
        self._few: dict[str, _Few] = {}

    def begin(self, topic: str, queues: int) -> None:
        """The topic has so many queues from now on."""
        self._had[topic] = [(0, queue) for queue in range(queues)]
        self._choose(topic, QUEUES_OF_A_FRAME)

    def go_on(self, topics: Collection[str]) -> None:
        """A frame takes no more messages; it has some of these topics."""
        share = max(1, QUEUES_OF_A_FRAME // max(1, len(topics)))
        for topic in topics:
            few = self._few[topic]
            if self._had[topic] or len(few.chosen) > share:  # else all have their turns, and go on
                few.give_back(self._had[topic])
                self._choose(topic, share)

    def _choose(self, topic: str, most: int) -> None:
        few = self._few[topic] = _Few(self._had[topic], most)
        self.now[topic] = few.turns
