"""All actors of a broker in one process, on a store that may be damaged. Each actor is made,
started, takes turns, and stops; a consumer reads meanwhile.

An actor that the store kills would be started again and again, and end the broker in the end: that
is `ActorDied`. A store that is refused earlier gives the start's PenstockError. Clients' requests
and doorbells go through a `Wire`; the actors above the log have real sockets, which no client uses.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from penstock.chaos.stepped.stepped_wire import Wire
from penstock.client.core.consumer_core import ConsumerCore
from penstock.shared.clock import SystemClock
from penstock.shared.config import Config
from penstock.shared.errors import QueueUnreadable, StoreUnavailable, UnreadableBody
from penstock.shared.memory.roster import start_order, stop_order
from penstock.shared.process.actor import Stage, import_actor
from penstock.shared.recovery.close_store import close_store
from penstock.shared.recovery.open_store import open_store

# These hear of connections from ZeroMQ itself, are clients of the writer, or serve sockets.
_REAL = frozenset(("coordinator", "transactions", "scheduler", "gateway", "monitor"))
# How often each actor works after a start, and at most until it has drained at a stop.
_TURNS, _STOP_TURNS = 5, 10_000
_READ_TURNS = 100_000


class ActorDied(Exception):
    """An error of the store has ended an actor."""


class Reading(NamedTuple):
    """What a consumer of a queue has met, from its first offset on."""

    messages: dict[int, bytes]  # body by offset
    passed_over: int  # offsets that it was told are lost
    unreadable: dict[int, str]  # by offset, the error it got before it continued after that
    end: int
    why_stopped: str = ""  # an error that names no message: nothing from `end` on can be read


class WholeBroker:
    """One run. Raises PenstockError when the start is refused, and ActorDied."""

    def __init__(self, config: Config) -> None:
        self._config = msgspec.structs.replace(
            config,
            produce_port=0,
            consume_port=0,
            group_port=0,
            transaction_port=0,
            transient_store_pool_enable=False,
        )
        self._clock = SystemClock()
        self._wire = Wire(random.Random(0))
        self._stages: dict[str, Stage] = {}
        self._actors: dict[str, Any] = {}
        self.store = open_store(self._config, self._clock)
        try:
            for name in start_order(self._config):
                self._start(name)
        except BaseException:
            # or garbage collection waits forever for the sockets of actors that have started
            self.leave()
            raise

    def _start(self, name: str) -> None:
        run, is_real = self.store.run, name in _REAL
        self._stages[name] = Stage(
            name,
            self._config,
            run,
            self._clock,
            listening=self.store.listeners.handles if is_real else {},
            context=None if is_real else self._wire.context(name),
        )
        with _dying(name):
            # the real disk might be full, and the cleaner would act on that
            given = (lambda path, ahead_bytes: 0,) if name == "cleaner" else ()
            self._actors[name] = import_actor(name)(self._stages[name], *given)
            self._actors[name].start()

    def turn(self, name: str) -> bool:
        """Run one cycle of an actor; return whether it did something."""
        with _dying(name):
            self._stages[name].bus.drain()
            return bool(self._actors[name].work())

    def settle(self) -> None:
        """Dispatch everything, complete what a cleaner had begun, and let the others take turns."""
        for name in ("reput", "flusher"):
            while not self._is_drained(name):
                self.turn(name)
        while self.turn("cleaner"):
            pass
        for _ in range(_TURNS):
            for name in self._actors:
                self.turn(name)

    def _is_drained(self, name: str) -> bool:
        with _dying(name):
            return bool(self._actors[name].drained())

    def read(self, topic: str, queue_id: int) -> Reading:
        """All of a queue, as read by a consumer that continues after what it is told is damaged."""
        found, unreadable = dict[int, bytes](), dict[int, str]()
        passed_over, start = 0, None
        while True:
            core = ConsumerCore(
                "stepped",
                topic,
                0,
                start="earliest" if start is None else {queue_id: start},
                queues=(queue_id,),
                follow=False,
                timeout_ms=60_000,
            )
            error = self._read_on(core, found, unreadable)
            passed_over += core.losses.count
            at = core.positions[queue_id]
            if error is None:
                return Reading(found, passed_over, unreadable, at)
            if error.queue_offset is None:
                return Reading(found, passed_over, unreadable, at, str(error))
            unreadable[error.queue_offset] = str(error)
            start = error.queue_offset + 1

    def _read_on(
        self, core: ConsumerCore, found: dict[int, bytes], unreadable: dict[int, str]
    ) -> QueueUnreadable | None:
        """Read until the end, or until an error that the consumer gets."""
        answers = self._wire.answers
        answers.pop(b"consumer", None)
        for _ in range(_READ_TURNS):
            for parts in core.outgoing(0):
                self._wire.ask(self.store.run.endpoints.consume, b"consumer", parts)
            self.turn("reader")
            while answers.get(b"consumer"):
                core.received(answers[b"consumer"].popleft(), 0)
            try:
                taken = core.take()
            except QueueUnreadable as error:
                return error
            for each in taken:
                try:
                    found[each.queue_offset] = bytes(each.body)
                except UnreadableBody as error:
                    unreadable[each.queue_offset] = str(error)
            if core.finished:
                return None
        raise StoreUnavailable("a consumer does not come to an end", core.positions)

    def stop(self) -> None:
        """Stop all actors in good order."""
        for name in stop_order(self._config):
            self._stages[name].stopping = True
            for _ in range(_STOP_TURNS):
                if self._is_drained(name) or not self.turn(name):
                    break
            with _dying(name):
                self._actors.pop(name).close()
            self._stages.pop(name).close()
        close_store(self.store, self._config)

    def leave(self) -> None:
        """Release what the kernel would take with the processes, whatever has happened."""
        for name in list(self._stages):
            stage = self._stages.pop(name)
            if name in _REAL:
                stage.context.destroy(linger=0)
            stage.close()
        self.store.listeners.close()
        self.store.positions.close()
        os.close(self.store.lock)


@contextmanager
def _dying(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ActorDied(name) from error


@contextmanager
def whole_broker(config: Config) -> Iterator[WholeBroker]:
    """A run from its start to its stop."""
    broker = WholeBroker(config)
    try:
        broker.settle()
        yield broker
        broker.stop()
    finally:
        broker.leave()
