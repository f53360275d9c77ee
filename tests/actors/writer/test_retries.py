"""Frames that wait to be looked for: in the order of their producer, and with their own bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.actors.writer import retries as limits
from penstock.actors.writer.frame_check import CheckedFrame
from penstock.actors.writer.retries import MEMORY_MS, Retries
from penstock.actors.writer.retry_index import RetryIndex
from penstock.shared.errors import BrokerBusy
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.wire.messages import Append, QueueRun


def nothing(start: int, stop: int, window_bytes: int) -> Iterator[tuple[int, memoryview]]:
    """The pieces of an empty log."""
    return iter(())


def record(position: int) -> memoryview:
    raise AssertionError("an empty log has no record")


def frame(
    seq: int, data: memoryview, retry: bool = True, producer: int = 7, session: int = 1
) -> CheckedFrame:
    run = QueueRun("orders", 0, 1)
    request = Append(producer, session, seq, (run,), "written", retry)
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


RAW = encode_record(Record("orders", b""))


def test_what_waits_is_bounded_for_a_producer_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, size = retries(), len(RAW)
    monkeypatch.setattr(limits, "MAX_WAITING_FRAMES", 3)
    monkeypatch.setattr(limits, "MAX_WAITING_BYTES", 2 * size + 10)
    monkeypatch.setattr(limits, "MAX_ALL_BYTES", 6 * size)

    def put(producer: int, seq: int, more: int = 0) -> None:
        raw = encode_record(Record("orders", bytes(more)))
        waiting.put(frame(seq, memoryview(raw), producer=producer), 0)

    put(1, 1, 8 * size)
    assert waiting.size_bytes == 9 * size, "what is the only one is taken however large it is"
    with pytest.raises(BrokerBusy, match="more is sent again"):
        put(2, 1)
    assert waiting.turn(0) is not None and waiting.size_bytes == 0 and not waiting
    put(1, 1)
    put(1, 2, 10)
    with pytest.raises(BrokerBusy):
        put(1, 3)  # one byte is too much by now
    assert waiting.turn(0) is not None
    put(1, 3, 0)
    assert waiting.size_bytes == 2 * size + 10
    put(2, 1, 3 * size - 10)
    assert waiting.size_bytes == 6 * size, "and a first one may be larger than those after it"
    with pytest.raises(BrokerBusy):
        put(3, 1)
    monkeypatch.setattr(limits, "MAX_WAITING_BYTES", 1 << 20)
    monkeypatch.setattr(limits, "MAX_ALL_BYTES", 1 << 20)
    put(1, 4)
    with pytest.raises(BrokerBusy):
        put(1, 5)  # it has three
    assert 1 in waiting and 2 in waiting and 3 not in waiting


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "turn", "before", "behind"]),
        st.integers(1, 2),
        st.integers(0, 4),
    ),
    min_size=8,
    max_size=30,
)


@given(STEPS)
def test_producers_take_turns_and_what_comes_again_by_itself_is_dropped(
    steps: list[tuple[str, int, int]],
) -> None:
    """Compared with a list for each producer. A session has two frames here."""
    waiting, model, seq = retries(), dict[int, list[tuple[int, int, int]]](), 0
    for what, producer, number in steps:
        if what == "put":
            seq += 1
            raw = encode_record(Record("orders", bytes(number)))
            one = frame(seq, memoryview(raw), producer=producer, session=seq // 2)
            waiting.put(one, 0)
            model.setdefault(producer, []).append((seq, seq // 2, len(raw)))
        elif what == "turn" and model:
            producer = next(iter(model))
            own = model.pop(producer)
            looked = waiting.turn(0)
            assert looked is not None and looked.frame.request.producer == producer
            assert looked.frame.request.seq == own.pop(0)[0]
            if own:
                model[producer] = own
        elif what in ("before", "behind"):
            if what == "before":
                session = (seq - number) // 2
                waiting.drop_before(producer, session)
                left = [each for each in model.get(producer, []) if each[1] >= session]
            else:
                first = max(0, seq - number)
                waiting.drop_behind(frame(first, memoryview(RAW), producer=producer).request)
                left = [each for each in model.get(producer, []) if each[0] < first]
            if left:
                model[producer] = left
            else:
                model.pop(producer, None)
        assert bool(waiting) == bool(model)
        assert [each in waiting for each in range(4)] == [each in model for each in range(4)]
        assert waiting.size_bytes == sum(size for own in model.values() for _, _, size in own)


def test_the_index_is_forgotten_a_while_after_the_last_retry_and_begins_where_the_log_ended() -> (
    None
):
    raw, asked = of(1), list[int]()

    def pieces(start: int, stop: int, window_bytes: int) -> Iterator[tuple[int, memoryview]]:
        asked.append(start)
        if start < stop:
            yield start, memoryview(raw * ((stop - start) // len(raw)))

    def stored_at(position: int) -> memoryview:
        return memoryview(raw)

    wrote = 10 * len(raw)
    waiting = Retries(RetryIndex(pieces, stored_at, 1 << 20), lambda: wrote)

    def look(now_ms: int) -> list[int]:
        """Look for one more; where the log was read for it."""
        asked.clear()
        waiting.put(frame(1, memoryview(raw)), 11 * len(raw))
        while waiting.turn(now_ms) is None:
            pass
        return list(asked)

    waiting.release_deleted(0)
    wrote = 20 * len(raw)
    assert look(1000)[0] == 10 * len(raw), "where the log ended then, and not at its beginning"
    assert look(2000) == []
    waiting.release_deleted(2000 + MEMORY_MS)
    assert look(2000 + MEMORY_MS) == []
    last_ms = 2000 + MEMORY_MS
    waiting.put(frame(1, memoryview(raw)), 11 * len(raw))
    waiting.release_deleted(last_ms + MEMORY_MS + 1)
    assert waiting.turn(last_ms) is not None and asked == [], "while one waits it is kept"
    waiting.release_deleted(last_ms + MEMORY_MS + 1)
    assert look(last_ms + MEMORY_MS + 1) != []
