"""A member of a consumer group, from ordinary, synchronous code.

Three ways to work with it, of which a program chooses one:

    for message in consumer: ...; message.ack()         one after the other, or message.retry()
    consumer.run(handler, workers=20)                   handlers in threads
    batch = consumer.poll(1.0); ...; consumer.commit()  by hand: seek, pause, resume, assign

A thread of its own (member_loop.py) talks to the broker. Not across a fork.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from penstock.client.core.arguments import check_at_least, check_timeout, check_whole
from penstock.client.core.groups.member_core import Back
from penstock.client.core.groups.process_queue import Handful
from penstock.client.group_member import GroupMember
from penstock.client.group_message import Batch, GroupMessage
from penstock.client.group_workers import Handler, Pace, Workers, settle
from penstock.client.stop_signals import stop_signals
from penstock.shared.errors import BrokerTimeout, InvalidArgument

MAX_POLL = 1000
# How long a consumer that is closed waits for handlers that run.
CLOSE_S = 30.0
Partition = tuple[str, int]


class GroupConsumer(GroupMember):
    """Reads topics together with the other members of its group: each queue has one reader.

        with GroupConsumer(store="./store", group="billing", topics="orders") as consumer:
            for message in consumer:
                book(message.body)
                message.ack()

    See GroupMember for the arguments. The member joins with the first message that is asked for,
    and leaves when the block ends, or by Ctrl-C or SIGTERM after the message in hand.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._pace = Pace()
        # what `poll` has returned and nobody has acknowledged: `commit` does
        self._polled: list[Handful] = []
        self._iterated: Handful | None = None

    # --- one after the other ---

    def __iter__(self) -> Iterator[GroupMessage]:
        self._open()
        with stop_signals(self.stop):
            while True:
                handful = self.next_handful(self._pace.most, None)
                if handful is None:
                    return
                self._iterated = handful
                began = time.perf_counter()
                yield from self._each(handful)
                self._pace.took(time.perf_counter() - began, len(handful))

    def _each(self, handful: Handful) -> Iterator[GroupMessage]:
        queue, judge, place = handful.queue, self._judge, handful.start
        try:
            for message in handful.messages:
                # after `retry` in an orderly queue the others wait for it, and come again
                if self._stopping or queue.dropped or not queue.holds(handful):
                    return
                place += 1
                yield GroupMessage(message, handful, place - 1, judge)
        finally:
            # also where the caller breaks off: the rest is for its next loop, or for others
            self._give_back_from(handful, place)

    def _give_back_from(self, handful: Handful, place: int) -> None:
        loop, queue = self.loop, handful.queue
        with loop.lock:
            if place < handful.stop and queue.holds(handful):
                loop.core.untouched(queue.cut(handful, place), loop.now_ms())
                settle(loop, loop.core, queue)

    # --- by handlers ---

    def run(self, handler: Handler, workers: int = 20, batch: int = 1) -> None:
        """Call `handler(message)` for each message, in `workers` threads, until `stop` is called.

        To return is to acknowledge. An exception sends the message back, with its text as the
        property RETRY_REASON; so does `message.retry(...)`, after which the handler returns. With
        `batch` the handler is given up to that many neighbours of a queue at once. An orderly
        consumer has one handler for a queue at a time; one that fails is called again with the same
        message, and after the group's maximum that is a dead letter.

        Ctrl-C and SIGTERM stop it, when it runs in the main thread: handlers end, offsets are
        committed, and the queues go to the other members. The consumer is closed then.
        """
        check_at_least("workers", workers, 1)
        check_at_least("batch", batch, 1)
        self._open()
        crew = Workers(self, handler, workers, batch)
        crew.start()
        try:
            with stop_signals(self.stop), self.loop.lock:
                self.loop.changed.wait_for(lambda: self._stopping or crew.error is not None)
        finally:
            self.stop()
            # a second Ctrl-C leaves at once; what handlers still do is handled again by others
            crew.join(CLOSE_S)
            self.close()
        if crew.error is not None:
            raise crew.error

    # --- by hand ---

    def poll(self, timeout: float | None = 1.0, most: int = MAX_POLL) -> Sequence[GroupMessage]:
        """Up to `most` messages of one queue, waiting up to `timeout` seconds for the first (None:
        until there is one); empty when there is none, or the consumer was stopped.

        They are in hand until `commit`, or until each was acknowledged or sent back by itself.
        Raises what the broker has refused with.
        """
        check_at_least("most", most, 1)
        self._open()
        handful = self.next_handful(most, check_timeout(timeout))
        if handful is None:
            return ()
        self._polled.append(handful)
        return Batch(handful, self._judge)

    def commit(self, timeout: float | None = 10.0) -> None:
        """Everything that `poll` has returned is done, and what was acknowledged is: on return the
        broker knows, and nobody is given it again.

        Queues that are no longer this member's are left out: others go on where it was heard last.
        Raises BrokerTimeout.
        """
        seconds = check_timeout(timeout)
        loop = self._open()
        with loop.lock:
            core = loop.core
            polled, self._polled = self._polled, []
            for handful in polled:
                core.done(handful, handful.start, handful.stop)
            wanted = core.offsets
            held = {name: core.queues[name] for name in wanted}
            core.commit(loop.now_ms())
            loop.wake()

            def answered() -> bool:
                known = core.membership.committed
                return loop.ended or all(
                    known.get(name, -1) >= offset or core.queues.get(name) is not held[name]
                    for name, offset in wanted.items()
                )

            if not loop.changed.wait_for(answered, seconds):
                raise BrokerTimeout(
                    "offsets have not been committed",
                    f"group {core.options.group}, {timeout} s",
                    "they are still being sent: commit again; penstock status shows the broker",
                )

    @property
    def assignment(self) -> dict[Partition, int]:
        """The queues that are this member's, (topic, queue), and how far each is done."""
        with self.loop.lock:
            return self.loop.core.offsets

    @property
    def committed(self) -> dict[Partition, int]:
        """How far the broker has answered that queues are done: nobody is given it again."""
        with self.loop.lock:
            return dict(self.loop.core.membership.committed)

    def seek(self, topic: str, queue_id: int, offset: int) -> None:
        """Go on at another offset of a queue that is this member's. What was returned of it and is
        not committed does not count any more. Raises InvalidArgument.
        """
        check_at_least("offset", offset, 0)
        with self.loop.lock:
            self._check_own([(topic, queue_id)])
            self.loop.core.seek((topic, queue_id), offset)
            self.loop.wake()

    def pause(self, *queues: Partition) -> None:
        """Return nothing more of these queues, (topic, queue), until `resume`; of all without any.

        They stay this member's. Raises InvalidArgument.
        """
        self._pause(queues, True)

    def resume(self, *queues: Partition) -> None:
        """Go on with paused queues; with all without any."""
        self._pause(queues, False)

    def _pause(self, queues: Iterable[Partition], paused: bool) -> None:
        with self.loop.lock:
            core = self.loop.core
            chosen = list(queues)
            self._check_own(chosen)
            core.pause(chosen or list(core.queues), paused)
            self.loop.wake()

    def assign(self, queues: Mapping[str, Iterable[int]] | None) -> None:
        """Have these queues of these topics, and no others of them, whoever else is a member; None:
        divide them with the others again. A queue that another member has is waited for.
        """
        chosen = None
        if queues is not None:
            chosen = {
                topic: frozenset(check_whole("a queue", each) for each in ids)
                for topic, ids in queues.items()
            }
        loop = self._open()
        with loop.lock:
            loop.core.assign(chosen)
            loop.wake()

    def _check_own(self, queues: Iterable[Partition]) -> None:
        own = self.loop.core.queues
        for each in queues:
            if each not in own:
                names = ", ".join(f"{topic}/{queue}" for topic, queue in sorted(own))
                raise InvalidArgument(
                    "this queue is not the member's", f"{each[0]}/{each[1]}", f"it has: {names}"
                )

    # --- the end ---

    def _judge(self, handful: Handful, place: int, back: Back | None) -> None:
        """A message that was iterated or polled is done, or is to come again."""
        loop, core = self.loop, self.loop.core
        with loop.lock:
            if back is not None and core.options.orderly:
                core.failed(handful, back, loop.now_ms())
            elif back is not None:
                core.back(handful, back, loop.now_ms(), loop.wall_ms())
            elif place < 0:
                core.done(handful, handful.start, handful.stop)
            else:
                core.done(handful, place, place + 1)
            settle(loop, core, handful.queue)

    def close(self, timeout: float | None = CLOSE_S) -> None:
        """Stop; wait up to `timeout` seconds for handlers that run; commit, hand the queues over.

        What was iterated or polled and never acknowledged goes to the other members.
        """
        check_timeout(timeout)
        self._stopping = True
        if not self._is_open:
            return
        with self.loop.lock:
            core = self.loop.core
            for handful in (*self._polled, *([self._iterated] if self._iterated else [])):
                if handful.queue.holds(handful):
                    core.untouched(handful, self.loop.now_ms())
            self._polled, self._iterated = [], None
        self.loop.drain(timeout)
        self.loop.stop()

    def __enter__(self) -> GroupConsumer:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
