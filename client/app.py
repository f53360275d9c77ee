"""`App`: one program's handlers of topics, called by their annotations, on top of group consumers.

    app = penstock.App()

    @app.on("orders", group="billing")
    def bill(order: Order) -> None: ...

    app.run()

It owns one member for each of its groups, and decides when they begin and end. Messages,
acknowledgements and retries stay with GroupConsumer: this file only chooses the handler and makes
its arguments.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from penstock.client.aio.group_consumer import GroupConsumer as AioGroupConsumer
from penstock.client.app_handlers import Handler, handler_of
from penstock.client.connecting.broker_address import Store
from penstock.client.connecting.where import Where, where
from penstock.client.core.arguments import check_at_least
from penstock.client.groups.consumer import GroupConsumer
from penstock.client.groups.message import GroupMessage
from penstock.client.groups.options import Sql
from penstock.client.groups.stop_signals import stop_signals
from penstock.client.tracing import handling
from penstock.shared.errors import InvalidArgument

_Function = TypeVar("_Function", bound=Callable[..., Any])
Lifespan = Callable[["App"], AbstractAsyncContextManager[Any] | AbstractContextManager[Any]]
WORKERS = 20


class Handled(NamedTuple):
    """A handler's call that has ended: what it returned or raised."""

    group: str
    message: GroupMessage
    value: Any
    error: Exception | None


