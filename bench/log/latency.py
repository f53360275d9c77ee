"""How long does a message take from its producer to its consumer, at a given rate?

It counts from the moment at which the message was due, so a producer that falls behind hides
nothing.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.bench.loads.busy import busy
from penstock.bench.loads.load import Receive, Send
from penstock.bench.loads.load_process import Moved, load_command, measured, started
from penstock.bench.loads.percentile import percentile
from penstock.bench.loads.target import Target, Where, opened
from penstock.bench.reports.machine import Machine
from penstock.bench.reports.report import Result, Shape, found
from penstock.shared.errors import InvalidArgument


def bench_latency(
    shape: Shape,
    where: Where,
    machine: Machine,
    moved: Moved,
    *,
    explain: bool = False,
    beside_busy: int = 0,
) -> Result:
    """One producer at the shape's rate, and one consumer, in two processes, while `beside_busy`
    others keep processors busy.

    With `explain` it follows messages through the broker; that needs a broker on this machine, and
    bodies with room for two times.
    """
    if explain and shape.size < 16:
        raise InvalidArgument(
            "a body has no room for the two times that --explain puts there",
            f"{shape.size} bytes",
            "penstock bench latency --explain --size 16",
        )
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
            explain=explain,
        )
        warm = round(send.warm_s * send.rate_per_s)
        count = round(send.seconds * send.rate_per_s)
        page = str(_page(target)) if explain else ""
        receive = Receive(
            target.consume, topics[0], count, send.seconds, stamped=True, warm=warm, explain=page
        )
        commands = [load_command(send), load_command(receive)]
        with busy(beside_busy), started(commands) as processes:
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
        "beside_busy": beside_busy,
    }
    if explain:
        result.details["stages"] = [msgspec.to_builtins(stage) for stage in receiver.stages]
    return result


def _page(target: Target) -> Path:
    """The positions page of the broker."""
    if target.run is None:
        raise InvalidArgument(
            "the broker at these endpoints is not known to be on this machine",
            target.produce,
            "penstock bench latency --explain --store STORE",
        )
    return target.run.positions
