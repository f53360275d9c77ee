"""What a group's member has handed out since its last block, for exactly-once blocks.

The member's thread runs meanwhile, so all of this happens under its lock. A queue may have gone to
another member while its messages were worked on. Then the broker decides which of the two members
stores its block, and nothing more is reported of the queue here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.client.core.blocks import Input, Queue
from penstock.client.core.groups.process_queue import Handful, ProcessQueue
from penstock.client.groups.member_loop import MemberLoop
from penstock.client.groups.workers import settle
from penstock.shared.errors import InvalidArgument

# How long a message that was given back by itself may hold up a block until its retry is stored.
RETRY_S = 10.0

if TYPE_CHECKING:
    import asyncio  # a client with threads does not load it
    from weakref import ref

    # The thread or task that asks for messages. It is a weak reference, so that a consumer that is
    # forgotten does not live as long as its task.
    Holder = ref[Thread | asyncio.Task[Any]]


class HandedOut:
    """What one holder was given: the places of a handful below `stop`."""

    __slots__ = ("handful", "stop", "holder")

    def __init__(self, handful: Handful, stop: int, holder: Holder) -> None:
        self.handful, self.stop, self.holder = handful, stop, holder

    @property
    def may_work_on_it(self) -> bool:
        """Whether the holder still runs."""
        holder = self.holder()
        if isinstance(holder, Thread):
            return holder.is_alive()
        return holder is not None and not holder.done()


class _Part(NamedTuple):
    """What is in hand of a queue: some places of a handful, all below `stop`."""

    handful: Handful
    stop: int
    places: list[int]


class GroupInputs:
    """One member's inputs, in the form that ExactlyOnce wants."""

    def __init__(self, loop: MemberLoop, in_hand: Callable[[], list[HandedOut]]) -> None:
        """`in_hand` returns what was handed out."""
        self._loop = loop
        self._in_hand = in_hand
        self._parts: list[_Part] = []
        self._ends: dict[ProcessQueue, int] = {}
        # what belongs to blocks in flight: handful -> the place up to which it does; queue -> where
        # their inputs end, and how many messages these are
        self._taken: dict[Handful, int] = {}
        self._sent: dict[ProcessQueue, tuple[int, int]] = {}

    def inputs(self) -> Mapping[Queue, Input] | None:
        """What is in hand. None if some of it is from a queue that was given back and claimed
        again, or that the program has moved: outputs do not say which inputs they come from, so
        the rest alone cannot be stored. Raises InvalidArgument if messages before it are not done,
        or if several threads or tasks have some of it.
        """
        loop = self._loop
        with loop.lock:
            self._parts = []
            queues: dict[ProcessQueue, tuple[int, int]] = {}
            holders: set[Holder] = set()
            for handed_out in self._in_hand():
                handful = handed_out.handful
                stop = min(handed_out.stop, handful.stop)
                queue = handful.queue
                start = self._taken.get(handful, handful.start)
                places = [each for each in handful.unfinished if start <= each < stop]
                if not places or not queue.holds(handful):
                    continue
                if loop.core.queues.get((queue.topic, queue.queue_id), queue) is not queue:
                    return None
                if handed_out.may_work_on_it:
                    holders.add(handed_out.holder)
                self._parts.append(_Part(handful, stop, places))
                end = handful.lot.messages[places[-1]].queue_offset + 1
                before, count = queues.get(queue, (0, 0))
                queues[queue] = max(before, end), count + len(places)

            if len(holders) > 1:
                raise InvalidArgument(
                    "several threads or tasks have the inputs of one block",
                    f"{len(holders)} have asked this consumer for messages",
                    "give each of them a consumer of its own",
                )

            def is_whole() -> bool:
                return all(
                    queue.dropped
                    or queue.unfinished_below(end) <= count + self._sent.get(queue, (0, 0))[1]
                    for queue, (end, count) in queues.items()
                )

            if not loop.changed.wait_for(is_whole, RETRY_S):
                raise InvalidArgument(
                    "messages before the block's inputs are in somebody's hands",
                    ", ".join(f"{queue.topic}/{queue.queue_id}" for queue in queues),
                    "end each block before the next message is asked for, or acknowledge the rest",
                )
            self._ends = {queue: end for queue, (end, _) in queues.items()}
            return {
                (queue.topic, queue.queue_id): Input(
                    max(queue.committable, self._sent.get(queue, (0, 0))[0]),
                    end,
                    queue.epoch,
                    queue.given,
                )
                for queue, end in self._ends.items()
            }

    def on_way(self) -> list[_Part]:
        """What `inputs` returned now belongs to a block that is sent, and not to the next one."""
        parts, self._parts = self._parts, []
        for handful, stop, places in parts:
            self._taken[handful] = stop
            _, count = self._sent.get(handful.queue, (0, 0))
            self._sent[handful.queue] = self._ends[handful.queue], count + len(places)
        return parts

    def _arrived(self, parts: Sequence[_Part]) -> None:
        """These parts no longer belong to a block in flight."""
        for handful, stop, places in parts:
            if self._taken.get(handful) == stop:
                del self._taken[handful]
            end, count = self._sent[handful.queue]
            if count > len(places):
                self._sent[handful.queue] = end, count - len(places)
            else:
                del self._sent[handful.queue]

    def done(self, parts: Sequence[_Part]) -> None:
        """The block of these parts is stored."""
        loop = self._loop
        with loop.lock:
            self._arrived(parts)
            for handful, stop, _ in parts:
                loop.core.done(handful, handful.start, stop)
                settle(loop, loop.core, handful.queue)

    def go_on(self, offsets: Mapping[Queue, int], parts: Sequence[Sequence[_Part]]) -> None:
        """Hand out these queues from these offsets on. What is in hand of them does not count."""
        with self._loop.lock:
            for some in parts:
                self._arrived(some)
                for part in some:
                    queue = part.handful.queue
                    at = offsets.get((queue.topic, queue.queue_id), queue.committable)
                    self._take_back(part.handful, at)
            self._loop.wake()

    def back(self) -> None:
        """Hand out again what is in hand, and what came after it in its queues. No block may be in
        flight."""
        with self._loop.lock:
            for handful in [each.handful for each in self._in_hand()]:
                if handful.queue.holds(handful):
                    self._take_back(handful, handful.queue.committable)
            self._parts, self._taken, self._sent = [], {}, {}
            self._loop.wake()

    def _take_back(self, handful: Handful, offset: int) -> None:
        """Take the handful from its holder. Its queue goes on at `offset` if it is still this
        member's."""
        queue = handful.queue
        queue.give_back(handful, 0)
        name = queue.topic, queue.queue_id
        if self._loop.core.queues.get(name) is queue:
            self._loop.core.seek(name, offset)
