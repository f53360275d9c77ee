"""What do many consumers cost? The same messages, at the same rate, to one and to a thousand.

Each consumer gets every message, through a socket, so the deliveries are that many times the sends.
The consumers run in the same number of processes, however many there are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import msgspec

from penstock.bench.loads.load import Send
from penstock.bench.loads.load_process import Moved, load_command, measured, started
from penstock.bench.loads.many_consumers import FollowMany
from penstock.bench.loads.target import Target, Where, opened
from penstock.bench.reports.machine import Machine
from penstock.bench.reports.report import Result, Shape, found

PROCESSES = 2
# at such a low rate, half a second would not warm anything
WARM_S = 2.0


def bench_consumers(
    shape: Shape, consumers: Sequence[int], where: Where, machine: Machine, moved: Moved
) -> Iterator[Result]:
    """Send at a rate to each of these numbers of consumers, in turn by one broker."""
    settings = {"max_connections": str(max(10_000, 2 * max(consumers)))}
    with opened(where, shape.ack, settings) as target:
        for number in consumers:
            yield _once(target, msgspec.structs.replace(shape, consumers=number), machine, moved)


def _once(target: Target, shape: Shape, machine: Machine, moved: Moved) -> Result:
    topics = target.new_topics(shape.queues)
    send = Send(
        target.produce,
        topics,
        shape.size,
        shape.ack,
        shape.in_flight,
        shape.seconds,
        warm_s=WARM_S,
        rate_per_s=shape.rate_per_s,
        ring=shape.ring,
    )
    warm = round(send.warm_s * send.rate_per_s)
    count = round(send.seconds * send.rate_per_s)
    processes = min(PROCESSES, shape.consumers)
    shares = [len(range(at, shape.consumers, processes)) for at in range(processes)]
    orders = [FollowMany(target.consume, topics[0], share, warm, count) for share in shares]
    commands = [load_command(send), *(_command(order) for order in orders)]
    with started(commands) as loads:
        before = target.accounts.cpu_s()
        sender, *receivers = measured(loads, shape.seconds, moved)
        after = target.accounts.cpu_s()
    return found(
        "consumers",
        shape,
        machine,
        seen=receivers,
        beside=[sender],
        stored=target.check(topics, warm + count, shape.ack),
        cpu=(before, after),
        latency_of="due at the producer to there at a consumer",
    )


def _command(order: FollowMany) -> list[str]:
    load = (sys.executable, "-m", "penstock.bench.loads.many_consumers")
    return [*load, msgspec.json.encode(order).decode()]
