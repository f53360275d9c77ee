"""Memory that runs out where it hurts: an actor without it ends, and its successor goes on.

chaos/running/memory.py tries places at random; here it is one place, reached each time.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any

from penstock.chaos.machine.usage import address_space_bytes
from penstock.client.sending.producer import Producer

TOPIC = "chaos"
SEGMENT_BYTES = 32 << 20
BODY_BYTES = 60_000


def test_a_writer_without_memory_for_a_segment_is_replaced_and_no_send_fails(
    broker: Callable[..., Any],
    read_all: Callable[..., Any],
    check_store: Callable[..., None],
) -> None:
    """The segment is there. It is this writer alone that cannot map it."""
    running = broker(
        transient_store_pool_enable=False, mapped_file_size_commit_log_bytes=SEGMENT_BYTES
    )
    running.start()
    before = running.actors()
    bodies = [b"%d/" % number + bytes(BODY_BYTES) for number in range(600)]
    with Producer(running.produce) as producer:
        producer.create_topic(TOPIC, 1)
        producer.send(TOPIC, b"first/").result(60)
        # enough for frames, too little for a segment
        limit = address_space_bytes(before["writer"]) + SEGMENT_BYTES * 3 // 4
        infinite = resource.RLIM_INFINITY
        resource.prlimit(before["writer"], resource.RLIMIT_AS, (limit, infinite))
        sent = [producer.send(TOPIC, body) for body in bodies]
        assert [error for each in sent if (error := each.exception(60))] == []
    after = running.actors()
    assert {name for name in after if after[name] != before[name]} == {"writer"}
    said = running.output()
    assert said.count("starting another") == 1 and "Cannot allocate memory" in said, said
    running.await_dispatched()
    assert read_all(running.consume) == {0: [b"first/", *bodies]}
    running.stop()
    check_store(running)
