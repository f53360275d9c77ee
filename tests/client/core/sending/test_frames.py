"""Frames: one answer settles all messages; each receipt is worked out from the runs it names."""

from __future__ import annotations

import os
import sys
import threading
from array import array
from itertools import accumulate
from threading import Condition

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.core.delays import Recall, recall_handle
from penstock.client.core.sending.encoding import BrokerLimits
from penstock.client.core.sending.frames import Frame, Receipt, Sender, SendFuture, outcome_of
from penstock.client.core.sending.outbox import Outbox
from penstock.client.core.sending.round_robin import RoundRobin
from penstock.client.core.sending.routes import Parked
from penstock.shared.errors import ConnectError, FlushTimeout, StoreUnavailable
from penstock.shared.formats.message_id import KeyOrigin, make_unique_key, offset_message_id
from penstock.shared.loops.active import Intake, KeyNumbers
from penstock.shared.loops.forms import FRAME_BYTES, Plain
from penstock.shared.messaging.delayed import Delay
from penstock.shared.wire.messages import Appended, QueueRun, StoredRun

HOST = b"\x7f\0\0\1\0\0\x51\xaf"
ORIGIN = KeyOrigin("0A" * 10, 0)
DRAFT = b""


def sender() -> Sender:
    return Sender(Condition(), ORIGIN)


def key(number: int) -> str:
    return make_unique_key(ORIGIN, number)


def outbox_of(*topics: str) -> Outbox:
    turns = RoundRobin()
    for topic in topics:
        turns.begin(topic, 9)
    plain = Plain(SendFuture, sender(), "", KeyNumbers(ORIGIN), BrokerLimits(), 0, 0)
    return Outbox(Intake(plain, turns.now, {}), turns)


def frame_of(sizes: list[int], queues: list[int] | None = None) -> tuple[Frame, list[SendFuture]]:
    """A frame of single messages, those of a queue together, whose records have these sizes."""
    outbox, shared = outbox_of("orders", "t", "u", "a", "b", "other"), sender()
    futures = [SendFuture(shared, number) for number in range(len(sizes))]
    queues = queues or [3] * len(sizes)
    for future, queue_id in zip(futures, queues, strict=True):
        outbox.put("orders", queue_id, "", DRAFT, 1, future)
    frame = outbox.take()
    frame.close(7)
    frame.packed([0, *accumulate(sizes)])
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
        assert (receipt.topic, receipt.queue_id, receipt.unique_key) == ("orders", 3, key(i))
        assert receipt.message_id == offset_message_id(HOST, places[i][1])
        assert receipt.store_timestamp_ms == 99


def test_messages_of_a_queue_stand_together_in_their_order() -> None:
    frame, futures = frame_of([10, 20, 30, 40, 50], [1, 0, 1, 2, 0])
    assert frame.packed([0, 10, 20, 30, 40, 50]) == (
        QueueRun("orders", 1, 2),
        QueueRun("orders", 0, 2),
        QueueRun("orders", 2, 1),
    )
    frame.settle(answer(StoredRun(0, 7, 100), StoredRun(2, 0, 120), StoredRun(4, 9, 900)), None)
    found = [future.result(0) for future in futures]
    assert [(each.queue_id, each.queue_offset, each.physical_offset) for each in found] == [
        (1, 7, 100),
        (0, 0, 120),
        (1, 8, 110),
        (2, 9, 900),
        (0, 1, 130),
    ]


def test_a_frame_takes_what_fits_and_is_of_its_kind() -> None:
    outbox, shared = outbox_of("orders", "t", "u", "a", "b", "other"), sender()

    def frames(*asked: tuple[str, int]) -> list[int]:
        for ack, size in asked:
            outbox.put("t", 0, ack, DRAFT, size, SendFuture(shared, 0))
        found = []
        while outbox:
            found.append(outbox.take().size)
        return found

    most = FRAME_BYTES - 5
    assert frames(("", most), ("", 5)) == [FRAME_BYTES]
    assert frames(("", most), ("", 6)) == [most, 6]
    assert frames(("", 5), ("written", 5), ("", 5)) == [5, 5, 5]
    assert frames(("", 2 * FRAME_BYTES), ("", 5)) == [2 * FRAME_BYTES, 5]


def test_a_frame_that_has_waited_takes_no_message_whose_time_has_just_begun() -> None:
    outbox, shared = outbox_of("orders", "t", "u", "a", "b", "other"), sender()
    outbox.put("t", 0, "", DRAFT, 1, SendFuture(shared, 0))
    assert outbox.give_up(1000, 0) == []
    outbox.put("t", 0, "", DRAFT, 1, SendFuture(shared, 1))
    assert outbox.give_up(1500, 500) == []
    (late,) = outbox.give_up(2000, 1200)
    assert len(late.futures) == 1 and outbox
    assert outbox.give_up(2600, 1501) and not outbox


