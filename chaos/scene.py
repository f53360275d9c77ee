"""A broker under load in a round of chaos: it is harmed, and then a probe has to get through."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from penstock.chaos.arena import Arena
from penstock.chaos.broker import Broker, fixed_ports
from penstock.chaos.load import TOPIC
from penstock.chaos.under_load import UnderLoad, under_load
from penstock.client.sending.producer import Producer
from penstock.shared.errors import StoreUnavailable

SERVED_TIMEOUT_S = 15


class Scene:
    """What a kind of harm works on: the broker, its load, and the probe. `scene` makes one."""

    def __init__(self, arena: Arena, running: UnderLoad, producer: Producer) -> None:
        self.arena = arena
        self.broker = running.broker
        self._running = running
        self._producer = producer
        self._numbers = itertools.count()

    def probe(self, what: str, struck: float) -> tuple[float, float]:
        """Send a message and see a consumer get it; return the seconds from `struck` until each.

        Raises PenstockError when that takes too long.
        """
        # the probe has a sender of its own, so that it does not use the load's numbers
        body = f"probe/0/{next(self._numbers)}/{what}".encode()
        self._producer.send(TOPIC, body, queue=0).result(SERVED_TIMEOUT_S)
        acknowledged = time.monotonic() - struck
        self._running.follower.await_body(body, SERVED_TIMEOUT_S)
        consumed = time.monotonic() - struck
        self.arena.report.add_recovery(what, acknowledged, consumed)
        self.arena.moved()
        return acknowledged, consumed

    def settle(self) -> None:
        """End the load, and wait until everything that is stored can be seen."""
        for each in self._running.loads:
            each.finish()
        self.broker.await_dispatched()

    def finish(
        self, replay: str, wrong: list[str] | None = None, *, may_fail: bool = False
    ) -> None:
        """End the load, stop the broker and check everything; `wrong` is already known."""
        report, running = self.arena.report, self._running
        found = (wrong or []) + running.finish(may_fail=may_fail)
        report.add_violations(found, replay)
        report.acknowledged += sum(each.count() for each in running.loads)
        report.consumed += len(running.follower.seen)


@contextmanager
def scene(
    arena: Arena,
    place: Path,
    settings: Mapping[str, object],
    environment: Mapping[str, str] | None = None,
    *,
    rate: int = 1000,
    wrap: tuple[str, ...] = (),
) -> Iterator[Scene]:
    """A broker on `place`/store, under load; in the end nothing of it stays."""
    broker = Broker(place, {**settings, **fixed_ports()}, environment=environment, wrap=wrap)
    with under_load(broker, rate=rate) as running, Producer(broker.produce) as producer:
        yield Scene(arena, running, producer)


def await_true(
    condition: Callable[[], bool], what: str, timeout_s: float = SERVED_TIMEOUT_S
) -> None:
    """Wait until the condition holds. Raises StoreUnavailable when that takes too long."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise StoreUnavailable(f"waited {timeout_s} s in vain", what)
        time.sleep(0.01)
