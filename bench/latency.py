"""How long does a message take from its producer to its consumer, at a given rate?

It counts from the moment at which it was due, so a producer that falls behind hides nothing.
"""

from __future__ import annotations

from penstock.bench.load import Receive, Send
from penstock.bench.load_process import Moved, load_command, measured, started
from penstock.bench.machine import Machine
from penstock.bench.report import Result, Shape, found, percentile
from penstock.bench.target import Where, opened


def bench_latency(shape: Shape, where: Where, machine: Machine, moved: Moved) -> Result:
    """One producer at the shape's rate, and one consumer, in two processes."""
    with opened(where, shape.ack) as target:
        topics = target.new_topics(shape.queues)
        send = Send(
            target.produce,
            topics,
            shape.size,
            shape.ack,
            shape.in_flight,
            shape.seconds,
            rate_per_s=shape.rate_per_s,
            ring=shape.ring,
        )
        warm = round(send.warm_s * send.rate_per_s)
        count = round(send.seconds * send.rate_per_s)
        receive = Receive(target.consume, topics[0], count, send.seconds, stamped=True, warm=warm)
        with started([load_command(send), load_command(receive)]) as processes:
            before = target.accounts.cpu_s()
            sender, receiver = measured(processes, send.seconds, moved)
        stored = target.check(topics, count + warm, shape.ack)
        result = found(
            "latency",
            shape,
            machine,
            seen=[receiver],
            beside=[sender],
            stored=stored,
            cpu=(before, target.accounts.cpu_s()),
            latency_of="due at the producer to there at the consumer",
        )
    result.details = {
        "max_ms": round(max(receiver.latencies_ms), 3),
        "p90_ms": percentile(receiver.latencies_ms, 90),
    }
    return result