class _Group:
    """The app's handlers and options for one group."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.topics: dict[str, str | Sql] = {}
        self.handlers: dict[str, Handler] = {}
        self.workers = 0
        self.options: dict[str, Any] = {}

    @property
    def on_loop(self) -> bool:
        """Whether its member runs on the event loop, because a handler is a coroutine function."""
        return any(handler.is_coroutine for handler in self.handlers.values())

    @property
    def threads(self) -> int:
        """How many of the app's threads it may hold at once: one for a member with threads, which
        starts its workers itself; else one for each running handler that is not a coroutine."""
        if not self.on_loop:
            return 1
        alike = all(handler.is_coroutine for handler in self.handlers.values())
        return 0 if alike else self.workers or WORKERS


class App:
    """Handlers of messages, and the program around them.

        app = App("./store")

        @app.on("orders", group="billing", tags="new")
        async def bill(order: Order, message: GroupMessage) -> None: ...

    If no broker is named, it is the one that `penstock.connect()` finds when the app starts.

    A handler takes the object in the body, by its parameter's annotation: a msgspec.Struct, a
    dataclass, a pydantic model, dict, bytes or str. A parameter with the annotation GroupMessage,
    or without one, gets the message. Returning acknowledges, and an exception sends the message
    back, as in GroupConsumer.run; a body that is not such an object is a dead letter at once.

    Handlers are functions, which run in threads, or coroutine functions, on one event loop.
    `lifespan(app)` is a context manager, asynchronous or not, around everything; it may put what
    handlers need into `app.state`.
    """

    def __init__(
        self,
        target: Store | None = None,
        *,
        endpoint: str | None = None,
        store: Store | None = None,
        lifespan: Lifespan | None = None,
        **options: Any,
    ) -> None:
        """`options` are those of GroupConsumer, for every group. Raises InvalidArgument."""
        self.state = SimpleNamespace()
        self.observers: list[Callable[[Handled], None]] = []
        self._named = target, endpoint, store
        if self._named != (None, None, None):
            Where(*self._named)  # raises an error if it is invalid
        self._lifespan = lifespan
        # options of GroupConsumer for every group; a group's own override them
        self.defaults: dict[str, Any] = options
        self._groups: dict[str, _Group] = {}
        self._members: list[GroupConsumer | AioGroupConsumer] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: ThreadPoolExecutor
        self._stopping = self._ended = False

    def on(
        self,
        topic: str,
        *,
        group: str,
        tags: str = "",
        sql: str = "",
        workers: int | None = None,
        **options: Any,
    ) -> Callable[[_Function], _Function]:
        """Have the function handle messages of a topic, as a member of a group. It can still be
        called as a function.

        `workers` is how many handlers of the group run at once, 20 by default. `workers` and
        `options`, those of GroupConsumer, are given with one of the group's handlers. Raises
        InvalidArgument.
        """
        if tags and sql:
            raise InvalidArgument("a handler has tags and sql", topic, "leave one out")

        def take(function: _Function) -> _Function:
            handler, taken = handler_of(function), self._groups.get(group) or _Group(group)
            if topic in taken.handlers:
                raise InvalidArgument(
                    "a topic has two handlers in one group",
                    f"{topic} in {group}",
                    "give one of them a group of its own: each group has every message",
                )
            if twice := sorted(taken.options.keys() & options):
                both = f"{group}: {', '.join(twice)}"
                raise InvalidArgument("an option of a group is said twice", both, "say it once")
            if workers is not None:
                taken.workers = check_at_least("workers", workers, 1)
            taken.topics[topic], taken.handlers[topic] = Sql(sql) if sql else tags, handler
            taken.options.update(options)
            self._groups[group] = taken
            return function

        return take

    @property
    def topics(self) -> dict[str, list[str]]:
        """Each topic with the groups that handle it."""
        found: dict[str, list[str]] = {}
        for group in self._groups.values():
            for topic in group.topics:
                found.setdefault(topic, []).append(group.name)
        return found

    @property
    def broker(self) -> str | None:
        """The broker that it was made for; None if it is found when the app runs."""
        return next((str(each) for each in self._named if each is not None), None)

    def run(self) -> None:
        """Handle messages until `stop`, Ctrl-C or SIGTERM; then running handlers end first.

        Raises ConnectError if there is no broker, and the broker's refusals.
        """
        with stop_signals(self.stop):
            asyncio.run(self.serve())

    def stop(self) -> None:
        """Have `run` end. May be called from any thread, and from a signal handler.

        Before the first run, it makes that run end at once; after a run has ended, it does nothing.
        """
        loop = self._loop
        if self._ended:
            return
        self._stopping = True
        if loop is not None:
            with suppress(RuntimeError):  # the loop was closed since: the run is over
                loop.call_soon_threadsafe(self._stop_members)
        if self._ended:  # the run ended meanwhile, and the next one is not meant
            self._stopping = False

    def serve(self) -> Coroutine[Any, Any, None]:
        """Like `run`, for a program that has its own event loop; without handling signals."""
        # here and not in the coroutine, because a `stop` may come before that has begun
        self._ended = False
        return self._serve()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            if not self._groups:
                raise InvalidArgument(
                    "the app has no handler", None, 'write one: @app.on("orders", ...)'
                )
            found = await asyncio.to_thread(where, *self._named)
            async with self._around():
                tasks = await self._serve_groups(found)
                # all are asked, or asyncio would complain of errors that nobody has seen
                errors = [task.exception() for task in tasks]
                for error in filter(None, errors):
                    raise error  # inside the lifespan, which ends differently after an error
        finally:
            self._loop, self._stopping, self._ended = None, False, True

    async def _serve_groups(self, found: Where) -> list[asyncio.Task[None]]:
        # asyncio's own pool has only 6 threads on 2 cores, and a member holds one while it runs
        threads = max(1, sum(each.threads for each in self._groups.values()))
        self._threads = ThreadPoolExecutor(threads, "penstock-app")
        tasks = [
            asyncio.create_task(self._serve_group(found, each)) for each in self._groups.values()
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            self._stopping = True
            self._stop_members()
            try:
                await asyncio.wait(tasks)
            finally:  # also when a second cancellation ends the wait for the handlers
                self._threads.shutdown(wait=False)
                self._members.clear()
        return tasks

    @asynccontextmanager
    async def _around(self) -> AsyncIterator[None]:
        block = None if self._lifespan is None else self._lifespan(self)
        if block is None:
            yield
        elif isinstance(block, AbstractAsyncContextManager):
            async with block:
                yield
        else:
            with block:
                yield

    async def _serve_group(self, found: Where, group: _Group) -> None:
        """Be a member of the group: with threads or, if a handler is a coroutine, on the loop."""
        given: dict[str, Any] = {"store": found.store, **self.defaults, **group.options}
        arguments = (found.endpoint, group.name, group.topics)
        workers = group.workers or WORKERS
        if group.on_loop:
            async with AioGroupConsumer(*arguments, **given) as consumer:
                if self._join(consumer):
                    await consumer.run(lambda message: self._handle_aio(group, message), workers)
            return
        member = GroupConsumer(*arguments, **given)
        if self._join(member):
            await self._in_thread(member.run, lambda each: self._handle(group, each), workers)

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Like asyncio.to_thread, but in the app's own threads."""
        loop, context = asyncio.get_running_loop(), copy_context()
        await loop.run_in_executor(self._threads, context.run, function, *arguments)

    def _join(self, member: GroupConsumer | AioGroupConsumer) -> bool:
        self._members.append(member)
        return not self._stopping

    def _stop_members(self) -> None:
        for member in self._members:
            member.stop()

    def _handle(self, group: _Group, message: GroupMessage) -> None:
        handler = group.handlers[message.topic]
        with self._telling(group, message) as returned:
            arguments = handler.arguments(message)
            if arguments is not None:
                returned.append(handler.function(**arguments))

    async def _handle_aio(self, group: _Group, message: GroupMessage) -> None:
        handler = group.handlers[message.topic]
        if not handler.is_coroutine:
            await self._in_thread(self._handle, group, message)
            return
        with self._telling(group, message) as returned:
            arguments = handler.arguments(message)
            if arguments is not None:
                returned.append(await handler.function(**arguments))

    @contextmanager
    def _telling(self, group: _Group, message: GroupMessage) -> Iterator[list[Any]]:
        """Tell observers what the block puts into the list, or raises, even if it is the decoder of
        the body that raises."""
        returned: list[Any] = []
        try:
            with handling(message, group.name):
                yield returned
        except Exception as error:
            self._tell(Handled(group.name, message, None, error))
            raise
        for value in returned:
            self._tell(Handled(group.name, message, value, None))

    def _tell(self, handled: Handled) -> None:
        for observe in self.observers:
            observe(handled)

    def __repr__(self) -> str:
        groups = ", ".join(
            f"{each.name}: {' '.join(each.topics)}" for each in self._groups.values()
        )
        return f"<App {groups or 'without handlers'}>"
