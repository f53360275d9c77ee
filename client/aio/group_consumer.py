"""The asyncio twin of penstock.client.groups.consumer.

The same thread talks to the broker, so a coroutine that blocks the event loop does not cost the
consumer its membership. Handlers are coroutines, and run in the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, suppress
from inspect import isawaitable
from typing import TYPE_CHECKING, Any
from weakref import ref

from penstock.client.aio.blocks import AioBlockOutputs, to_its_end
from penstock.client.aio.group_replies import AioReplies
from penstock.client.core import log
from penstock.client.core.arguments import check_at_least, check_timeout
from penstock.client.core.groups.member_core import Back
from penstock.client.core.groups.process_queue import Handful
from penstock.client.groups.consumer import CLOSE_S, MAX_POLL
from penstock.client.groups.control import GroupControl, not_committed
from penstock.client.groups.member import GroupMember
from penstock.client.groups.message import Batch, GroupMessage
from penstock.client.groups.stop_signals import stop_signals
from penstock.client.groups.workers import STILL_BUSY, check_handler, judge_into, report
from penstock.shared.errors import QueueUnreadable

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.groups.blocks import Holder

Handler = Callable[[Any], Awaitable[Any] | Any]


class GroupConsumer(GroupMember, GroupControl):
    """A member of a group, in a coroutine. See `penstock.client.GroupConsumer`.

    async with GroupConsumer(store="./store", group="billing", topics="orders") as consumer:
        async for message in consumer:
            await book(message.body)
            message.ack()
    """

    _told: asyncio.Event
    _tell: Callable[[], None]

    # the tasks of a `run`
    _crew: Collection[asyncio.Task[None]] = ()
    # a wait for blocks in flight, which goes on if its caller is cancelled
    _settling: asyncio.Future[bool] | None = None

    async def __aenter__(self) -> GroupConsumer:
        self._told = asyncio.Event()
        self._tell = _teller(asyncio.get_running_loop(), self._told)
        try:
            loop = await asyncio.to_thread(self._open)
        except BaseException:
            # if cancelled, the thread may have joined or still do so, although nobody wants it
            self._stopping = True
            if self._loop is not None:
                self._loop.begin_to_leave()
            raise
        with loop.lock:
            loop.listeners.add(self._tell)
        return self

    def _holder(self) -> Holder:
        task = asyncio.current_task()
        return super()._holder() if task is None else ref(task)

    async def _settle_blocks(self) -> None:
        """Wait until no block is in flight. Raises the broker's error."""
        while self._settling is not None or self._blocks is not None and self._blocks.is_busy:
            if self._settling is None:
                assert self._blocks is not None
                settle = self._blocks.settle
                self._settling = asyncio.ensure_future(asyncio.to_thread(settle))
            settling = self._settling
            try:
                await asyncio.shield(settling)
            finally:
                # else the next call waits for it
                if settling.done() and self._settling is settling:
                    self._settling = None

    async def _next(self, most: int, timeout: float | None) -> Handful | None:
        """What is to be handled next; None after the timeout, or when stopped."""
        loop = self.loop
        if self._blocks is not None and self._blocks.is_busy:
            with loop.lock:
                handful = self.take_handful(most)
            if handful is not None:
                return handful
            # until the blocks are stored, their inputs count as unfinished and may hold others up
            await self._settle_blocks()
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            self._told.clear()
            with loop.lock:
                handful = self.take_handful(most)
                if handful is not None:
                    loop.offer(loop.now_ms())
                    return handful
                if self._stopping or loop.closing:
                    return None
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return None
            try:
                # not wait_for, which loses a cancellation that comes together with a message
                async with asyncio.timeout(left):
                    await self._told.wait()
            except TimeoutError:
                return None

    async def __aiter__(self) -> AsyncIterator[GroupMessage]:
        self._live()
        with stop_signals(self.stop):
            while (handful := await self._next(self._pace.most, None)) is not None:
                handed_out, place = self._iterate(handful), handful.start
                began = time.perf_counter()
                try:
                    for message in handful.messages:
                        queue = handful.queue
                        going_on = self.loop.may_go_on(queue) and queue.holds(handful)
                        if self._stopping or not going_on:
                            break
                        handed_out.stop = place = place + 1
                        yield GroupMessage(message, handful, place - 1, self._judge)
                finally:
                    self._give_back_from(handful, place)
                self._pace.took(time.perf_counter() - began, len(handful))

    def _make_replies(self) -> AioReplies:
        return AioReplies(self._producer_arguments())

    def exactly_once(self, ahead: int = 0) -> AioBlockOutputs:
        """`async with consumer.exactly_once() as out: out.send(...)`: outputs are stored together
        with the offsets of what was returned and is not acknowledged. See the synchronous one."""
        return AioBlockOutputs(self._exactly_once, check_at_least("ahead", ahead, 0))

    async def run(
        self, handler: Handler, workers: int = 20, orderly: bool | None = None, batch: int = 1
    ) -> None:
        """Await `handler(message)` for each message, up to `workers` at once, until `stop` is
        called or the task is cancelled. Then running handlers end first, and the consumer is
        closed. An ordinary function runs in the event loop and holds it up. For the arguments see
        the synchronous consumer. `orderly` must be given earlier, because entering the block joins
        the group: GroupConsumer(..., orderly=True)."""
        check_handler(handler)
        check_at_least("workers", workers, 1)
        check_at_least("batch", batch, 1)
        if orderly is not None:
            self._be_orderly(orderly)

        async def work() -> None:
            while True:
                try:
                    handful = await self._next(batch, None)
                except QueueUnreadable:
                    continue  # it is logged, and that queue is tried again; the others go on
                if handful is None:
                    return
                await self._handle(handler, handful, batch)

        self._crew = crew = [asyncio.create_task(work()) for _ in range(workers)]
        try:
            with stop_signals(self.stop):
                # the first error ends all: handlers raise none here, so it is the broker's
                done, _ = await asyncio.wait(crew, return_when=asyncio.FIRST_EXCEPTION)
            error = next((each.exception() for each in done if each.exception()), None)
        finally:
            self.stop()
            try:
                _, busy = await asyncio.wait(crew, timeout=CLOSE_S)
                if busy:
                    log().warning(STILL_BUSY, self.loop, len(busy))
                await self.close(0 if busy else CLOSE_S)
            finally:
                # even if the task is cancelled once more, others must get its queues
                if self._loop is not None:
                    self._loop.begin_to_leave()
                self._crew = ()
        if error is not None:
            raise error

    async def _handle(self, handler: Handler, handful: Handful, batch: int) -> None:
        verdicts: dict[int, Back] = {}
        judge, place = judge_into(verdicts, self._judge), handful.start
        given: Any = Batch(handful, judge)
        try:
            if not self.loop.may_go_on(handful.queue):
                return
            returned = handler(given if batch > 1 else given[0])
            if isawaitable(returned):
                await returned
            place = handful.stop
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise
            # otherwise something that the handler awaited was cancelled: its own failure
            log().warning("the handler of %r has failed", handful.messages[0], exc_info=error)
            reason = f"{type(error).__name__}: {error}"
            verdicts.update({at: Back(at, 0, reason) for at in handful.unfinished})
            place = handful.stop
        finally:
            report(self.loop, handful, place, verdicts)

    async def poll(
        self, timeout: float | None = 1.0, most: int = MAX_POLL
    ) -> Sequence[GroupMessage]:
        """Up to `most` messages of one queue; empty after the timeout, or when stopped."""
        check_at_least("most", most, 1)
        self._live()
        handful = await self._next(most, check_timeout(timeout))
        return () if handful is None else self._keep(handful)

    async def poll_arrow(
        self,
        timeout: float | None = 1.0,
        most: int = MAX_POLL,
        columns: Sequence[str] | None = None,
    ) -> pa.RecordBatch:
        """The messages of one `poll` as rows. See `penstock.client.GroupConsumer.poll_arrow`."""
        from penstock.client.arrow.columns import Columns

        check_at_least("most", most, 1)
        made = Columns(columns, self._max_body_bytes)
        self._live()
        return self._keep_rows(await self._next(most, check_timeout(timeout)), made)

    async def commit(self, timeout: float | None = 10.0) -> None:
        """Commit everything that `poll` has returned. On return the broker knows, or the file of a
        broadcasting member has it.

        Raises BrokerTimeout, StoreUnavailable.
        """
        seconds = check_timeout(timeout)
        loop = self._live()
        await self._settle_blocks()
        with loop.lock:
            answered = self._begin_commit()
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            with loop.lock:
                if answered():
                    return
            if until is not None and time.monotonic() > until:
                raise not_committed(self._options.member.group, timeout)
            await asyncio.sleep(0.002)  # the other thread gets the answer within a few ms

    async def close(self, timeout: float | None = CLOSE_S) -> None:
        """Stop; wait up to `timeout` seconds for running handlers; hand the queues over. Called in
        a handler of `run`, it only stops."""
        check_timeout(timeout)
        if asyncio.current_task() in self._crew:
            self.stop()
            return
        self._stopping = True
        if not self._is_open:
            return
        loop, blocks, hurries = self.loop, self._blocks, True
        async with AsyncExitStack() as ending:
            # each runs even if others raise, the last one first
            ending.push_async_callback(self._end_replies)
            if blocks is not None:
                ending.push_async_callback(to_its_end, lambda: blocks.close(hurries))
            ending.push_async_callback(to_its_end, loop.stop)
            ending.callback(loop.begin_to_leave)
            if blocks is not None:
                await asyncio.to_thread(blocks.finish)
            with loop.lock:
                loop.listeners.discard(self._tell)
            self._take_back()
            await asyncio.to_thread(loop.drain, timeout)
            hurries = False

    async def _end_replies(self) -> None:
        if self._replies is not None:
            await self._replies.close()

    async def __aexit__(self, *raised: object) -> None:
        await self.close()


def _teller(events: asyncio.AbstractEventLoop, told: asyncio.Event) -> Callable[[], None]:
    """What the member's thread calls. It must not refer to the consumer, which could otherwise
    never be collected when it is forgotten."""

    def tell() -> None:
        with suppress(RuntimeError):  # the event loop is closed: nobody waits
            events.call_soon_threadsafe(told.set)

    return tell
