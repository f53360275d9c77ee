"""What a comparison measures: its phases, and what each broker does in them.

In a phase, all brokers are up with one kind of acknowledgement. rounds.py carries out the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from penstock.bench.peers.brokers.peer import (
    CONSUME,
    DURABLE,
    PACED,
    SINGLE,
    WRITTEN,
    Load,
    Peer,
    Read,
    Server,
    Way,
)
from penstock.bench.peers.table import Row

BACKLOG = "backlog"
# synced messages first: merely written ones would still be on their way to the disk
PHASES = (DURABLE, WRITTEN, BACKLOG)
# a guess at the messages read in a second: a pass must take longer than its beginning
BACKLOG_MESSAGES, BACKLOG_BYTES = 512_000, 150 << 20
BATCH = 64


class Plan(msgspec.Struct, frozen=True):
    """What is to be measured."""

    phases: Sequence[str] = PHASES
    sizes: Sequence[int] = (100, 1024)
    runs: int = 5
    seconds: float = 1.5
    in_flight: int = 4096
    queues: int = 4

    def backlog(self, size: int) -> int:
        """How many messages to read, in whole batches."""
        a_second = min(BACKLOG_MESSAGES, BACKLOG_BYTES // size)
        return max(1, round(a_second * self.seconds / BATCH)) * BATCH


class Task(NamedTuple):
    """What a broker does once in each round."""

    peer: Peer
    server: Server
    way: Way
    ack: str
    size: int
    in_flight: int

    def row(self, run: int, why: str = "") -> Row:
        way = self.way
        return Row(way.name, self.ack, self.size, run, why, way.kind, self.in_flight)


def ways_in(peer: Peer, phase: str) -> list[Way]:
    """The ways of a broker that are measured in a phase."""
    reads = [way for way in peer.ways if way.kind == CONSUME]
    if phase == BACKLOG:
        return reads or [Way(peer.name, CONSUME)]
    return [way for way in peer.ways if phase in way.acks and way not in reads]


def ack_in(phase: str) -> str:
    return WRITTEN if phase == BACKLOG else phase


def tasks_in(peer: Peer, server: Server, phase: str, plan: Plan) -> Iterator[Task]:
    for way in ways_in(peer, phase):
        for size in plan.sizes[-1:] if way.kind in (SINGLE, PACED) else plan.sizes:
            in_flight = 0 if way.kind == CONSUME else way.in_flight or plan.in_flight
            yield Task(peer, server, way, ack_in(phase), size, in_flight)


def _backlog_topic(size: int, way: Way) -> str:
    return f"backlog{size}{'' if way.direct else 's'}{'b' if way.bodies else ''}"


def load_of(task: Task, run: int, plan: Plan) -> Load | Read:
    way, size, warm_s = task.way, task.size, task.peer.warm_s
    if way.kind == CONSUME:
        backlog = plan.backlog(size)
        topic = _backlog_topic(size, way)
        how = way.direct, way.bodies
        return Read(topic, size, backlog, plan.queues, plan.seconds, warm_s, *how)
    topic = f"{way.kind}{size}x{way.batch}f{task.in_flight}r{run + 1}"
    return Load(
        topic,
        size,
        task.ack,
        task.in_flight,
        plan.queues,
        plan.seconds,
        warm_s,
        way.batch,
        way.threads,
        rate_per_s=way.rate_per_s,
    )


def backlog_of(task: Task, plan: Plan) -> Load:
    """The load that sends what a task reads."""
    size, messages = task.size, plan.backlog(task.size)
    batch = max(way.batch for way in task.peer.ways)
    return Load(
        _backlog_topic(size, task.way),
        size,
        task.ack,
        plan.in_flight,
        plan.queues,
        seconds=0,
        warm_s=0,
        batch=batch,
        messages=messages,
    )
