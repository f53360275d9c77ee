"""How many messages a second do producers get acknowledged? Each producer is a process."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from penstock.bench.loads.load import Send
from penstock.bench.loads.load_process import Moved, load_command, measured, started
from penstock.bench.loads.target import Target, Where, opened
from penstock.bench.reports.machine import Machine
from penstock.bench.reports.report import Result, Shape, found


def bench_produce(shape: Shape, where: Where, machine: Machine, moved: Moved) -> Result:
    """Send at full rate. Raises StoreUnavailable if the store then holds another number."""
    with opened(where, shape.ack) as target:
        return produce(target, shape, machine, moved, "produce")


def produce(
    target: Target,
    shape: Shape,
    machine: Machine,
    moved: Moved,
    kind: str,
    during: AbstractContextManager[object] | None = None,
) -> Result:
    """The same on a running broker. Work that its processes still do at the end counts as theirs.

    It begins when the queues have the warm-up messages: the making of their files does not count.
    `during` is entered while the load is on.
    """
    topics = target.new_topics(shape.queues)
    with started([sending(target, topics, shape)] * shape.producers) as processes:
        target.await_caught_up()
        before = target.accounts.cpu_s()
        with during or nullcontext():
            seen = measured(processes, shape.seconds, moved)
    sent = sum(each.messages + each.warm_messages for each in seen)
    stored = target.check(topics, sent, shape.ack)
    return found(
        kind,
        shape,
        machine,
        seen=seen,
        stored=stored,
        cpu=(before, target.accounts.cpu_s()),
        latency_of="send to acknowledgement",
    )


def sending(target: Target, topics: list[str], shape: Shape) -> list[str]:
    """The command of a producer with the load's shape. Each queue gets a message before."""
    order = Send(
        target.produce,
        topics,
        shape.size,
        shape.ack,
        shape.in_flight,
        shape.seconds,
        queues=shape.queues,
        rate_per_s=shape.rate_per_s,
        ring=shape.ring,
    )
    return load_command(order)
