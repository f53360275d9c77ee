"""Frames that wait to be looked for: in the order of their producer, and with their own bytes."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.actors.writer.frame_check import CheckedFrame
from penstock.actors.writer.retries import Retries
from penstock.actors.writer.retry_index import RetryIndex
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.wire.messages import Append, QueueRun


def nothing(start: int, stop: int, window_bytes: int) -> Iterator[tuple[int, memoryview]]:
    """The pieces of an empty log."""
    return iter(())


def record(position: int) -> memoryview:
    raise AssertionError("an empty log has no record")


def frame(seq: int, data: memoryview, retry: bool = True) -> CheckedFrame:
    run = QueueRun("orders", 0, 1)
    request = Append(7, 1, seq, (run,), "written", retry)
    return CheckedFrame(b"peer", request, (run,), data, [0, len(data)], (), 0, 0)


def retries() -> Retries:
    return Retries(RetryIndex(nothing, record, 1 << 20), lambda: 0)


def test_a_frame_keeps_its_bytes_while_the_buffer_that_it_came_in_takes_the_next() -> None:
    """A frame out of a ring lies in a buffer that all of them share."""
    buffer, waiting = bytearray(1024), retries()
    sent = [
        encode_record(Record(topic="orders", body=body, properties=encode_properties({"a": "b"})))
        for body in (b"first", b"a second", b"and the third")
    ]
    for seq, raw in enumerate(sent):
        buffer[: len(raw)] = raw
        waiting.put(frame(seq, memoryview(buffer)[: len(raw)], retry=seq == 0), 0)
    buffer[:] = bytes(len(buffer))
    stored = []
    while waiting:
        looked = waiting.turn(0)
        if looked is not None:
            assert looked.error is None
            stored.append(bytes(looked.frame.data))
    assert stored == sent
