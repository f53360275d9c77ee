"""Handlers in threads: each takes a handful, calls the handler for each message, and reports.

A handful is large enough to keep a worker busy for a moment, judging by earlier messages: one if
the handler is slow, hundreds if it does next to nothing, so that locks and threads cost little.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from penstock.client.core import log
from penstock.client.core.arguments import wrong_type
from penstock.client.core.groups.member_core import Back, MemberCore
from penstock.client.core.groups.process_queue import Handful
from penstock.client.groups.member_loop import MemberLoop
from penstock.client.groups.message import Batch, GroupMessage, Judge
from penstock.shared.errors import InvalidArgument, QueueUnreadable

# How long a handful should take, and how large it may be.
BUSY_S = 0.002
MAX_HANDFUL = 512
Handler = Callable[[Any], Any]
STILL_BUSY = "%r ends, and %d of its handlers have not: what they handle is handled again by others"


class Pace:
    """How many messages are taken at once. Any thread may report: the last report counts."""

    __slots__ = ("most",)

    def __init__(self) -> None:
        self.most = 1

    def took(self, seconds: float, count: int) -> None:
        """Note that this many messages were handled in this time."""
        if count:
            fitting = int(BUSY_S * count / max(seconds, 1e-9))
            # it grows in steps, and shrinks at once
            self.most = max(1, min(fitting, 4 * self.most, MAX_HANDFUL))


class Source(Protocol):
    """Where workers take from, and report to."""

    def next_handful(self, most: int, timeout: float | None) -> Handful | None: ...

    @property
    def loop(self) -> MemberLoop: ...

    @property
    def _judge(self) -> Judge: ...


class Workers:
    """The threads of one `run`."""

    def __init__(self, source: Source, handler: Handler, workers: int, batch: int) -> None:
        self._source, self._handler, self._batch = source, handler, batch
        self._pace = Pace()
        self.error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, name=f"penstock-worker-{number}", daemon=True)
            for number in range(workers)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self, timeout_s: float | None) -> bool:
        """Wait for the threads. Returns whether all have ended."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is None:
                return not self.is_alive  # this one and those after it could not be started
            thread.join(None if until is None else max(0.0, until - time.monotonic()))
        if busy := sum(thread.is_alive() for thread in self._threads):
            log().warning(STILL_BUSY, self._source.loop, busy)
        return not busy

    @property
    def is_this_thread(self) -> bool:
        """Whether the calling thread is one of these, and so runs a handler."""
        return threading.current_thread() in self._threads

    @property
    def is_alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        handle = self._handle_batch if self._batch > 1 else self._handle_each
        try:
            while True:
                most = self._batch if self._batch > 1 else self._pace.most
                try:
                    handful = self._source.next_handful(most, None)
                except QueueUnreadable:
                    continue  # it is logged, and that queue is tried again; the others go on
                if handful is None:
                    return
                handle(handful)
        except BaseException as error:
            # not a handler's Exception, which is a retry: the program ends, or the broker failed
            loop = self._source.loop
            with loop.lock:
                self.error = self.error or error
                loop.tell()

    def _handle_each(self, handful: Handful) -> None:
        handler, queue, loop = self._handler, handful.queue, self._source.loop
        orderly, may_go_on = loop.core.options.orderly, loop.may_go_on
        verdicts: dict[int, Back] = {}
        judge = judge_into(verdicts, self._source._judge)
        began, place = time.perf_counter(), handful.start
        try:
            for message in handful.messages:
                # asked for each message, as the process may have been frozen since the last one
                if not may_go_on(queue):
                    break
                try:
                    returned = handler(GroupMessage(message, handful, place, judge))
                except Exception as error:
                    verdicts[place] = self._raised(error, message)
                else:
                    if returned is not None:
                        _check_done(returned)
                if orderly and place in verdicts:
                    break
                place += 1
        finally:
            # also when SystemExit ends a worker, so that what it has begun is not lost
            self._pace.took(time.perf_counter() - began, place - handful.start)
            report(loop, handful, place, verdicts)

    def _handle_batch(self, handful: Handful) -> None:
        verdicts: dict[int, Back] = {}
        place = handful.start
        try:
            if self._source.loop.may_go_on(handful.queue):
                returned = None
                try:
                    returned = self._handler(
                        Batch(handful, judge_into(verdicts, self._source._judge))
                    )
                except Exception as error:
                    raised = self._raised(error, handful.messages[0])
                    verdicts = {at: raised._replace(place=at) for at in handful.unfinished}
                _check_done(returned)
                place = handful.stop
        finally:
            report(self._source.loop, handful, place, verdicts)

    def _raised(self, error: Exception, message: Any) -> Back:
        log().warning("the handler of %r has failed", message, exc_info=error)
        return Back(-1, 0, f"{type(error).__name__}: {error}")


def check_handler(handler: object) -> None:
    """Raises InvalidArgument for what cannot be called."""
    if not callable(handler):
        raise wrong_type(InvalidArgument, "handler", handler, "something that can be called")


def _check_done(returned: object) -> None:
    """Raises InvalidArgument if a handler returned an awaitable. Nobody awaits it here, so its work
    has not even begun, although returning acknowledges."""
    if inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()
        raise InvalidArgument(
            "the handler is a coroutine function, which nobody awaits here",
            type(returned).__name__,
            "use the asyncio consumer: penstock.client.aio.GroupConsumer",
        )


def judge_into(verdicts: dict[int, Back], judge: Judge) -> Judge:
    """A Judge that collects what a handler gives back while it runs. All other messages are done
    when the handler returns. Replies are sent at once."""

    def tell(handful: Handful, place: int, back: Back | None) -> None:
        if back is not None:
            verdicts[place] = back

    return judge._replace(tell=tell)


def report(loop: MemberLoop, handful: Handful, place: int, verdicts: dict[int, Back]) -> None:
    """Report that the messages before `place` were handled, except for those given back."""
    with loop.lock:
        core, now_ms = loop.core, loop.now_ms()
        queue = handful.queue
        if core.options.orderly and verdicts:
            first = min(verdicts)
            core.done(handful, handful.start, first)
            core.failed(handful, verdicts[first]._replace(place=first), now_ms)
        else:
            for at, back in verdicts.items():
                core.back(handful, back._replace(place=at), now_ms, loop.wall_ms())
            core.done(handful, handful.start, place)
            if place < handful.stop:
                core.untouched(handful, now_ms)
        settle(loop, core, queue)


def settle(loop: MemberLoop, core: MemberCore, queue: Any) -> None:
    """Messages of a queue were finished or given back: wake whoever waits. `lock` must be held."""
    if loop.asleep and core.wants_turn(queue):
        loop.wake()
    if core.options.orderly or queue.has_returned:
        loop.offer(loop.now_ms())
    if core.closing or queue.dropped:
        loop.changed.notify_all()
