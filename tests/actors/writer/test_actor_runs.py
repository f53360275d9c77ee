"""Frames of several runs: each queue's messages in their order, and all of the frame or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.actors.writer import Writer
from penstock.shared.wire.messages import (
    Appended,
    CreateTopic,
    DeleteTopic,
    OutOfStep,
    QueueRun,
    Refused,
    encode,
)

SEGMENT_BYTES = 64 << 10


def run_of(queue_id: int, count: int, batch: bool = False) -> QueueRun:
    return QueueRun("orders", queue_id, count, batch)


def told(answer: Any) -> list[tuple[int, int, int]]:
    assert isinstance(answer, Appended), answer
    return [(run.first, run.queue_offset, run.physical_offset) for run in answer.runs]


def test_a_frame_of_several_queues_is_stored_in_its_order_and_says_where_each_went(
    pipeline: Callable[..., Any], client: Callable[..., Any], frame: Callable[..., bytes]
) -> None:
    broker = pipeline()
    broker.allocate(1)
    producer = client(broker, broker.start(Writer))
    producer.append([b"before"], queue_id=2)
    begin = broker.positions["wrote"]
    one, two = frame("orders", 2, [b"x"]), frame("orders", 0, [b"yy", b"z"])
    three = frame("orders", 2, [b"later"])
    runs = [run_of(2, 1), run_of(0, 2), run_of(2, 1)]
    (answer,) = producer.append_runs(runs, one + two + three)
    after = begin + len(one)
    assert told(answer) == [(0, 1, begin), (1, 0, after), (3, 2, after + len(two))]
    assert broker.positions["wrote"] == begin + len(one + two + three)


def test_a_frame_is_cut_where_a_segment_ends_and_its_batch_is_not(
    pipeline: Callable[..., Any], client: Callable[..., Any], frame: Callable[..., bytes]
) -> None:
    broker = pipeline()
    broker.allocate(2)
    producer = client(broker, broker.start(Writer))
    producer.append([bytes(13_000)] * 3)
    wrote = broker.positions["wrote"]
    singles, batch = frame("orders", 0, [bytes(9_000)] * 2), frame("orders", 1, [bytes(8_000)] * 2)
    runs = [run_of(0, 2), run_of(1, 2, batch=True)]
    (answer,) = producer.append_runs(runs, singles + batch)
    assert told(answer) == [(0, 3, wrote), (2, 0, SEGMENT_BYTES)]
    singles = frame("orders", 2, [bytes(15_000)] * 4)
    broker.positions.initialise("committed", broker.positions["wrote"])
    broker.allocate(1)
    (answer,) = producer.append_runs([run_of(2, 4)], singles)
    at = SEGMENT_BYTES + len(batch)
    assert told(answer) == [(0, 0, at), (3, 3, 2 * SEGMENT_BYTES)]


@pytest.mark.parametrize("survive", range(7))
def test_a_retry_of_which_any_beginning_is_stored_stores_the_rest_of_every_run(
    pipeline: Callable[..., Any],
    client: Callable[..., Any],
    frame: Callable[..., bytes],
    survive: int,
) -> None:
    """A power failure cuts off the end of a frame, in any of its runs."""
    broker = pipeline()
    broker.allocate(1)
    producer = client(broker, broker.start(Writer))
    parts, spans = [(0, 2, False), (1, 3, True), (0, 1, False)], [(0, 2), (2, 5), (5, 6)]
    records = []
    for number, (queue_id, count, _) in enumerate(parts):
        records += [
            (queue_id, frame("orders", queue_id, [b"x"], f"{number}-{i}-")) for i in range(count)
        ]
    for queue_id, record in records[:survive]:
        producer.append_runs([run_of(queue_id, 1)], record)
    producer.append([b"other"], queue_id=1, keys="other-")
    wrote = broker.positions["wrote"]
    producer.hello(stored_after=0)
    runs = [run_of(*part) for part in parts]
    payload = b"".join(record for _, record in records)
    (answer,) = producer.append_runs(runs, payload, retry=True)
    again = told(answer)
    # what was there is named one by one; of the others, each run
    firsts = {*range(survive), *(max(first, survive) for first, end in spans if survive < end)}
    offsets = {0: 0, 1: 0}
    expected = []
    for number, (queue_id, _) in enumerate(records):
        if number == survive:
            offsets[1] += 1  # the other message of that queue came in between
        expected += [(number, offsets[queue_id])] if number in firsts else []
        offsets[queue_id] += 1
    assert [each[:2] for each in again] == expected
    assert broker.positions["wrote"] == wrote + sum(len(r) for _, r in records[survive:])


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        (QueueRun("orders", 4, 1), "QUEUE_NOT_EXIST"),
        (QueueRun("none", 0, 1), "TOPIC_NOT_EXIST"),
        (QueueRun("orders", 1, 2), "MESSAGE_ILLEGAL"),
        (QueueRun("orders", 1, 0), "MESSAGE_ILLEGAL"),
    ],
)
def test_a_wrong_run_refuses_the_frame_and_what_is_behind_it(
    pipeline: Callable[..., Any],
    client: Callable[..., Any],
    frame: Callable[..., bytes],
    wrong: QueueRun,
    status: str,
) -> None:
    """The others come again, in another session, and then before what was after the frame."""
    broker = pipeline()
    broker.allocate(1)
    producer = client(broker, broker.start(Writer))
    payload = frame("orders", 0, [b"x"]) + frame(wrong.topic, wrong.queue_id, [b"y"])
    (refused,) = producer.append_runs([run_of(0, 1), wrong], payload)
    assert isinstance(refused, Refused) and refused.status == status
    (after,) = producer.append([b"behind"])
    assert isinstance(after, OutOfStep)
    assert broker.positions["wrote"] == 0
    producer.hello()
    (alone,) = producer.append_runs([wrong], frame(wrong.topic, wrong.queue_id, [b"y"]))
    assert isinstance(alone, Refused)
    (answer,) = producer.append([b"x"])
    assert told(answer) == [(0, 0, 0)], "a frame of one run that is refused is answered for good"


def test_a_frame_whose_topic_goes_while_it_waits_for_room_is_refused_and_ends_its_session(
    pipeline: Callable[..., Any], client: Callable[..., Any], frame: Callable[..., bytes]
) -> None:
    """The messages of its other topics come again, and before what is after the frame."""
    broker = pipeline()
    writer = broker.start(Writer)
    producer, other = client(broker, writer), client(broker, writer)
    other.ask(encode(CreateTopic(2, "bills", 1)))
    payload = frame("orders", 0, [b"x"]) + frame("bills", 0, [b"y"])
    producer.append_runs([run_of(0, 1), QueueRun("bills", 0, 1)], payload, answers=0)
    while not broker.positions["append_wanted"]:
        writer.work()
    other.ask(encode(DeleteTopic(3, "bills")))
    broker.allocate(1)
    (refused,) = producer.answers(1)
    assert isinstance(refused, Refused) and refused.status == "TOPIC_NOT_EXIST"
    assert isinstance(producer.append([b"behind"])[0], OutOfStep)
    assert broker.positions["wrote"] == 0


def test_a_batch_is_measured_by_its_own_records_and_not_by_what_comes_after_it(
    pipeline: Callable[..., Any], client: Callable[..., Any], frame: Callable[..., bytes]
) -> None:
    broker = pipeline(max_message_size_bytes=10_000)
    broker.allocate(1)
    producer = client(broker, broker.start(Writer))
    one, two = frame("orders", 0, [bytes(5_000)] * 2), frame("orders", 1, [bytes(10_000)])
    (answer,) = producer.append_runs([run_of(0, 2, batch=True), run_of(1, 1)], one + two)
    assert told(answer) == [(0, 0, 0), (2, 0, len(one))]
    one = frame("orders", 0, [bytes(5_000), bytes(5_001)])
    (answer,) = producer.append_runs([run_of(0, 2, batch=True), run_of(1, 1)], one + two)
    assert isinstance(answer, Refused) and "the batch is larger than 10000 bytes" in answer.what


def test_a_batch_is_measured_by_its_own_records_and_not_by_what_comes_before_it(
    pipeline: Callable[..., Any], client: Callable[..., Any], frame: Callable[..., bytes]
) -> None:
    broker = pipeline(max_message_size_bytes=20_000)
    broker.allocate(2)
    producer = client(broker, broker.start(Writer))
    singles, batch = frame("orders", 0, [bytes(9_000)] * 3), frame("orders", 1, [bytes(9_000)] * 2)
    # where it begins in the frame and where it ends come to more than a segment
    assert 2 * len(singles) + len(batch) > SEGMENT_BYTES > len(singles) + len(batch)
    (answer,) = producer.append_runs([run_of(0, 3), run_of(1, 2, batch=True)], singles + batch)
    assert told(answer) == [(0, 0, 0), (3, 0, len(singles))]
