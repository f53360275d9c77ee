"""What do many producers cost? The same load from a few of them, and from a thousand.

All producers share the limit of unanswered messages, so that the broker holds as much for many as
for few. So a frame of one of a thousand has a few messages, and one of four has hundreds. The
producers run in the same number of processes, however many there are, and send through sockets: a
ring is for few.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import msgspec

from penstock.bench.loads.load_process import Moved, measured, started
from penstock.bench.loads.many_producers import SendMany
from penstock.bench.loads.target import Target, Where, opened
from penstock.bench.reports.machine import Machine
from penstock.bench.reports.report import Result, Shape, found

PROCESSES = 2


def bench_producers(
    shape: Shape, producers: Sequence[int], where: Where, machine: Machine, moved: Moved
) -> Iterator[Result]:
    """Send at full rate from each of these numbers of producers, in turn to one broker."""
    settings = {"max_connections": str(max(10_000, 2 * max(producers)))}
    with opened(where, shape.ack, settings) as target:
        for number in producers:
            yield _once(target, msgspec.structs.replace(shape, producers=number), machine, moved)


def _once(target: Target, shape: Shape, machine: Machine, moved: Moved) -> Result:
    topics = target.new_topics(shape.queues)
    processes = min(PROCESSES, shape.producers)
    shares = [len(range(at, shape.producers, processes)) for at in range(processes)]
    commands = [_command(target, topics, shape, share) for share in shares]
    with started(commands) as loads:
        target.await_caught_up()
        before = target.accounts.cpu_s()
        seen = measured(loads, shape.seconds, moved)
        after = target.accounts.cpu_s()
    sent = sum(each.messages + each.warm_messages for each in seen)
    stored = target.check(topics, sent, shape.ack)
    return found(
        "producers",
        shape,
        machine,
        seen=seen,
        stored=stored,
        cpu=(before, after),
        latency_of="send to acknowledgement",
    )


def _command(target: Target, topics: list[str], shape: Shape, producers: int) -> list[str]:
    each = max(1, shape.in_flight // shape.producers)
    order = SendMany(target.produce, topics, shape.size, shape.ack, producers, each, shape.seconds)
    load = (sys.executable, "-m", "penstock.bench.loads.many_producers")
    return [*load, msgspec.json.encode(order).decode()]
