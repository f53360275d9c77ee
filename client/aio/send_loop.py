"""The asyncio producer's side of its socket: a task that sends, and what happens to it at the end.

    opened -> told to close -> closed
       \\-> the event loop ends, and cancels the task -> it sends what was accepted -> closed
       \\-> the event loop ends without a word -> what was accepted is sent by the process's exit

Everything runs on the event loop except the last case, in which a SendLoop takes over.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Any

import zmq
import zmq.asyncio

from penstock.client.connecting.broker_address import BrokerAddress
from penstock.client.connecting.lost_connection import LostConnection
from penstock.client.core.sending.frames import Receipt
from penstock.client.core.sending.producer_core import ProducerCore
from penstock.client.sending import leaving
from penstock.client.sending.send_loop import GRACE_S, SendLoop, ended
from penstock.client.sending.settled import Settled
from penstock.shared.clock import Clock
from penstock.shared.errors import StoreUnavailable
from penstock.shared.wire.sockets import PRODUCE_ANSWER_BYTES, dial


class AioSendLoop:
    """Owns socket, context and task of one asyncio producer, from `start` to its end."""

    def __init__(
        self,
        core: ProducerCore,
        settled: Settled,
        address: BrokerAddress,
        timeout_ms: int,
        clock: Clock,
    ) -> None:
        self._core, self._settled = core, settled
        self._address, self._timeout_ms = address, timeout_ms
        self._clock = clock
        self._changed = asyncio.Event()
        # whether something is to be sent, and the future that the task sleeps on
        self._wanted = False
        self._woken: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        # set once the event loop has told the task to end
        self._cancelled = False
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<asyncio producer of {self._address.name}>"

    def start(self) -> None:
        """Begin, on the running event loop."""
        self._context: Any = zmq.asyncio.Context(io_threads=1)
        self._socket = dial(self._context, self._address.endpoint, PRODUCE_ANSWER_BYTES)
        self._lost = LostConnection(self._socket)
        self._task = asyncio.create_task(self._run(), name="penstock-producer")
        # callers that wait for a change must see that none will come any more
        self._task.add_done_callback(lambda task: self._changed.set())
        leaving.enter(self)

    def check_usable(self) -> None:
        """Raises StoreUnavailable if nothing can be sent."""
        if self._closed:
            if self._pid != os.getpid():
                what, hint = "the producer belongs to another process", "make one after the fork"
            else:
                what, hint = "the producer is closed", "make another one: Producer(endpoint)"
            raise StoreUnavailable(what, self._address.name, hint)
        if self._task is not None and self._task.done():
            raise StoreUnavailable("the producer's task has ended", self._address.name)

    def want(self) -> None:
        """Wake the task, as something is to be sent."""
        self._wanted = True
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def next_change(self) -> None:
        """Wait until anything has come in or was given up."""
        self._changed.clear()
        await self._changed.wait()

    async def settle_all(self) -> None:
        """Wait until every message has its outcome."""
        while self._core.intake.unsettled:
            self.check_usable()
            await self.next_change()
        await asyncio.sleep(0)  # tasks that await an outcome run before the one that waits for all

    async def close(self) -> None:
        """Wait for outcomes as long as the timeout allows, and disconnect. If cancelled, disconnect
        at once."""
        if self._closed or self._task is None:
            return
        try:
            with suppress(TimeoutError, StoreUnavailable):
                async with asyncio.timeout(self._timeout_ms / 1000 + GRACE_S):
                    await self.settle_all()
        except asyncio.CancelledError:
            await self._disconnect()
            self.leave()
            raise
        await self._disconnect()

    # --- the task ---

    async def _run(self) -> None:
        try:
            await self._talk()
        except asyncio.CancelledError:
            if self._closed:
                raise
            # the event loop is about to end and waits for this task, so accepted messages are sent
            self._cancelled = True
            try:
                await self._talk()
            finally:
                self._close()
                self._tell()
            raise
        except BaseException as error:
            self._close(error)  # else nothing would settle the messages without an outcome
            raise

    async def _talk(self) -> None:
        """Send and receive until cancelled, or until all is settled if the event loop is to end."""
        while self._core.intake.unsettled or not self._cancelled:
            now_ms = self._clock.monotonic_ms()
            if self._core.routes.aim.away:
                self._address.follow(self._socket, self._core.routes.aim, now_ms)
                self._lost.dial_again(self._address.endpoint, now_ms)
            self._wanted = False
            for parts in list(self._core.outgoing(now_ms)):
                try:
                    await self._socket.send_multipart(parts, zmq.NOBLOCK)
                except zmq.Again:
                    self._core.not_connected(now_ms)
                    break
                self._core.timeouts.connected = True
            await self._sleep(self._core.wait_ms(now_ms))
            now_ms = self._clock.monotonic_ms()
            while await self._socket.poll(0):
                answer = await self._socket.recv_multipart()
                self._core.received(answer, now_ms)
            self._core.tick(now_ms)
            self._changed.set()

    async def _sleep(self, wait_ms: int) -> None:
        """Sleep until something comes in, something is to be sent, or the time is over."""
        if self._wanted:
            return
        loop = asyncio.get_running_loop()
        self._woken = loop.create_future()
        incoming = asyncio.ensure_future(self._socket.poll(wait_ms))
        try:
            await asyncio.wait({incoming, self._woken}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not loop.is_closed():
                incoming.cancel()
                self._woken.cancel()

    async def _disconnect(self) -> None:
        assert self._task is not None
        self._closed = True
        try:
            self._task.cancel()
            await asyncio.wait({self._task})
        finally:
            self._close()

    def _close(self, error: BaseException | None = None) -> None:
        self._end(error)
        self._lost.close()
        self._socket.close()
        self._context.term()

    def _end(self, error: BaseException | None = None) -> None:
        """Fail every message without an outcome."""
        leaving.discard(self)
        self._closed = True
        self._core.fail_all(ended(self._address.name, error))

    # --- when the process ends ---

    def finish(self) -> None:
        """Send what is left, from the caller's thread unless the event loop runs in another."""
        assert self._task is not None
        loop = self._task.get_loop()
        if loop.is_running():
            asyncio.run_coroutine_threadsafe(self.close(), loop).result()
            return
        # else asyncio would warn that the task is pending, although its work is done here
        self._task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio has no public way
        if not self._cancelled and self._core.intake.unsettled:
            sends = SendLoop(
                self._core, self._settled, self._address, self._timeout_ms, self._clock
            )
            sends.finish_here()

    def leave(self) -> None:
        """Give up messages without an outcome, and log failures that nobody has seen."""
        self._end()
        self._tell()
        task = self._task
        if task is not None and not task.done() and not task.get_loop().is_running():
            # Nothing will resume the task, so close its coroutine, and with it the socket, here,
            # while modules can still be imported, and not when the interpreter is torn down.
            coroutine = task.get_coro()
            assert coroutine is not None
            coroutine.close()

    def _tell(self) -> None:
        if lost := self._core.failures.take():
            lost.log(f"leaving {self!r}")

    def forked(self) -> None:
        """This is the child of a fork, in which nothing runs the task."""
        self._closed = True


class Unawaited:
    """The failure of a send, as long as nobody has awaited it."""

    def __init__(self, future: asyncio.Future[Receipt]) -> None:
        self._future = future

    @property
    def seen(self) -> bool:
        # asyncio's own mark that nobody has looked; cleared below, it does not log each failure
        return not self._future._log_traceback

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self._future.exception()
