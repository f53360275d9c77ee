"""Which queue gets the next message that may go to any queue of its topic: each in turn.

Every distinct queue in a frame costs work in the broker and in the consumers. So the messages of
one frame take turns among only a few queues of their topic: those that have had the fewest turns,
the lowest rank first. Two queues never differ by more than one frame gives to one queue; frames of
one message each go through the queues one by one. The first queue is random, as in RocketMQ:
otherwise many producers of few messages would all fill the same queue.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from heapq import heapify, heappop, heappush, heappushpop
from itertools import compress, cycle, repeat
from operator import length_hint

# A frame's messages that may go to any queue are spread over this many, for all topics together.
QUEUES_OF_A_FRAME = 16
_MOST = 1 << 62


# The turns that a queue has had, its rank, its number. Of queues with equal turns, the lowest rank
# is next. A plain tuple, because many are made for each frame and a named one is several times
# slower.
_Had = tuple[int, int, int]


def any_queue(queues: int) -> int:
    """A random queue, by the system: programs that seed `random` alike must not choose alike."""
    return int.from_bytes(os.urandom(8)) % queues


class _Few:
    """The queues of a topic that have their turns now, and how many turns were taken."""

    __slots__ = ("chosen", "turns", "_left")

    def __init__(self, chosen: list[_Had]) -> None:
        self.chosen = chosen
        # one step in C for each message; the length hint of `repeat` tells how many were taken
        self.turns: Iterator[int]
        if len(chosen) == 1:
            self.turns = self._left = repeat(chosen[0][2], _MOST)
        else:
            self._left = repeat(1, _MOST)
            self.turns = compress(cycle([queue for _, _, queue in chosen]), self._left)

    def give_back(self, had: list[_Had]) -> None:
        """Put the queues back among the others, with the turns that each has had."""
        rounds, more = divmod(_MOST - length_hint(self._left), len(self.chosen))
        for place, (before, rank, queue) in enumerate(self.chosen):
            heappush(had, (before + rounds + (place < more), rank, queue))

    def exchange(self, had: list[_Had]) -> _Few:
        """Put the one queue back, and take the queue whose turn it is then."""
        before, rank, queue = self.chosen[0]
        turns = before + _MOST - length_hint(self._left)
        return _Few([heappushpop(had, (turns, rank, queue))])


class RoundRobin:
    """The turns of those topics of one producer whose queues are known."""

    def __init__(self, first: Callable[[int], int] = any_queue) -> None:
        """`first` chooses the queue to begin with, given the number of a topic's queues."""
        self._first = first
        # topic -> the queues of its next messages
        self.now: dict[str, Iterator[int]] = {}
        # topic -> a heap of its queues, without those that have their turns now
        self._had: dict[str, list[_Had]] = {}
        self._few: dict[str, _Few] = {}
        # topic -> its resting queues, which have no turns while there are others
        self._resting: dict[str, frozenset[int]] = {}

    def begin(self, topic: str, queues: int) -> None:
        """The topic has this many queues from now on."""
        first = self._first(queues)
        self._had[topic] = [(0, rank, (first + rank) % queues) for rank in range(queues)]
        self._choose(topic, QUEUES_OF_A_FRAME)

    def end(self, topic: str) -> None:
        """The topic's queues are no longer known."""
        for each in (self.now, self._had, self._few):
            each.pop(topic, None)

    def go_on(self, topics: Collection[str]) -> None:
        """A frame with messages of these topics takes no more of them: choose the next queues."""
        share = max(1, QUEUES_OF_A_FRAME // max(1, len(topics)))
        for topic in topics:
            few = self._few.get(topic)
            if few is None:
                continue  # no longer known, or a system topic in which messages wait
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
        # A queue that has rested goes on where the others are and does not catch up: that would
        # give it more than its share right after it was in trouble.
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
