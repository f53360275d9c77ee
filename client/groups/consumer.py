"""A member of a consumer group, from ordinary, synchronous code.

Three ways to work with it, of which a program chooses one:

    for message in consumer: ...; message.ack()         one after the other, or message.retry()
    consumer.run(handler, workers=20)                   handlers in threads
    batch = consumer.poll(1.0); ...; consumer.commit()  by hand: seek, pause, resume, assign

A thread of its own (member_loop.py) talks to the broker. Not to be used across a fork.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from penstock.client.core.arguments import check_at_least, check_timeout
from penstock.client.core.groups.process_queue import Handful
from penstock.client.groups.control import GroupControl, not_committed
from penstock.client.groups.exactly_once import BlockOutputs
from penstock.client.groups.member import GroupMember
from penstock.client.groups.message import GroupMessage
from penstock.client.groups.replies import Replies
from penstock.client.groups.stop_signals import stop_signals
from penstock.client.groups.workers import Handler, Workers, check_handler

if TYPE_CHECKING:
    import pyarrow as pa

MAX_POLL = 1000
# How long a closing consumer waits for running handlers.
CLOSE_S = 30.0


class GroupConsumer(GroupMember, GroupControl):
    """Reads topics together with the other members of its group: each queue has one reader.

        with GroupConsumer(store="./store", group="billing", topics="orders") as consumer:
            for message in consumer:
                book(message.body)
                message.ack()

    See GroupMember for the arguments. The member joins when the first message is asked for, and
    leaves when the block ends, or on Ctrl-C or SIGTERM after the message in hand.
    """

    # the threads of a `run`
    _crew: Workers | None = None

    # --- one after the other ---

    def __iter__(self) -> Iterator[GroupMessage]:
        self._open()
        with stop_signals(self.stop):
            while True:
                handful = self._next(self._pace.most, None)
                if handful is None:
                    return
                began = time.perf_counter()
                yield from self._each(handful)
                self._pace.took(time.perf_counter() - began, len(handful))

    def _each(self, handful: Handful) -> Iterator[GroupMessage]:
        queue, judge, place = handful.queue, self._judge, handful.start
        handed_out = self._iterate(handful)
        try:
            for message in handful.messages:
                # after `retry` in an orderly queue the rest waits for that message, and comes again
                going_on = self.loop.may_go_on(queue) and queue.holds(handful)
                if self._stopping or not going_on:
                    return
                handed_out.stop = place = place + 1
                yield GroupMessage(message, handful, place - 1, judge)
        finally:
            # also if the caller breaks off: the rest is for its next loop, or for other members
            self._give_back_from(handful, place)

    def _make_replies(self) -> Replies:
        return Replies(self._producer_arguments())

    # --- exactly once ---

    def exactly_once(self, ahead: int = 0) -> BlockOutputs:
        """A block whose outputs are stored together with the offsets of its inputs, or not at all.

            for message in consumer:
                with consumer.exactly_once() as out:
                    out.send("bills", bill_of(message.body))

        The inputs are all messages that `poll` or the iteration has returned and that are not
        acknowledged; the block acknowledges them. When it ends, it is on disk. If the block raises,
        nothing is stored and its inputs come again. They take effect exactly once, whatever process
        is killed; if another member has done them meanwhile, `out.stored` is False.

        A block takes a round trip and a flush, so large batches of `poll` are fastest. With `ahead`
        the end of the block does not wait for the disk: that many blocks may be in flight while the
        next ones are worked on. They are stored in order. If one is not stored, those after it are
        taken back, and the next call raises its error. `out.stored`, `commit` and `close` wait for
        them. Raises InvalidArgument.
        """
        return BlockOutputs(self._exactly_once(), check_at_least("ahead", ahead, 0))

    # --- by handlers ---

    def run(
        self, handler: Handler, workers: int = 20, orderly: bool | None = None, batch: int = 1
    ) -> None:
        """Call `handler(message)` for each message, in `workers` threads, until `stop` is called.

        Returning acknowledges. An exception sends the message back, with its text as the property
        RETRY_REASON; so does `message.retry(...)`, after which the handler returns. With `batch`
        the handler is given up to that many consecutive messages of a queue at once. An orderly
        consumer runs one handler per queue at a time; one that fails is called again with the same
        message, which becomes a dead letter after the group's maximum. `orderly` replaces the
        consumer's argument of that name, if it has not joined yet. Raises InvalidArgument.

        In the main thread, Ctrl-C and SIGTERM stop it: handlers end, offsets are committed, the
        queues go to the other members, and the consumer is closed.
        """
        check_handler(handler)
        check_at_least("workers", workers, 1)
        check_at_least("batch", batch, 1)
        if orderly is not None:
            self._be_orderly(orderly)
        self._open()
        crew = self._crew = Workers(self, handler, workers, batch)
        try:
            crew.start()
            with stop_signals(self.stop), self.loop.lock:
                self.loop.changed.wait_for(lambda: self._stopping or crew.error is not None)
        finally:
            self.stop()
            try:
                self.close(CLOSE_S if crew.join(CLOSE_S) else 0)
            finally:
                # a second Ctrl-C leaves at once; others handle again what handlers still have
                self.loop.begin_to_leave()
                self._crew = None
        if crew.error is not None:
            raise crew.error

    # --- by hand ---

    def poll(self, timeout: float | None = 1.0, most: int = MAX_POLL) -> Sequence[GroupMessage]:
        """Up to `most` messages of one queue. Waits up to `timeout` seconds for the first (None:
        without limit); empty if there is none, or if the consumer was stopped.

        They are in hand until `commit`, or until each is acknowledged or sent back by itself.
        Raises the broker's refusals.
        """
        check_at_least("most", most, 1)
        self._open()
        handful = self._next(most, check_timeout(timeout))
        return () if handful is None else self._keep(handful)

    def poll_arrow(
        self,
        timeout: float | None = 1.0,
        most: int = MAX_POLL,
        columns: Sequence[str] | None = None,
    ) -> pa.RecordBatch:
        """The messages of one `poll` as rows, as in `penstock.client.Consumer.poll_arrow`. They are
        in hand like those of `poll`: `commit` acknowledges them, but none can be sent back by
        itself. If a row cannot be made, the messages come again."""
        from penstock.client.arrow.columns import Columns

        check_at_least("most", most, 1)
        made = Columns(columns, self._max_body_bytes)
        self._open()
        return self._keep_rows(self._next(most, check_timeout(timeout)), made)

    def _next(self, most: int, timeout: float | None) -> Handful | None:
        """The next handful. It may have to wait for blocks in flight, because their inputs count as
        unfinished until they are stored."""
        if self._blocks is not None and self._blocks.is_busy:
            handful = self.next_handful(most, 0)
            if handful is not None:
                return handful
            self._blocks.settle()
        return self.next_handful(most, timeout)

    def commit(self, timeout: float | None = 10.0) -> None:
        """Commit everything that `poll` has returned or that was acknowledged. On return the broker
        knows, and nobody is given it again.

        Queues that are no longer this member's are left out: others go on where its last commit
        was. A broadcasting member writes its file instead. Raises BrokerTimeout, and
        StoreUnavailable if that file cannot be written.
        """
        seconds = check_timeout(timeout)
        loop = self._open()
        if self._blocks is not None:
            self._blocks.settle()
        with loop.lock:
            answered = self._begin_commit()
            if not loop.changed.wait_for(answered, seconds):
                raise not_committed(self._options.member.group, timeout)

    # --- the end ---

    def close(self, timeout: float | None = CLOSE_S) -> None:
        """Stop; wait up to `timeout` seconds for running handlers; commit, hand the queues over.

        Messages that were iterated or polled and never acknowledged go to the other members. Raises
        the first error of replies whose futures nobody has asked about. Called in a handler of
        `run`, it only stops: `run` does the rest when its handlers have returned.
        """
        check_timeout(timeout)
        if self._crew is not None and self._crew.is_this_thread:
            self.stop()
            return
        self._stopping = True
        if not self._is_open:
            return
        blocks, hurries = self._blocks, True
        with ExitStack() as ending:
            # each runs even if others raise, the last one first
            ending.callback(self._end_replies)
            if blocks is not None:
                ending.callback(lambda: blocks.close(hurries))
            ending.callback(self.loop.stop)
            if blocks is not None:
                blocks.finish()
            self._take_back()
            self.loop.drain(timeout)
            hurries = False

    def _end_replies(self) -> None:
        if self._replies is not None:
            self._replies.close()

    def __enter__(self) -> GroupConsumer:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
