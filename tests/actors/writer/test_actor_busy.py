"""A writer that cannot append: what may wait waits, and what cannot is told to come again."""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.actors.committer import Committer
from penstock.actors.writer import Writer
from penstock.actors.writer.actor import FRAMES_AT_ONCE, LINGER_MS
from penstock.actors.writer.refusals import ALLOCATE_TIMEOUT_MS
from penstock.actors.writer.topic_admin import TopicAdmin
from penstock.actors.writer.topic_turns import PAUSE
from penstock.shared.files.descriptors import on_shortage
from penstock.shared.process.doorbells import LAZY_BYTES, QUIET_TICK_MS, TICK_MS
from penstock.shared.process.inflow import LOOK_MS
from penstock.shared.wire.messages import (
    Appended,
    CreateTopic,
    OutOfStep,
    Refused,
    Routed,
    Welcome,
    encode,
)

WAIT_MS, PAGE_CACHE_MS = 200, 1000
LARGE = [bytes(15_000)] * 4
SEGMENT_BYTES = 64 << 10


def work_until(writer: Writer, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        writer.work()


class Full:
    """A writer with a full pool, and a frame that waits for room in it."""

    def __init__(self, broker: Any, client: Callable[..., Any]) -> None:
        self.broker = broker
        broker.allocate(6)
        # a machine's clock stands at more than any wait
        broker.clock.advance(3_600_000)
        self.writer = broker.start(Writer)
        self.first = client(broker, self.writer)
        while self.broker.positions["wrote"] < 200_000:
            self.first.append(LARGE)
        self.first.append(LARGE, answers=0)
        work_until(self.writer, lambda: self.writer._waiting is not None)

    def hold(self, client: Any, count: int = 1, **options: Any) -> None:
        """Send frames; they are held after the one that waits."""
        held = len(self.writer._held._held) + count
        for _ in range(count):
            client.append([b"x"], answers=0, **options)
        work_until(self.writer, lambda: len(self.writer._held._held) == held)

    def commit(self, work: Callable[..., None]) -> None:
        committer = self.broker.start(Committer)
        self.broker.positions.initialise("flush_wanted", self.broker.positions["wrote"])
        work(committer)


@pytest.fixture
def full(pipeline: Callable[..., Any], client: Callable[..., Any]) -> Full:
    return Full(pipeline(), client)


def test_what_waits_a_little_is_stored_in_the_order_it_came(
    full: Full, work: Callable[..., None]
) -> None:
    full.hold(full.first, 5)
    full.broker.clock.advance(WAIT_MS)
    full.writer.work()
    assert not full.first.socket.poll(20)
    full.commit(work)
    answers = full.first.answers(6)
    assert all(isinstance(answer, Appended) for answer in answers)
    assert [answer.seq for answer in answers] == sorted(answer.seq for answer in answers)


def test_a_frame_that_waits_too_long_is_turned_away_with_what_is_behind_it(
    full: Full, work: Callable[..., None]
) -> None:
    full.hold(full.first, 3)
    full.broker.clock.advance(WAIT_MS + 1)
    refused, second, third = full.first.answers(3)
    assert isinstance(refused, Refused) and refused.status == "SYSTEM_BUSY"
    assert refused.retry_after_ms > 0 and "wait_time_in_send_queue_ms" in refused.what
    assert isinstance(second, OutOfStep) and isinstance(third, OutOfStep)
    wrote = full.broker.positions["wrote"]
    full.commit(work)
    (waited,) = full.first.answers(1)
    assert isinstance(waited, Appended), "the frame that was being appended is stored"
    assert full.broker.positions["wrote"] > wrote
    assert isinstance(full.first.hello(), Welcome)
    (answer,) = full.first.append([b"x"])
    assert isinstance(answer, Appended)


def test_an_append_that_takes_too_long_turns_everything_away_at_once(
    full: Full, client: Callable[..., Any]
) -> None:
    full.broker.clock.advance(PAGE_CACHE_MS + 1)
    other = client(full.broker, full.writer)
    (refused,) = other.append([b"x"])
    assert isinstance(refused, Refused) and refused.status == "OS_PAGE_CACHE_BUSY"
    assert refused.retry_after_ms > 0


def test_a_writer_looks_at_each_tick_and_does_not_leave_while_anything_waits(
    full: Full, work: Callable[..., None]
) -> None:
    writer, clock = full.writer, full.broker.clock
    assert (writer.idle_ms(), writer.drained()) == (TICK_MS, False), "a frame waits for room"
    clock.advance(LINGER_MS)
    assert not writer.drained(), "and still does"
    full.hold(full.first)
    full.commit(work)
    full.first.answers(2)
    work_until(writer, lambda: not (writer._waiting or writer._held or writer._pending))
    writer.work()
    assert writer.idle_ms() == QUIET_TICK_MS
    writer._callers._inlet.idle_ms = LOOK_MS
    assert writer.idle_ms() == LOOK_MS, "a connection sends what is no request yet"
    assert not writer.drained(), "its answers are on their way"
    clock.advance(LINGER_MS)
    assert writer.drained()


def test_a_writer_with_a_topic_to_make_looks_at_each_tick_and_does_not_leave(
    pipeline: Callable[..., Any],
    produce_answer: Callable[[list[bytes]], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = pipeline()
    answer_all = TopicAdmin.answer_all

    def slow(*request: Any) -> Any:
        broker.clock.advance(LINGER_MS)
        return answer_all(*request)

    monkeypatch.setattr(TopicAdmin, "answer_all", slow)
    writer, socket = broker.start(Writer), broker.client(broker.run.endpoints.produce)
    broker.ask(writer, socket, encode(CreateTopic(1, "first", 1)))
    assert writer.idle_ms() == QUIET_TICK_MS
    socket.send(encode(CreateTopic(2, "second", 1)))
    work_until(writer, lambda: bool(writer._topic_turns))
    assert (writer.idle_ms(), writer.drained()) == (TICK_MS, False)
    broker.clock.advance(LINGER_MS)
    assert not writer.drained(), "it is made after a pause"
    broker.clock.advance(PAUSE * LINGER_MS)
    assert writer.work() == 1
    assert produce_answer(broker.ask(writer, socket)[0]) == Routed(2, "second", 1)


def test_after_as_much_as_a_flood_brings_a_writer_looks_again_before_it_sleeps(
    pipeline: Callable[..., Any], client: Callable[..., Any]
) -> None:
    broker = pipeline()
    broker.allocate(2)
    writer = broker.start(Writer)
    producer = client(broker, writer)
    for size, is_flood in ((LAZY_BYTES // 4, True), (1, False)):
        producer.append([bytes(size)] * 4)
        assert writer.has_more() is is_flood


def test_held_frames_are_taken_some_at_a_time_and_what_comes_meanwhile_is_after_them(
    full: Full, work: Callable[..., None]
) -> None:
    writer, left = full.writer, 8
    full.hold(full.first, FRAMES_AT_ONCE + left)
    full.commit(work)
    assert writer.work() == 1 + FRAMES_AT_ONCE, "the one that waited, and some that were held"
    assert len(writer._held._held) == left and writer.has_more()
    assert (writer.idle_ms(), writer.drained()) == (TICK_MS, False)
    full.broker.clock.advance(LINGER_MS)
    assert not writer.drained()
    full.first.writer = SimpleNamespace(work=lambda: 0)
    full.first.append([b"x"], answers=0)
    full.first.writer = writer
    assert writer._callers.socket.poll(60_000), "it is there before the others are taken"
    answers = full.first.answers(1 + FRAMES_AT_ONCE + left + 1)
    assert all(isinstance(answer, Appended) for answer in answers)
    assert [answer.seq for answer in answers] == sorted(answer.seq for answer in answers)


def test_a_disk_that_takes_a_frame_now_and_then_is_not_too_slow(
    pipeline: Callable[..., Any], client: Callable[..., Any], work: Callable[..., None]
) -> None:
    """The page cache is busy since the last append, though another frame waits at once."""
    full = Full(pipeline(wait_time_in_send_queue_ms=60_000), client)
    writer, clock = full.writer, full.broker.clock
    full.broker.allocate(1)
    for _ in range(2):
        full.first.append(LARGE, answers=0)
    work_until(writer, lambda: len(writer._held._held) == 2)
    for number in range(1, 3):
        clock.advance(PAGE_CACHE_MS)
        waited = writer._waiting
        full.broker.positions.initialise("committed", number * SEGMENT_BYTES)
        writer.work()
        assert writer._waiting is not None and writer._waiting is not waited
    clock.advance(PAGE_CACHE_MS)
    full.hold(full.first)
    full.commit(work)
    assert all(isinstance(answer, Appended) for answer in full.first.answers(4))


def test_questions_are_answered_while_frames_wait(full: Full, client: Callable[..., Any]) -> None:
    """Except after a frame: the answer would say that the frame is missing."""
    other = client(full.broker, full.writer)
    assert isinstance(other.hello(), Welcome)


def test_the_frame_that_was_being_appended_may_come_again_as_well(full: Full) -> None:
    full.broker.clock.advance(ALLOCATE_TIMEOUT_MS + 1)
    (refused,) = full.first.answers(1)
    assert isinstance(refused, Refused) and refused.status == "SYSTEM_BUSY"
    assert "pool" in refused.what and refused.retry_after_ms > 0


def test_what_is_held_is_bounded_and_the_rest_stays_outside(full: Full) -> None:
    for _ in range(1010):
        full.first.append([b"x"], answers=0)
    work_until(full.writer, lambda: not full.writer._may_receive())
    full.writer.work()
    assert full.writer._callers.socket.poll(60_000), "what stays outside"
    ready = full.broker.stage_of(full.writer).sleep(0)
    assert full.writer._callers.socket not in ready, "does not end each sleep at once"
    assert len(full.writer._held._held) == 1000
    full.broker.clock.advance(WAIT_MS + 1)
    assert len(full.first.answers(1000)) == 1000
    work_until(full.writer, lambda: len(full.writer._held._held) == 10)
    full.broker.clock.advance(WAIT_MS + 1)
    assert {type(answer) for answer in full.first.answers(10)} == {OutOfStep}


def test_a_frame_may_fill_the_pool_to_its_last_byte(full: Full) -> None:
    positions = full.broker.positions
    free = positions["append_wanted"] - full.broker.config.transient_store_pool_bytes
    for committed, has_room in ((free - 1, False), (free, True)):
        positions.initialise("committed", committed)
        full.writer.work()
        assert (full.writer._waiting is None) is has_room
    assert isinstance(full.first.answers(1)[0], Appended)


def test_with_fast_failure_a_full_pool_is_said_at_once(
    pipeline: Callable[..., Any], client: Callable[..., Any]
) -> None:
    broker = pipeline(fast_fail_if_no_buffer_in_store_pool=True)
    broker.allocate(6)
    producer = client(broker, broker.start(Writer))
    answers = [producer.append(LARGE)[0] for _ in range(4)]
    while isinstance(answers[-1], Appended):
        answers += producer.append(LARGE)
    assert isinstance(answers[-1], Refused) and answers[-1].status == "SYSTEM_BUSY"
    assert answers[-1].value == "it is full"
    (after,) = producer.append([b"x"])
    assert isinstance(after, OutOfStep)


def test_frames_that_the_disk_keeps_waiting_for_their_answer_block_others_in_time(
    pipeline: Callable[..., Any], client: Callable[..., Any]
) -> None:
    broker = pipeline(max_pending_bytes=50_000)
    broker.allocate(2)
    writer = broker.start(Writer)
    producer = client(broker, writer)
    for _ in range(2):
        wrote = broker.positions["wrote"]
        producer.append(LARGE, ack="durable", answers=0)
        work_until(writer, lambda wrote=wrote: broker.positions["wrote"] > wrote)
    producer.append([b"x"], answers=0)
    work_until(writer, lambda: bool(writer._held))
    broker.clock.advance(WAIT_MS + 1)
    (refused,) = producer.answers(1)
    assert isinstance(refused, Refused) and refused.status == "SYSTEM_BUSY"


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_frame_is_held_where_just_as_many_bytes_wait_for_the_disk_as_may(
    pipeline: Callable[..., Any],
    client: Callable[..., Any],
    frame: Callable[..., bytes],
    beyond: int,
) -> None:
    """They count from the end of the first frame, whose answer is the first that waits."""
    size = len(frame("orders", 0, [b"x"]))
    broker = pipeline(max_pending_bytes=size + beyond)
    broker.allocate(1)
    writer = broker.start(Writer)
    producer = client(broker, writer)
    for number in range(1, 3):
        producer.append([b"x"], ack="durable", answers=0)
        work_until(writer, lambda number=number: broker.positions["wrote"] == number * size)
    producer.append([b"x"], answers=0)
    work_until(writer, lambda: bool(writer._held) or broker.positions["wrote"] == 3 * size)
    assert bool(writer._held) is not bool(beyond)
    broker.positions.initialise("flushed", size)
    assert [answer.seq for answer in producer.answers(2)] == ([3, 1] if beyond else [1, 3])


def test_a_writer_that_lacks_files_ends_and_its_successor_stores_the_frame(
    pipeline: Callable[..., Any], client: Callable[..., Any]
) -> None:
    """Too few files for a segment say nothing of the disk: nobody is told that it is missing."""
    broker = pipeline(transient_store_pool_enable=False)
    broker.allocate(1)
    writer = broker.start(Writer)
    broker.give_neighbours(writer)
    producer = client(broker, writer)
    (before,) = producer.append(LARGE, keys="before-")
    assert isinstance(before, Appended)
    broker.allocate(8)
    on_shortage(lambda: False)  # an actor that was in this process before would make room
    gc.collect()  # else what others have left is closed meanwhile, and makes room
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.dup(0)
    os.close(spare)
    # one is free, for the look at the door; a segment needs another for its mapping
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare + 1, limits[1]))
    segments = 1
    try:
        with pytest.raises(OSError, match="Too many open files"):
            # ZeroMQ's threads close what earlier tests had: then a frame finds room, the next not
            while segments < 8:
                wrote = broker.positions["wrote"]
                (stored,) = producer.append(LARGE, keys=f"lacking-{segments}-")
                assert isinstance(stored, Appended)
                segments += 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not producer.socket.poll(50), "no answer"
    assert broker.positions["wrote"] == wrote
    broker.crash(writer)
    successor = client(broker, broker.start(Writer))
    successor.session = producer.session
    successor.hello(stored_after=before.runs[0].physical_offset)
    (answer,) = successor.append(LARGE, keys=f"lacking-{segments}-", retry=True)
    assert isinstance(answer, Appended)
    assert [run.queue_offset for run in answer.runs] == [segments * len(LARGE)]
    assert answer.runs[0].physical_offset == segments * SEGMENT_BYTES
