"""What do many queues cost? The same load over a few of them, and over thousands.

Each number of queues gets a broker of its own, with small queue files: with the default size they
would take more disk than the messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from penstock.bench.loads.load_process import Moved
from penstock.bench.loads.target import Where, opened
from penstock.bench.log.produce import produce
from penstock.bench.reports.machine import Machine
from penstock.bench.reports.report import Result, Shape
from penstock.shared.layout import CQ_ENTRY_BYTES

SMALL_QUEUE_FILES = {"mapped_file_size_consume_queue_bytes": str(2000 * CQ_ENTRY_BYTES)}


def bench_topics(
    shape: Shape, queues: Sequence[int], where: Where, machine: Machine, moved: Moved
) -> Iterator[Result]:
    """Send at full rate to each of these numbers of queues."""
    for number in queues:
        # a broker has a few queues of its own
        settings = {**SMALL_QUEUE_FILES, "max_queues": str(max(1 << 16, number + 1024))}
        with opened(where, shape.ack, settings) as target:
            of_these = msgspec.structs.replace(shape, queues=number)
            yield produce(target, of_these, machine, moved, "topics")
