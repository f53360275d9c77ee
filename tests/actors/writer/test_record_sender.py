"""The record sender with the real writer: two lives of an actor, and a writer that is replaced."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from penstock.actors.writer import Writer
from penstock.client.core.sending.record_sender import RecordSender
from penstock.shared.wire.messages import Appended, CreateTopic, QueueRun, encode

Maker = Callable[..., Any]
PATIENCE_S = 60


def drive(
    broker: Any, writer: Any, socket: Any, sender: RecordSender, count: int
) -> dict[int, Appended]:
    """Let both work until there are this many outcomes; the clock goes on by itself."""
    found: dict[int, Appended] = {}
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline, "no outcome"
        now_ms = broker.clock.monotonic_ms()
        for parts in sender.outgoing(now_ms):
            if not socket.poll(1000, 2):
                sender.not_connected(now_ms)
                break
            socket.send_multipart(parts)
        writer.work()
        while socket.poll(1):
            sender.received(socket.recv_multipart(), now_ms)
        found.update((each.tag, each.result) for each in sender.outcomes())
        broker.clock.advance(20)
    return found


def test_what_an_earlier_life_stored_is_found_and_a_new_writer_gets_the_rest(
    pipeline: Maker, frame: Maker
) -> None:
    broker = pipeline(flush_disk_type="async")
    broker.allocate(2)
    writer = broker.start(Writer)
    socket = broker.client(broker.run.endpoints.produce_ipc)
    broker.ask(writer, socket, encode(CreateTopic(1, "orders", 4)))
    frames = [frame("orders", 1, [b"a", b"b"], f"key{number}-") for number in range(6)]
    runs = [QueueRun("orders", 1, 2)]

    first = RecordSender("", "scheduler", 1, "written")
    for number in range(3):
        first.put(runs, frames[number], number)
    before = drive(broker, writer, socket, first, 3)
    wrote = broker.positions["wrote"]

    # its progress was not saved; the writer dies with it
    broker.crash(writer)
    writer = broker.start(Writer)
    socket = broker.client(broker.run.endpoints.produce_ipc)
    second = RecordSender("", "scheduler", 2, "written", stored_after=0)
    for number in range(6):
        second.put(runs, frames[number], number, second.stored_after if number < 4 else -1)
    after = drive(broker, writer, socket, second, 6)
    offsets = [after[number].runs[0].queue_offset for number in range(6)]
    assert offsets == [0, 2, 4, 6, 8, 10]
    assert [after[number].runs[0].physical_offset for number in range(3)] == [
        before[number].runs[0].physical_offset for number in range(3)
    ]
    assert after[3].runs[0].physical_offset == wrote
    assert second.floor == after[5].runs[0].physical_offset
