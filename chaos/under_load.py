"""A broker under load, to be broken: producers, some of which wait for the disk, and a consumer
that follows. In the end, what they were told is compared with what is stored.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from penstock.chaos.broker import Broker
from penstock.chaos.history import check_acknowledged, check_order
from penstock.chaos.load import NO_END, QUEUES, TOPIC, Follower, Load, read_all
from penstock.chaos.stepped.replay import check_index, check_whole
from penstock.client.sending.producer import Producer
from penstock.shared.errors import StoreUnavailable

ALONE_TIMEOUT_S = 15
# each promises something else: on disk, or in memory that outlives every process
ACKS = ("durable", "written")


class UnderLoad:
    """A running broker, and the clients that talk to it."""

    def __init__(self, broker: Broker, loads: list[Load], follower: Follower) -> None:
        self.broker = broker
        self.loads = loads
        self.follower = follower

    def finish(self, *, may_fail: bool = False) -> list[str]:
        """Wait for all outcomes and stop the broker. Returns what is lost, repeated, out of order
        or altered, and what is wrong with the store. Raises PenstockError when the broker hangs.

        With `may_fail` an actor may have ended by itself.
        """
        for load in self.loads:
            load.finish()
        self.broker.await_dispatched()
        stored = read_all(self.broker.consume)
        wrong = check_order(stored)
        # only this tool and the supervisor kill actors, so an actor has no other reason to end
        said = self.broker.output().splitlines()
        wrong += [line for line in said if " exited with " in line and not may_fail][:1]
        wrong += _strays(self.broker) + self.broker.descriptors_gained()
        for load in self.loads:
            wrong += check_acknowledged(load.acked, stored, f"which {load.name} was told of")
            if load.failed:
                wrong.append(f"{len(load.failed)} sends failed, first {load.failed[0]}")
            if not load.acked:
                wrong.append(f"no message of {load.name} was acknowledged")
        self.follower.await_counts({queue: len(found) for queue, found in stored.items()}, 30)
        self.follower.finish()
        if self.follower.bodies != stored:
            wrong.append("a consumer that followed saw something else than what is stored")
        self.broker.stop()
        store, config = self.broker.store, self.broker.config
        return wrong + check_whole(store, config) + check_index(store, config)


@contextmanager
def under_load(
    broker: Broker, *, rate: int = 1000, timeout_ms: int = 30_000
) -> Iterator[UnderLoad]:
    """Start the broker and its load; whatever happens, nothing of them stays."""
    loads: list[Load] = []
    follower: Follower | None = None
    try:
        broker.start()
        make_topics(broker)
        follower = Follower(broker.consume)
        loads += [
            Load(ack, broker.produce, rate=rate, ack=ack, timeout_ms=timeout_ms) for ack in ACKS
        ]
        yield UnderLoad(broker, loads, follower)
    finally:
        for each in loads:
            each.abandon()
        if follower is not None:
            follower.abandon()
        broker.clear()


@contextmanager
def one_load(broker: Broker, *, rate: int, most: int = NO_END) -> Iterator[Load]:
    """Start the broker and a producer of `most` messages; whatever happens, nothing stays."""
    load: Load | None = None
    try:
        broker.start()
        make_topics(broker)
        load = Load("p", broker.produce, rate=rate, most=most)
        yield load
    finally:
        if load is not None:
            load.abandon()
        broker.clear()


def make_topics(broker: Broker) -> None:
    """Create the load's topic."""
    with Producer(broker.produce) as producer:
        producer.create_topic(TOPIC, QUEUES)


def await_acked(loads: Sequence[Load], count: int, timeout_s: float = 30) -> None:
    """Wait until each producer has this many more acknowledgements."""
    goals = [each.count() + count for each in loads]
    deadline = time.monotonic() + timeout_s
    while any(each.count() < goal for each, goal in zip(loads, goals, strict=True)):
        if time.monotonic() > deadline:
            raise StoreUnavailable("producers did not get on in time", f"{count} messages")
        time.sleep(0.005)


def _strays(broker: Broker) -> list[str]:
    """Processes other than the supervisor and the actors: frozen ones, replaced but alive."""
    until = time.monotonic() + ALONE_TIMEOUT_S
    while True:
        known = {broker.process.pid, *broker.actors().values()}
        strays = [pid for pid in broker.processes() if pid not in known]
        if not strays or time.monotonic() > until:
            return [f"process {pid} lives beside its successor" for pid in strays]