def test_a_batch_has_one_receipt_with_all_ids_and_stands_where_it_was_sent() -> None:
    outbox, shared = outbox_of("orders", "t", "u", "a", "b", "other"), sender()
    futures = [
        SendFuture(shared, 0),
        SendFuture(shared, 1, array("q", [1, 2, 3])),
        SendFuture(shared, 4),
    ]
    outbox.put("t", 0, "", DRAFT, 1, futures[0])
    outbox.put_batch("t", 0, "", [DRAFT] * 3, 31, futures[1])
    outbox.put("t", 0, "", DRAFT, 1, futures[2])
    frame = outbox.take()
    frame.close(1)
    counts = [("t", 1, futures[0]), ("t", 3, futures[1]), ("t", 1, futures[2])]
    assert frame.counted_futures() == counts
    runs = frame.packed([0, 1, 11, 31, 32, 40])
    assert runs == (QueueRun("t", 0, 1), QueueRun("t", 0, 3, True), QueueRun("t", 0, 1))
    frame.settle(answer(StoredRun(0, 4, 99), StoredRun(1, 5, 100), StoredRun(3, 9, 500)), None)
    receipt = futures[1].result(0)
    assert (receipt.queue_offset, receipt.physical_offset) == (5, 100)
    assert receipt.unique_key == f"{key(1)},{key(2)},{key(3)}" and receipt.status == "PUT_OK"
    assert receipt.message_id == ",".join(offset_message_id(HOST, at) for at in (100, 110, 500))
    assert futures[2].result(0).physical_offset == 501


def test_a_frame_in_two_halves_has_the_same_messages_in_their_order() -> None:
    outbox, shared = outbox_of("orders", "t", "u", "a", "b", "other"), sender()
    futures = [SendFuture(shared, number) for number in range(5)]
    for number, future in enumerate(futures):
        outbox.put("t", number % 3, "", DRAFT, 7, future)
    frame = outbox.take()
    frame.close(3)
    frame.retry, frame.since_ms, frame.watched, frame.tried = True, 5000, True, (8, 9)
    first, second = frame.halves(lambda topic, draft: 7)
    assert (first.size, second.size) == (14, 21)
    for half, places in ((first, [(0, 2)]), (second, [(0, 2), (2, 1)])):
        assert (half.seq, half.retry, half.since_ms, half.watched) == (3, True, 5000, True)
        assert half.tried == (8, 9)
        assert [(run.first, run.count) for run in half.runs] == places
    second.close(4)
    second.packed([0, 7, 14, 21])
    second.settle(answer(StoredRun(0, 50, 1000), StoredRun(2, 60, 1014)), None)
    assert [future.done() for future in futures] == [False, True, True, False, True]
    assert [futures[i].result(0).queue_offset for i in (1, 4, 2)] == [50, 51, 60]
    first.settle(None, StoreUnavailable("the store is read-only"))
    assert isinstance(futures[3].exception(0), StoreUnavailable)


def test_a_message_that_is_not_on_disk_in_time_is_an_error_that_says_where_it_is() -> None:
    frame, futures = frame_of([4, 5])
    late = msgspec.structs.replace(answer(StoredRun(0, 5, 6)), status="FLUSH_DISK_TIMEOUT")
    frame.settle(late, None)
    with pytest.raises(FlushTimeout) as caught:
        futures[1].result(0)
    receipt = caught.value.receipt
    assert isinstance(receipt, Receipt) and receipt.status == caught.value.status
    assert (receipt.queue_offset, receipt.physical_offset) == (6, 10)


def test_an_error_is_that_of_every_message_of_the_frame() -> None:
    frame, futures = frame_of([1, 1])
    assert not futures[0].done()
    frame.settle(None, StoreUnavailable("the store is read-only"))
    for future in futures:
        assert future.done() and isinstance(future.exception(0), StoreUnavailable)
        with pytest.raises(StoreUnavailable):
            future.result(0)


def test_a_future_keeps_none_of_its_neighbours_alive() -> None:
    frame, (future, _) = frame_of([1, 1])
    frame.settle(answer(StoredRun(0, 5, 6)), None)
    assert future.run is not None and future.run.futures == future.run.drafts == []


