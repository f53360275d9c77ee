"""The writer and what is sent again: found by all of it, in turns with what others send."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.actors.writer import Writer
from penstock.actors.writer.actor import RETRY_MS, RETRY_STEPS
from penstock.actors.writer.refusals import ALLOCATE_TIMEOUT_MS
from penstock.actors.writer.retries import MEMORY_MS
from penstock.actors.writer.retry_index import RetryIndex
from penstock.shared.process.doorbells import TICK_MS
from penstock.shared.wire.messages import (
    Append,
    Appended,
    CreateTopic,
    OutOfStep,
    QueueRun,
    Refused,
    encode,
)

Maker = Callable[..., Any]


def send(producer: Any, payload: bytes, topic: str = "orders", retry: bool = False) -> None:
    """A frame of one record, whose answer nobody waits for."""
    runs = (QueueRun(topic, 0, 1),)
    header = Append(producer.producer, producer.session, producer.seq, runs, "written", retry)
    producer.seq += 1
    producer.ask(encode(header), payload, answers=0)


def test_a_key_that_another_topic_has_stored_acknowledges_nothing(
    pipeline: Maker, client: Maker, frame: Maker
) -> None:
    broker = pipeline()
    broker.allocate(2)
    writer = broker.start(Writer)
    honest, evil = client(broker, writer), client(broker, writer)
    evil.ask(encode(CreateTopic(2, "evil", 1)))
    forged = frame("evil", 0, [b"forged"], "key-")
    (stored,) = evil.append_runs([QueueRun("evil", 0, 1)], forged)
    (first,) = honest.append([b"order"], keys="key-", retry=True)
    assert isinstance(first, Appended)
    assert first.runs[0].physical_offset > stored.runs[0].physical_offset, "it is stored itself"
    (again,) = honest.append([b"order"], keys="key-", retry=True)
    assert again.runs == first.runs
    (other,) = honest.append([b"order"], keys="key-", queue_id=1, retry=True)
    assert other.runs[0].physical_offset > first.runs[0].physical_offset, "another queue's"


def test_an_offset_in_a_body_is_no_place_to_look_from(
    pipeline: Maker, client: Maker, frame: Maker
) -> None:
    """A body that holds a record with its right offset, and a session that says it begins there."""
    broker = pipeline()
    broker.allocate(2)
    writer = broker.start(Writer)
    honest = client(broker, writer)
    evil = client(broker, writer)
    inner = bytearray(frame("orders", 0, [b"order"], "key-"))
    at = broker.positions["wrote"] + 88
    inner[28:36] = at.to_bytes(8, "big")
    evil.append([bytes(inner)], keys="evil-")
    evil.hello(stored_after=at)
    evil.append([b"order"], keys="key-", retry=True)
    wrote = broker.positions["wrote"]
    (answer,) = honest.append([b"order"], keys="key-", retry=True)
    assert answer.runs[0].physical_offset not in (at, wrote), "found where it really is"
    (answer,) = honest.append([bytes(inner)], keys="evil-", retry=True)
    assert answer.runs[0].physical_offset == at - 88, "and so is what was around it"
    assert broker.positions["wrote"] == wrote


@pytest.fixture
def long_log(pipeline: Maker, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A store in whose log a retry has a long way to go."""
    monkeypatch.setattr("penstock.actors.writer.retry_index.STEP_BYTES", 1024)
    broker = pipeline(transient_store_pool_enable=False, mapped_file_size_commit_log_bytes=1 << 20)
    broker.allocate(1)
    broker.append(400, size=2000, topic="evil")
    return broker


def test_while_a_retry_is_looked_for_others_are_served(
    long_log: Any, client: Maker, frame: Maker
) -> None:
    writer = long_log.start(Writer)
    other, retrying = client(long_log, writer), client(long_log, writer)
    retrying.hello(stored_after=0)
    send(retrying, frame("orders", 0, [b"again"], "again-"), retry=True)
    send(retrying, frame("orders", 0, [b"behind"], "behind-"))
    (answer,) = other.append([b"meanwhile"])
    assert answer.runs[0].queue_offset == 0, "stored before the retry was known to be new"
    assert not retrying.socket.poll(0)
    assert [each.runs[0].queue_offset for each in retrying.answers(2)] == [1, 2], "in their order"


