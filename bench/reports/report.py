"""What a measurement was to do and what it found, in one form for all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.bench.loads.accounts import cpu_s_per_million
from penstock.bench.loads.load import Seen
from penstock.bench.loads.percentile import percentile
from penstock.bench.reports.machine import Machine


class Shape(msgspec.Struct, frozen=True):
    """The shape of a load: bodies of `size` bytes, `in_flight` of them unanswered at most."""

    size: int = 1024
    ack: str = "durable"
    in_flight: int = 4096
    producers: int = 1
    queues: int = 4
    seconds: float = 5.0
    rate_per_s: int = 0
    ring: bool = True
    consumers: int = 1
    direct: bool = True
    bodies: bool = False
    arrow: bool = False


class Result(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One run. Rates count messages whose acknowledgement, or body, has come; MB are 10**6 bytes.

    `p50_ms` and `p99_ms` are of the times that `latency_of` names. CPU seconds are those of each
    process for a million messages. `stored` is what the queues hold at the end, with the warm-up.
    """

    kind: str
    run: int = -1
    shape: Shape
    messages: int
    stored: int
    seconds: float
    messages_per_s: float
    mb_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    latency_of: str
    cpu_s_per_million: dict[str, float]
    machine: Machine
    details: dict[str, Any] = {}


def found(
    kind: str,
    shape: Shape,
    machine: Machine,
    *,
    seen: list[Seen],
    stored: int,
    cpu: tuple[dict[str, float], dict[str, float]],
    latency_of: str,
    beside: Sequence[Seen] = (),
) -> Result:
    """The result of load processes that ran together; `cpu` is the broker's before and after.

    Of the processes in `beside` only the CPU time counts.
    """
    messages = sum(each.messages for each in seen)
    seconds = max(each.seconds for each in seen)
    latencies = [value for each in seen for value in each.latencies_ms]
    return Result(
        kind=kind,
        shape=shape,
        messages=messages,
        stored=stored,
        seconds=round(seconds, 3),
        messages_per_s=round(messages / seconds, 1),
        mb_per_s=round(messages * shape.size / seconds / 1e6, 2),
        p50_ms=percentile(latencies, 50),
        p99_ms=percentile(latencies, 99),
        latency_of=latency_of,
        cpu_s_per_million=cpu_s_per_million(
            *cpu, sum(each.cpu_s for each in (*seen, *beside)), messages
        ),
        machine=machine,
    )
