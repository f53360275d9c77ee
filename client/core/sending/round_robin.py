"""Which queue gets the next message that may go to any of its topic: all in turn.

Every distinct queue in a frame costs the broker some work, and the consumers too. So the messages
of one frame take turns among a few queues of their topic: those that have had the fewest, the
lowest rank first. What one frame gives to one queue is all that two queues can ever differ by;
frames of one message each give one after the other. Which queue is the first is left to chance, as
in RocketMQ: else many producers of few messages would fill one queue.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from heapq import heapify, heappop, heappush, heappushpop
from itertools import compress, cycle, repeat
from operator import length_hint

# Queues that a frame's messages without a queue of their own are spread over, all topics together.
QUEUES_OF_A_FRAME = 16
_MOST = 1 << 62


# The turns that a queue has had, its rank, its number: of those with as many turns the lower rank
# is next. One is made for each topic of each frame, and a named tuple takes several times as long.
_Had = tuple[int, int, int]


def any_queue(queues: int) -> int:
    """A random queue, from the system: programs that seed `random` alike must not agree on it."""
    return int.from_bytes(os.urandom(8)) % queues


class _Few:
    """The queues of a topic that have their turns now, and how many turns were taken."""

    __slots__ = ("chosen", "turns", "_left")

    def __init__(self, chosen: list[_Had]) -> None:
        self.chosen = chosen
        # one step in C for each message; how often it was taken, `repeat` knows
        self.turns: Iterator[int]
        if len(chosen) == 1:
            self.turns = self._left = repeat(chosen[0][2], _MOST)
        else:
            self._left = repeat(1, _MOST)
            self.turns = compress(cycle([queue for _, _, queue in chosen]), self._left)

    def give_back(self, had: list[_Had]) -> None:
        """Put the queues back among the others, with what each has had now."""
        rounds, more = divmod(_MOST - length_hint(self._left), len(self.chosen))
        for place, (before, rank, queue) in enumerate(self.chosen):
            heappush(had, (before + rounds + (place < more), rank, queue))

    def exchange(self, had: list[_Had]) -> _Few:
        """Put the one queue back, and take the one whose turn it is then."""
        before, rank, queue = self.chosen[0]
        turns = before + _MOST - length_hint(self._left)
        return _Few([heappushpop(had, (turns, rank, queue))])


class RoundRobin:
    """The turns of one producer's topics, of those whose queues are known."""

    def __init__(self, first: Callable[[int], int] = any_queue) -> None:
        """`first`: from the number of a topic's queues the one it begins with."""
        self._first = first
        # topic -> the queues of its next messages
        self.now: dict[str, Iterator[int]] = {}
        # topic -> its queues without those that have their turns now: a heap
        self._had: dict[str, list[_Had]] = {}
        self._few: dict[str, _Few] = {}
        # topic -> its queues that have no turns while there are others
        self._resting: dict[str, frozenset[int]] = {}

    def begin(self, topic: str, queues: int) -> None:
        """The topic has this many queues from now on."""
        first = self._first(queues)
        self._had[topic] = [(0, rank, (first + rank) % queues) for rank in range(queues)]
        self._choose(topic, QUEUES_OF_A_FRAME)

    def end(self, topic: str) -> None:
        """The topic's queues are not known any more."""
        for each in (self.now, self._had, self._few):
            each.pop(topic, None)

    def go_on(self, topics: Collection[str]) -> None:
        """A frame takes no more messages; it has some of these topics."""
        share = max(1, QUEUES_OF_A_FRAME // max(1, len(topics)))
        for topic in topics:
            few = self._few.get(topic)
            if few is None:
                continue  # not known any more, or one in which messages wait for another topic
            had = self._had[topic]
            if len(few.chosen) == share == 1 and topic not in self._resting:
                # a frame of many topics may have some hundreds of these
                few = self._few[topic] = few.exchange(had)
                self.now[topic] = few.turns
            elif had or len(few.chosen) > share:  # else all have their turns, and go on
                few.give_back(had)
                self._choose(topic, share)

    def rest(self, topic: str, resting: frozenset[int]) -> None:
        """From now on these queues have no turns, unless they are all that there are."""
        if (few := self._few.get(topic)) is None:
            return
        few.give_back(had := self._had[topic])
        # one that has rested begins where the others are, and does not catch up: that would be more
        # than its share, right after it was in trouble
        back = self._resting.get(topic, frozenset()) - resting
        least = min((turns for turns, _, queue in had if queue not in back | resting), default=0)
        had[:] = [
            (max(turns, least) if queue in back else turns, rank, queue)
            for turns, rank, queue in had
        ]
        heapify(had)
        if resting:
            self._resting[topic] = resting
        else:
            self._resting.pop(topic, None)
        self._choose(topic, QUEUES_OF_A_FRAME)

    def _choose(self, topic: str, most: int) -> None:
        had, resting = self._had[topic], self._resting.get(topic, frozenset())
        aside = [each for each in had if each[2] in resting] if resting else []
        if 0 < len(aside) < len(had):
            had[:] = [each for each in had if each[2] not in resting]
            heapify(had)
        else:
            aside = []
        few = self._few[topic] = _Few([heappop(had) for _ in range(min(most, len(had)))])
        self.now[topic] = few.turns
        for each in aside:
            heappush(had, each)