def test_a_step_that_takes_long_ends_the_turn(
    long_log: Any, client: Maker, frame: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a log of the smallest messages a step takes many times what it usually does."""
    steps, note = [], RetryIndex._note

    def slow(self: RetryIndex, start: int, stop: int) -> None:
        steps.append(start)
        long_log.clock.advance(RETRY_MS)
        note(self, start, stop)

    monkeypatch.setattr(RetryIndex, "_note", slow)
    writer = long_log.start(Writer)
    retrying = client(long_log, writer)
    retrying.hello(stored_after=0)
    send(retrying, frame("orders", 0, [b"again"], "again-"), retry=True)
    while not steps:
        writer.work()
    assert len(steps) == 1
    assert [each.runs[0].queue_offset for each in retrying.answers(1)] == [0]


def test_steps_that_take_no_time_are_several_in_a_turn(
    long_log: Any, client: Maker, frame: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a retry would wait for four times as many turns, in each of which others are served."""
    steps, note = [], RetryIndex._note

    def noted(self: RetryIndex, start: int, stop: int) -> None:
        steps.append(start)
        note(self, start, stop)

    monkeypatch.setattr(RetryIndex, "_note", noted)
    long_log.clock.advance(RETRY_MS)
    writer = long_log.start(Writer)
    retrying = client(long_log, writer)
    retrying.hello(stored_after=0)
    send(retrying, frame("orders", 0, [b"again"], "again-"), retry=True)
    while not steps:
        writer.work()
    assert len(steps) == RETRY_STEPS
    assert [each.runs[0].queue_offset for each in retrying.answers(1)] == [0]


def test_a_new_writer_looks_for_a_retry_from_where_the_queues_end_and_not_from_the_segment_s_start(
    long_log: Any, client: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gigabyte of the segment would have to be read before anybody is answered."""
    dispatched = long_log.positions["wrote"]
    long_log.positions.initialise("dispatched", dispatched)
    read, whole_until = [], RetryIndex._whole_until

    def noted(self: RetryIndex, start: int, stop: int) -> int:
        read.append(start)
        return whole_until(self, start, stop)

    monkeypatch.setattr(RetryIndex, "_whole_until", noted)
    retrying = client(long_log, long_log.start(Writer))
    (stored,) = retrying.append([b"again"], keys="again-")
    retrying.hello(stored_after=dispatched)
    (found,) = retrying.append([b"again"], keys="again-", retry=True)
    assert found.runs == stored.runs and read == [dispatched]


def test_a_retry_waits_for_room_from_when_it_is_known_to_be_new(
    long_log: Any, client: Maker, frame: Maker
) -> None:
    """To look for it may take longer than a frame may wait."""
    writer, clock = long_log.start(Writer), long_log.clock
    retrying = client(long_log, writer)
    retrying.hello(stored_after=0)
    long_log.positions.initialise("allocated", long_log.positions["wrote"])
    send(retrying, frame("orders", 0, [b"again"], "again-"), retry=True)
    while not writer._retries:
        writer.work()
    assert (writer.idle_ms(), writer.drained()) == (TICK_MS, False)
    clock.advance(ALLOCATE_TIMEOUT_MS + 1)
    assert not writer.drained()
    while writer._retries:
        writer.work()
    assert writer._waiting is not None
    long_log.positions.initialise("allocated", 1 << 20)
    (answer,) = retrying.answers(1)
    assert isinstance(answer, Appended)


def test_no_retry_is_stored_before_a_frame_that_waits_for_room(
    long_log: Any, client: Maker, frame: Maker
) -> None:
    writer = long_log.start(Writer)
    other, retrying = client(long_log, writer), client(long_log, writer)
    retrying.hello(stored_after=0)
    long_log.positions.initialise("allocated", long_log.positions["wrote"])
    send(retrying, frame("orders", 0, [b"again"], "again-"), retry=True)
    while not writer._retries:
        writer.work()
    send(other, frame("orders", 0, [b"waits"]))
    while writer._waiting is None:
        writer.work()
    for _ in range(500):  # more than it takes to find that the retry is new
        writer.work()
    assert writer._retries
    long_log.positions.initialise("allocated", 1 << 20)
    assert [each.answers(1)[0].runs[0].queue_offset for each in (other, retrying)] == [0, 1]


def test_a_retry_that_may_be_too_far_back_is_refused_and_not_stored_a_second_time(
    long_log: Any, client: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote = long_log.positions["wrote"]
    monkeypatch.setattr("penstock.actors.writer.retry_index.MAX_BYTES", wrote - 1)
    retrying = client(long_log, long_log.start(Writer))
    retrying.hello(stored_after=0)
    (refused,) = retrying.append([b"again"], keys="again-", retry=True)
    assert isinstance(refused, Refused) and refused.status == "PULL_OFFSET_MOVED"
    assert (refused.request, refused.session) == (1, retrying.session)
    assert long_log.positions["wrote"] == wrote
    (answer,) = retrying.append([b"new"])
    assert isinstance(answer, Appended), "its answer is final, and the session goes on"


def test_what_a_session_left_unfinished_is_not_stored_behind_the_next_one(
    long_log: Any, client: Maker, frame: Maker
) -> None:
    writer = long_log.start(Writer)
    other, retrying = client(long_log, writer), client(long_log, writer)
    retrying.hello(stored_after=0)
    again = frame("orders", 0, [b"again"], "again-")
    send(retrying, again, retry=True)
    send(retrying, frame("orders", 0, [b"behind"], "behind-"))
    other.append([b"meanwhile"])
    retrying.hello(stored_after=0)
    send(retrying, again, retry=True)
    (answer,) = retrying.answers(1)
    assert answer.session == retrying.session and answer.runs[0].queue_offset == 1
    (answer,) = other.append([b"later"])
    assert answer.runs[0].queue_offset == 2, "the older session's frames were not stored"


def test_what_waits_behind_a_retry_that_is_turned_away_goes_with_it(
    long_log: Any, client: Maker, frame: Maker, work: Maker
) -> None:
    """It comes again as what was never taken: stored before it would be stored twice."""
    writer = long_log.start(Writer)
    retrying = client(long_log, writer)
    retrying.hello(stored_after=0)
    long_log.positions.initialise("allocated", long_log.positions["wrote"])
    long_log.positions.initialise("allocate_error", errno.ENOSPC)
    send(retrying, frame("orders", 0, [b"again"], "again-"), retry=True)
    send(retrying, frame("orders", 0, [b"behind"], "behind-"))
    (refused,) = retrying.answers(1)
    assert refused.request == 1 and refused.status == "CREATE_MAPPED_FILE_FAILED"
    long_log.positions.initialise("allocate_error", 0)
    long_log.positions.initialise("allocated", 1 << 20)
    wrote = long_log.positions["wrote"]
    assert not writer._retries
    work(writer)
    assert long_log.positions["wrote"] == wrote


def test_who_sends_too_much_again_is_turned_away_and_comes_back(
    long_log: Any, client: Maker, frame: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.actors.writer.retries.MAX_WAITING_BYTES", 4000)
    writer = long_log.start(Writer)
    retrying = client(long_log, writer)
    retrying.hello(stored_after=0)
    for number in range(3):
        send(retrying, frame("orders", 0, [bytes(1400)], f"again-{number}"), retry=True)
    send(retrying, frame("orders", 0, [b"behind"]))
    refused, after, *stored = retrying.answers(4)
    assert refused.status == "SYSTEM_BUSY" and refused.retry_after_ms > 0
    assert isinstance(after, OutOfStep), "it comes again after the one that was turned away"
    assert [each.runs[0].queue_offset for each in stored] == [0, 1]


def test_the_index_is_forgotten_some_time_after_the_last_retry(
    long_log: Any, client: Maker, frame: Maker
) -> None:
    writer = long_log.start(Writer)
    retrying = client(long_log, writer)
    retrying.hello(stored_after=0)
    retrying.append([b"again"], keys="again-", retry=True)
    index = writer._retries._index
    assert index._tables
    long_log.clock.advance(MEMORY_MS)
    writer.release_deleted()
    assert index._tables
    long_log.clock.advance(1)
    writer.release_deleted()
    assert not index._tables and not index._spans


def test_of_a_scattered_retry_each_message_is_looked_for_and_the_others_are_stored(
    pipeline: Maker, client: Maker, frame: Maker
) -> None:
    """An actor packs other frames than the life before it: any of its messages may be there."""
    broker = pipeline()
    broker.allocate(2)
    writer = broker.start(Writer)
    before, after = client(broker, writer), client(broker, writer)
    before.ask(encode(CreateTopic(2, "bills", 1)))
    orders = [bytes(frame("orders", 0, [b"order %d" % n], f"order-{n}-")) for n in range(6)]
    bills = [bytes(frame("bills", 0, [b"bill %d" % n], f"bill-{n}-")) for n in range(3)]
    known: dict[int, Any] = {}
    for at, (topic, raw) in {4: ("orders", orders[4]), 1: ("orders", orders[1]),
                             7: ("bills", bills[1])}.items():  # fmt: skip
        (answer,) = before.append_runs([QueueRun(topic, 0, 1)], raw)
        known[at] = answer.runs[0]
    wrote = broker.positions["wrote"]
    runs = (QueueRun("orders", 0, 6), QueueRun("bills", 0, 3))
    payload = b"".join((*orders, *bills))

    def say() -> Any:
        after.hello()
        header = Append(after.producer, after.session, after.seq, runs, "written", True, None, True)
        after.seq += 1
        (answer,) = after.ask(encode(header), payload)
        assert isinstance(answer, Appended), answer
        return answer

    found = say().runs
    assert broker.positions["wrote"] - wrote == len(payload) - sum(
        len(each) for each in (orders[4], orders[1], bills[1])
    )
    starts = [each.first for each in found]
    assert starts == [0, 1, 2, 4, 5, 6, 7, 8], "what lies together is one run"
    for number, there in known.items():
        assert replace(there, first=number) in found
    # where each message is said to be it is
    stored = broker.positions["wrote"]
    again = {each.first: each for each in say().runs}
    assert broker.positions["wrote"] == stored and again.keys() == set(range(9))
    for number in range(9):
        run = max((each for each in found if each.first <= number), key=lambda each: each.first)
        assert again[number].queue_offset == run.queue_offset + number - run.first
        skip = sum(map(len, (*orders, *bills)[run.first : number]))
        assert again[number].physical_offset == run.physical_offset + skip
    offsets = [again[number].queue_offset for number in range(9)]
    assert offsets == [2, 1, 3, 4, 0, 5, 1, 0, 2]


def test_of_any_other_retry_the_beginning_is_looked_for_alone(
    pipeline: Maker, client: Maker, frame: Maker
) -> None:
    """What lies after a message that is not stored was not stored with this frame."""
    broker = pipeline()
    broker.allocate(2)
    writer = broker.start(Writer)
    producer = client(broker, writer)
    first, second = (bytes(frame("orders", 0, [b"x"], f"{n}-")) for n in range(2))
    producer.append_runs([QueueRun("orders", 0, 1)], second)
    (answer,) = producer.append_runs([QueueRun("orders", 0, 2)], first + second, retry=True)
    assert [each.queue_offset for each in answer.runs] == [1]
