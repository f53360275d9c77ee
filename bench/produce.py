"""How many messages a second can one client process send, packed, each acknowledged?"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.bench.stack import running_stack
from penstock.client.producer import Producer

TOPIC = "bench"


class ProduceResult(msgspec.Struct, frozen=True):
    """What one run measured. Rates count messages whose acknowledgement has come."""

    messages: int
    body_bytes: int
    queues: int
    flush_disk_type: str
    transient_store_pool: bool
    seconds: float
    messages_per_second: float
    body_megabytes_per_second: float


def bench_produce(
    messages: int,
    body_bytes: int,
    queues: int,
    *,
    flush: str,
    pool: bool,
    store: Path | None,
    moved: Callable[[int, int], None],
) -> ProduceResult:
    """Start a broker on a new store, send, wait for all acknowledgements, stop it."""
    settings = [
        f'flush_disk_type = "{flush}"',
        f"transient_store_pool_enable = {str(pool).lower()}",
    ]
    body = bytes(range(256)) * (body_bytes // 256 + 1)
    body = body[:body_bytes]
    with running_stack(store, settings) as stack, Producer(stack.produce) as producer:
        producer.create_topic(TOPIC, queues)
        producer.send(TOPIC, body).result(10)
        began = time.monotonic()
        for done in range(messages):
            producer.send(TOPIC, body)
            if not done & 4095:
                moved(done, messages)
        producer.flush(120)
        seconds = time.monotonic() - began
    return ProduceResult(
        messages,
        body_bytes,
        queues,
        flush,
        pool,
        seconds,
        messages / seconds,
        messages * body_bytes / seconds / 1e6,
    )
