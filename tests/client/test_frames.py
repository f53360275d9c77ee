"""Frames: one answer settles all messages; each receipt is worked out from the runs it names."""

from __future__ import annotations

import threading
from threading import Condition

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.frames import FRAME_BYTES, Frame, SendFuture
from penstock.shared.errors import ConnectError, StoreUnavailable
from penstock.shared.message_id import offset_message_id
from penstock.shared.messages import Appended, StoredRun

HOST = b"\x7f\0\0\1\0\0\x51\xaf"


def frame_of(sizes: list[int]) -> tuple[Frame, list[SendFuture]]:
    frame, settled = Frame("orders", 3, ""), Condition()
    futures = [SendFuture(settled, f"K{i}") for i in range(len(sizes))]
    for size, future in zip(sizes, futures, strict=True):
        frame.add(b"x" * size, future)
    frame.close(7)
    return frame, futures


def answer(*runs: StoredRun) -> Appended:
    return Appended(1, 1, 7, runs, 99, HOST)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=12), st.data())
def test_receipts_follow_from_any_division_into_runs(sizes: list[int], data: st.DataObject) -> None:
    """A frame is cut where a segment ends, or where a retry found a part stored already."""
    cuts = data.draw(st.sets(st.integers(1, max(len(sizes) - 1, 1))))
    firsts = sorted({0} | {cut for cut in cuts if cut < len(sizes)})
    frame, futures = frame_of(sizes)
    runs, places = [], {}
    queue_offset, position = 50, 10_000
    for first, stop in zip(firsts, [*firsts[1:], len(sizes)], strict=True):
        queue_offset += data.draw(st.integers(0, 5))
        position += data.draw(st.integers(0, 5000))
        runs.append(StoredRun(first, queue_offset, position))
        for i in range(first, stop):
            places[i] = (queue_offset, position)
            queue_offset += 1
            position += sizes[i]
    frame.settle(answer(*runs), None)
    for i, future in enumerate(futures):
        receipt = future.result(0)
        assert (receipt.queue_offset, receipt.physical_offset) == places[i]
        assert (receipt.topic, receipt.queue_id, receipt.unique_key) == ("orders", 3, f"K{i}")
        assert receipt.message_id == offset_message_id(HOST, places[i][1])
        assert receipt.store_timestamp_ms == 99


def test_a_closed_frame_is_its_records_in_order() -> None:
    frame, _ = frame_of([2, 3])
    assert (frame.seq, frame.count, frame.size, frame.payload) == (7, 2, 5, b"xxxxx")


def test_a_frame_takes_what_fits_and_one_message_of_any_size() -> None:
    frame, settled = Frame("t", 0, ""), Condition()
    assert frame.takes(10 * FRAME_BYTES)
    frame.add(b"x" * (FRAME_BYTES - 5), SendFuture(settled, "a"))
    assert frame.takes(5) and not frame.takes(6)


def test_an_error_is_that_of_every_message_of_the_frame() -> None:
    frame, futures = frame_of([1, 1])
    assert not futures[0].done()
    frame.settle(None, StoreUnavailable("the store takes messages", "it does not"))
    for future in futures:
        assert future.done() and isinstance(future.exception(0), StoreUnavailable)
        with pytest.raises(StoreUnavailable):
            future.result(0)


def test_an_outcome_that_does_not_come_in_time_is_an_error_and_may_still_come() -> None:
    frame, futures = frame_of([1])
    with pytest.raises(ConnectError, match=r"0\.01 s"):
        futures[0].result(0.01)
    frame.settle(answer(StoredRun(0, 5, 6)), None)
    assert futures[0].exception(0) is None and futures[0].result(0).queue_offset == 5


def test_waiting_ends_with_the_outcome() -> None:
    settled = Condition()
    frame, future = Frame("t", 0, ""), SendFuture(settled, "K")
    frame.add(b"x", future)
    frame.close(1)
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(future.result(10).queue_offset))
    waiting.start()
    with settled:
        frame.settle(answer(StoredRun(0, 5, 6)), None)
        settled.notify_all()
    waiting.join(10)
    assert found == [5]


def test_callbacks_that_were_asked_for_before_and_after_the_frame_are_told() -> None:
    frame, settled, told = Frame("t", 0, ""), Condition(), []
    early, late, never = (SendFuture(settled, key) for key in "abc")
    early.add_done_callback(lambda future: told.append(future.unique_key))
    for future in (early, late, never):
        frame.add(b"x", future)
    late.add_done_callback(lambda future: told.append(future.unique_key))
    frame.close(1)
    frame.settle(answer(StoredRun(0, 5, 6)), None)
    assert told == ["a", "b"]
