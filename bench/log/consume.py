"""How fast do consumers read a backlog? It is written first, then each reads it again and again."""

from __future__ import annotations

from penstock.bench.loads.load import Receive
from penstock.bench.loads.load_process import Moved, load_command, measured, started
from penstock.bench.loads.target import Where, opened
from penstock.bench.log.produce import sending
from penstock.bench.reports.machine import Machine
from penstock.bench.reports.report import Result, Shape, found


def bench_consume(shape: Shape, where: Where, machine: Machine, moved: Moved) -> Result:
    """Read a backlog of what producers send in the same time. Every pass must find all messages."""
    with opened(where, shape.ack) as target:
        topics = target.new_topics(shape.queues)
        with started([sending(target, topics, shape)] * shape.producers) as producers:
            sent = measured(producers, shape.seconds, moved)
        backlog = sum(each.messages + each.warm_messages for each in sent)
        stored = target.check(topics, backlog, shape.ack)
        order = Receive(
            target.consume,
            topics[0],
            backlog,
            shape.seconds,
            body_bytes=shape.size,
            direct=shape.direct,
            bodies=shape.bodies,
            arrow=shape.arrow,
        )
        with started([load_command(order)] * shape.consumers) as consumers:
            before = target.accounts.cpu_s()
            seen = measured(consumers, shape.seconds, moved)
        result = found(
            "consume",
            shape,
            machine,
            seen=seen,
            stored=stored,
            cpu=(before, target.accounts.cpu_s()),
            latency_of="one batch of messages to the next",
        )
    result.details = {"backlog": backlog, "passes": result.messages / backlog}
    return result