def test_whoever_asks_for_a_receipt_has_asked_for_the_error() -> None:
    frame, (asked, other) = frame_of([1, 1])
    frame.settle(None, StoreUnavailable("the store is read-only"))
    with pytest.raises(StoreUnavailable):
        asked.result(0)
    assert asked.seen and not other.seen


def test_a_future_shows_what_has_become_of_its_message() -> None:
    texts, stored = [], answer(StoredRun(0, 5, 6))
    late = msgspec.structs.replace(stored, status="FLUSH_DISK_TIMEOUT")
    error = StoreUnavailable("the store is read-only")
    for outcome, failure in ((stored, None), (late, None), (None, error)):
        frame, (future,) = frame_of([1])
        texts.append(repr(future))
        frame.settle(outcome, failure)
        texts.append(repr(future))
        assert not future.seen, "to look is not to ask"
    alone = SendFuture(sender(), 1)
    texts.append(repr(alone))
    alone.fail(error)
    texts.append(repr(alone))
    assert [text.removeprefix("<SendFuture").removesuffix(">") for text in texts] == [
        " to orders: no outcome yet",
        " to orders/3@5: PUT_OK",
        " to orders: no outcome yet",
        " to orders/3@5: FLUSH_DISK_TIMEOUT",
        " to orders: no outcome yet",
        " to orders: StoreUnavailable",
        ": no outcome yet",
        ": StoreUnavailable",
    ]


def test_in_a_fork_nobody_waits_for_an_outcome_that_comes_elsewhere() -> None:
    parent = os.getppid()
    future = SendFuture(Sender(Condition(), ORIGIN, "tcp://x:1", parent), 1)
    with pytest.raises(StoreUnavailable, match="fork of the one that sent the message"):
        future.result(60)
    future.fail(ConnectError("known before the fork"))
    assert future.exception(60) is future.error


@pytest.mark.parametrize(
    ("delay", "due_ms"),
    [
        (Delay(out_ms=5000), 5000),
        (Delay(out_ms=50), 50),
        (Delay(out_ms=5000, delay_ms=950), 5000),
        # the broker has stored it at 99, and counts from there
        (Delay(out_ms=1000, delay_ms=950), 1049),
        (Delay(3), None),
        (Delay(out_ms=5000, recalls="another"), None),
    ],
)
def test_what_waits_for_a_time_of_its_own_has_a_handle_that_recalls_it(
    delay: Delay, due_ms: int | None
) -> None:
    outbox, future = outbox_of("orders"), outcome_of(sender(), 4, "orders", delay)
    outbox.enter(0, Parked("orders", [DRAFT], 1, future, None, None, "", delay=delay))
    frame = outbox.take()
    frame.close(7)
    frame.packed([0, 1])
    frame.settle(answer(StoredRun(0, 5, 6)), None)
    handle = "" if due_ms is None else recall_handle(Recall("orders", due_ms, key(4)))
    assert future.result(0).recall_handle == handle


def test_a_callback_that_ends_its_program_ends_nothing_here(
    caplog: pytest.LogCaptureFixture,
) -> None:
    frame, (first, second) = frame_of([1, 1])
    told: list[str] = []
    first.add_done_callback(lambda future: sys.exit("enough"))
    for future in (first, second):
        future.add_done_callback(lambda future: told.append(future.unique_key))
    frame.settle(answer(StoredRun(0, 5, 6)), None)
    assert told == [key(0), key(1)] and "enough" in caplog.text
    assert not first.watched, "a callback is called once, and forgotten"


def test_an_outcome_that_does_not_come_in_time_is_an_error_and_may_still_come() -> None:
    frame, futures = frame_of([1])
    with pytest.raises(ConnectError, match=r"0\.01 s"):
        futures[0].result(0.01)
    frame.settle(answer(StoredRun(0, 5, 6)), None)
    assert futures[0].exception(0) is None and futures[0].result(0).queue_offset == 5


def test_waiting_ends_with_the_outcome() -> None:
    frame, (future,) = frame_of([1])
    settled = future.sender.settled
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(future.result(60).queue_offset))
    waiting.start()
    with settled:
        frame.settle(answer(StoredRun(0, 5, 6)), None)
        settled.notify_all()
    waiting.join(60)
    assert found == [5]


def test_who_asked_to_be_told_is_told_in_the_order_of_the_frame() -> None:
    frame, (first, second, _) = frame_of([1, 1, 1])
    told: list[str] = []
    for future in (second, first):
        future.add_done_callback(lambda future: told.append(future.unique_key))
    frame.settle(answer(StoredRun(0, 5, 6)), None)
    assert told == [key(0), key(1)]
