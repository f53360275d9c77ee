"""Frames that wait to be looked for: in the order of their producer, and with their own bytes."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

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


KEYS = st.integers(0, 5)


def of(key: int, **stamped: int) -> bytes:
    properties = encode_properties({"UNIQ_KEY": f"K{key}"})
    return encode_record(Record("orders", b"x" * key, properties, **stamped))


@given(
    st.lists(KEYS, unique=True, max_size=6),
    KEYS,
    st.integers(0, 1200) | st.integers(1 << 29, 1 << 62),
)
def test_a_retry_is_stored_unless_it_is_in_the_log_after_what_its_producer_knew(
    stored: list[int], key: int, stored_after: int
) -> None:
    """A log that has lost its end is shorter than its producers know it: no more may be in it."""
    log, starts = b"", [0]
    for number, each in enumerate(stored):
        log += of(each, queue_offset=number, physical_offset=len(log))
        starts.append(len(log))

    def pieces(start: int, stop: int, window_bytes: int) -> Iterator[tuple[int, memoryview]]:
        for at, end in zip(starts, starts[1:], strict=False):
            if start <= at < stop:
                yield at, memoryview(log)[at:end]

    def stored_at(position: int) -> memoryview:
        return memoryview(log)[position : starts[starts.index(position) + 1]]

    waiting = Retries(RetryIndex(pieces, stored_at, 1 << 20), lambda: len(log))
    waiting.put(frame(1, memoryview(of(key))), stored_after)
    while (looked := waiting.turn(0)) is None:
        pass
    assert looked.error is None and not waiting
    position = starts[stored.index(key)] if key in stored else -1
    if position >= stored_after:
        (run,) = looked.frame.stored
        assert (run.queue_offset, run.physical_offset) == (stored.index(key), position)
        assert not looked.frame.data
    elif position < 0 or stored_after >= len(log):
        assert not looked.frame.stored and looked.frame.data == of(key)
