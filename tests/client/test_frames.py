"""Frames: one answer settles all messages; each receipt is worked out from the runs it names."""

from __future__ import annotations

import threading
from threading import Condition

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.frames import FRAME_BYTES, Frame, Receipt, SendFuture
from penstock.shared.errors import ConnectError, FlushTimeout, StoreUnavailable
from penstock.shared.hot_loops import check_frame
from penstock.shared.message_id import offset_message_id
from penstock.shared.messages import Appended, StoredRun
from penstock.shared.record import Record, Shape, encode_record

SHAPE = Shape()
HOST = b"\x7f\0\0\1\0\0\x51\xaf"


def frame_of(sizes: list[int]) -> tuple[Frame, list[SendFuture]]:
    frame, settled = Frame("orders", 3, "", SHAPE), Condition()
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


def test_a_frame_takes_what_fits_and_is_of_its_kind() -> None:
    frame, settled = Frame("t", 0, "", SHAPE), Condition()
    frame.add(b"x" * (FRAME_BYTES - 5), SendFuture(settled, "a"))
    assert frame.takes(5, "", SHAPE) and not frame.takes(6, "", SHAPE)
    assert not frame.takes(5, "written", SHAPE) and not frame.takes(5, "", Shape(20))
    assert not Frame("t", 0, "", SHAPE, batch=True).takes(1, "", SHAPE)


def test_a_batch_has_one_receipt_with_all_ids() -> None:
    frame, future = Frame("t", 0, "", SHAPE, batch=True), SendFuture(Condition(), "A,B,C")
    frame.add_batch([b"x" * 10, b"x" * 20, b"x"], future)
    frame.close(1)
    assert (frame.count, frame.size) == (3, 31)
    frame.settle(answer(StoredRun(0, 5, 100), StoredRun(2, 9, 500)), None)
    receipt = future.result(0)
    assert (receipt.queue_offset, receipt.physical_offset) == (5, 100)
    assert receipt.unique_key == "A,B,C" and receipt.status == "PUT_OK"
    assert receipt.message_id == ",".join(offset_message_id(HOST, at) for at in (100, 110, 500))


def test_a_message_that_is_not_on_disk_in_time_is_an_error_that_says_where_it_is() -> None:
    frame, futures = frame_of([4, 5])
    late = msgspec.structs.replace(answer(StoredRun(0, 5, 6)), status="FLUSH_DISK_TIMEOUT")
    frame.settle(late, None)
    with pytest.raises(FlushTimeout) as caught:
        futures[1].result(0)
    receipt = caught.value.receipt
    assert isinstance(receipt, Receipt) and receipt.status == caught.value.status
    assert (receipt.queue_offset, receipt.physical_offset) == (6, 10)


def test_a_frame_is_made_anew_for_a_broker_of_another_shape() -> None:
    frame, settled = Frame("orders", 3, "", SHAPE), Condition()
    for number in range(3):
        record = encode_record(Record("orders", bytes([number]) * number, b"k\x01v\x02", 3))
        frame.add(record, SendFuture(settled, str(number)))
    frame.close(1)
    before, shape = frame.size, Shape(20, True)
    frame.reshape(shape)
    assert frame.size == len(frame.payload) == before + 3 * (12 + 20)
    assert frame.shape is shape and frame.count == 3
    starts = check_frame(frame.payload, b"orders", 3, 1 << 20, shape=shape)
    frame.settle(answer(StoredRun(0, 0, 1000)), None)
    assert frame.receipt(2, "2").physical_offset == 1000 + starts[2]


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
    frame, future = Frame("t", 0, "", SHAPE), SendFuture(settled, "K")
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
    frame, settled, told = Frame("t", 0, "", SHAPE), Condition(), []
    early, late, never = (SendFuture(settled, key) for key in "abc")
    early.add_done_callback(lambda future: told.append(future.unique_key))
    for future in (early, late, never):
        frame.add(b"x", future)
    late.add_done_callback(lambda future: told.append(future.unique_key))
    frame.close(1)
    frame.settle(answer(StoredRun(0, 5, 6)), None)
    assert told == ["a", "b"]
