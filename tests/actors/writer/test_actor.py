"""The writer: stores frames in order and whole, answers when it may, and stores nothing twice."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.actors.committer import Committer
from penstock.actors.flusher import Flusher
from penstock.actors.reput import Reput
from penstock.actors.writer import Writer
from penstock.actors.writer.actor import LINGER_MS
from penstock.actors.writer.refusals import ALLOCATE_TIMEOUT_MS
from penstock.shared.formats.record_layout import blank_size
from penstock.shared.layout import segment_name
from penstock.shared.loops.pure.walk import walk
from penstock.shared.memory.queue_table import QueueKey, QueueTable
from penstock.shared.process.doorbells import TICK_MS
from penstock.shared.wire.messages import (
    Append,
    Appended,
    CreateTopic,
    OutOfStep,
    QueueRun,
    Refused,
    Routed,
    UpdateTopic,
    encode,
)

SEGMENT_BYTES = 64 << 10
HANG_MS = 60_000  # only what hangs takes that long, however busy the machine


def _stored(broker: Any) -> list[tuple[int, int]]:
    """(queue offset, position) of all records of queue 0, in the order of the log."""
    found, at, wrote = [], 0, broker.positions["wrote"]
    while at < wrote:
        stop = min(wrote, at - at % SEGMENT_BYTES + SEGMENT_BYTES)
        view = memoryview(broker.log(at, stop))
        for record in walk(view, at):
            found.append((record[2], record[4]))
            at = record[4] + record[5]
        at += blank_size(memoryview(broker.log(at, stop))) if at < stop else 0
    return found


def test_an_answer_that_promises_the_disk_waits_for_it(
    pipeline: Callable[..., Any], work: Callable[..., None], client: Callable[..., Any]
) -> None:
    broker = pipeline()
    broker.allocate(1)
    writer, committer, flusher = (broker.start(kind) for kind in (Writer, Committer, Flusher))
    producer = client(broker, writer)
    began_ns = time.monotonic_ns()
    producer.append([b"a"], ack="durable", answers=0)
    while broker.positions["wrote"] == 0:
        writer.work()
    assert broker.positions["flush_wanted"] == broker.positions["wrote"]
    work(committer)
    writer.work()
    assert not producer.socket.poll(50), "committed is not flushed"
    work(flusher)
    (answer,) = producer.answers(1)
    assert isinstance(answer, Appended)
    assert broker.positions["flushed"] == broker.positions["wrote"]
    assert answer.runs[0].physical_offset == 0
    took_ns, counts = broker.positions.durations("acknowledge")
    assert sum(counts) == 1 and 0 < took_ns < time.monotonic_ns() - began_ns


def test_an_answer_that_promises_no_disk_does_not_wait(
    pipeline: Callable[..., Any], client: Callable[..., Any]
) -> None:
    broker = pipeline()
    broker.allocate(1)
    writer = broker.start(Writer)
    producer = client(broker, writer)
    (answer,) = producer.append([b"a", b"b"], ack="written")
    assert isinstance(answer, Appended)
    assert broker.positions["wrote"] > 0 == broker.positions["committed"]
    assert producer.hello().wrote == broker.positions["wrote"]


@pytest.mark.parametrize(("flush", "durable"), [("sync", True), ("async", False)])
def test_what_an_answer_promises_by_default_is_configured(
    pipeline: Callable[..., Any], client: Callable[..., Any], flush: str, durable: bool
) -> None:
    broker = pipeline(flush_disk_type=flush)
    broker.allocate(1)
    writer = broker.start(Writer)
    producer = client(broker, writer)
    producer.append([b"a"], ack="", answers=0)
    while broker.positions["wrote"] == 0:
        writer.work()
    assert bool(producer.socket.poll(50 if durable else 5000)) is not durable


@pytest.mark.parametrize(("ip", "host_bytes"), [("127.0.0.1", 8), ("::1", 20)])
def test_a_welcome_says_which_frame_comes_next_and_what_frames_have_to_be_like(
    pipeline: Callable[..., Any], client: Callable[..., Any], ip: str, host_bytes: int
) -> None:
    broker = pipeline(broker_ip=ip, enabled_append_prop_crc=ip == "::1")
    broker.positions.supervise("writer", generation=3)
    producer = client(broker, broker.start(Writer, generation=3))
    producer.seq = 7
    welcome = producer.hello()
    assert (welcome.producer, welcome.session, welcome.next_seq) == (producer.producer, 2, 7)
    assert (welcome.store_host_bytes, welcome.prop_crc) == (host_bytes, ip == "::1")
    assert welcome.generation == 3
    limits = broker.config.max_message_size_bytes, broker.config.max_frame_bytes
    assert (welcome.max_message_bytes, welcome.max_frame_bytes) == limits
    producer.ask(
        encode(Append(producer.producer, 2, 7, (QueueRun("orders", 9, 1),), "", False)), b""
    )
    producer.session = 1
    assert producer.hello().next_seq == 8, "the same again finds what has come since"


@pytest.mark.parametrize(("flush", "at_once"), [("sync", 1), ("async", 0)])
def test_the_committer_hears_at_once_of_what_waits_for_the_disk_and_else_now_and_then(
    pipeline: Callable[..., Any],
    client: Callable[..., Any],
    bells: Callable[..., int],
    flush: str,
    at_once: int,
) -> None:
    """With sync flushing nobody can read what is not on the disk."""
    broker = pipeline(flush_disk_type=flush)
    broker.allocate(1)
    committer, writer = broker.stage("committer"), broker.start(Writer)
    producer = client(broker, writer)
    producer.append([b"a"])
    assert bells(committer) == 1, "nothing was told before"
    wrote = producer.append([b"b"])[0].runs[0].physical_offset
    assert bells(committer, HANG_MS if at_once else 50) == at_once
    producer.append([b"c"], ack="durable", answers=0)
    while broker.positions["wrote"] < 3 * wrote:
        writer.work()
    assert bells(committer) == 1


def test_those_who_make_room_hear_of_a_frame_that_has_none(
    pipeline: Callable[..., Any], client: Callable[..., Any], bells: Callable[..., int]
) -> None:
    broker = pipeline()
    makers = [broker.stage(name) for name in ("allocator", "committer")]
    writer = broker.start(Writer)
    producer = client(broker, writer)
    producer.append([b"a"], answers=0)
    while not broker.positions["append_wanted"]:
        writer.work()
    assert [bells(each) for each in makers] == [1, 1]


def test_the_allocator_hears_of_each_segment_that_is_entered(
    pipeline: Callable[..., Any], client: Callable[..., Any], bells: Callable[..., int]
) -> None:
    broker = pipeline()
    broker.allocate(3)
    allocator, writer = broker.stage("allocator"), broker.start(Writer)
    producer = client(broker, writer)
    half = [bytes(15_000)] * 2
    for entered in (0, 0, 1, 0, 1):
        assert isinstance(producer.append(half)[0], Appended)
        assert bells(allocator, HANG_MS if entered else 20) == entered


def test_those_who_keep_queues_and_groups_hear_of_a_change_of_topics(
    pipeline: Callable[..., Any], client: Callable[..., Any], bells: Callable[..., int]
) -> None:
    broker = pipeline()
    keepers = [broker.stage(name) for name in ("reput", "coordinator")]
    producer = client(broker, broker.start(Writer))
    assert [bells(each) for each in keepers] == [1, 1]
    producer.ask(encode(CreateTopic(2, "orders", 4)))
    assert [bells(each, 20) for each in keepers] == [0, 0], "it is there already"


def test_one_flush_releases_every_answer_that_waits_for_it(
    pipeline: Callable[..., Any], work: Callable[..., None], client: Callable[..., Any]
) -> None:
    broker = pipeline()
    broker.allocate(1)
    writer, committer, flusher = (broker.start(kind) for kind in (Writer, Committer, Flusher))
    producer = client(broker, writer)
    for _ in range(5):
        wrote = broker.positions["wrote"]
        producer.append([b"a"], ack="durable", answers=0)
        while broker.positions["wrote"] == wrote:
            writer.work()
    work(committer)
    assert flusher.work() == 1
    assert writer.work() == 5
    assert [answer.seq for answer in producer.answers(5)] == [1, 2, 3, 4, 5]


def test_a_failed_flush_fails_what_waits_and_refuses_what_comes(
    pipeline: Callable[..., Any], client: Callable[..., Any]
) -> None:
    broker = pipeline()
    broker.allocate(1)
    writer = broker.start(Writer)
    producer = client(broker, writer)
    producer.append([b"a"], ack="durable", answers=0)
    while broker.positions["wrote"] == 0:
        writer.work()
    wrote = broker.positions["wrote"]
    broker.positions.initialise("flush_error", errno.EIO)
    (waiting,) = producer.answers(1)
    assert isinstance(waiting, Refused) and "read-only" in waiting.what
    (refused,) = producer.append([b"b"])
    assert isinstance(refused, Refused) and waiting.status == refused.status
    assert broker.positions["wrote"] == wrote


def test_an_answer_that_the_disk_keeps_waiting_says_that_the_message_is_stored(
    pipeline: Callable[..., Any], client: Callable[..., Any]
) -> None:
    broker = pipeline(sync_flush_timeout_ms=100)
    broker.allocate(1)
    writer = broker.start(Writer)
    producer = client(broker, writer)
    producer.append([b"a"], ack="durable", answers=0)
    while broker.positions["wrote"] == 0:
        writer.work()
    broker.clock.advance(100)
    for _ in range(3):
        writer.work()
    assert writer._pending, "its time is not over"
    assert writer.idle_ms() == TICK_MS, "no bell says when it is"
    broker.clock.advance(1)
    (answer,) = producer.answers(1)
    assert isinstance(answer, Appended) and answer.status == "FLUSH_DISK_TIMEOUT"
    assert answer.runs[0].physical_offset == 0


@pytest.mark.parametrize("pool", [True, False], ids=["pool", "mapped"])
def test_no_record_crosses_a_segments_end(
    pipeline: Callable[..., Any],
    work: Callable[..., None],
    client: Callable[..., Any],
    pool: bool,
) -> None:
    broker = pipeline(transient_store_pool_enable=pool)
    broker.allocate(6)
    writer, committer = broker.start(Writer), broker.start(Committer)
    producer = client(broker, writer)
    for number in range(12):
        (answer,) = producer.append([bytes(9_000 + number)] * 3)
        assert isinstance(answer, Appended)
        broker.clock.advance(200)
        work(committer)
    found = _stored(broker)
    assert [offset for offset, _ in found] == list(range(36))
    blanks = 0
    for base in range(0, broker.positions["wrote"] - SEGMENT_BYTES, SEGMENT_BYTES):
        last = max(position for _, position in found if position < base + SEGMENT_BYTES)
        size = int.from_bytes(broker.log(last, last + 4), "big")
        rest = memoryview(broker.log(last + size, base + SEGMENT_BYTES))
        assert blank_size(rest) == len(rest) and not any(rest[8:])
        blanks += 1
    assert blanks >= 4


@pytest.mark.parametrize("dispatched", [0, 3, 8], ids=["nothing", "a part", "everything"])
@pytest.mark.parametrize("pool", [True, False], ids=["pool", "mapped"])
def test_a_successor_continues_the_log_and_the_queue_offsets(
    pipeline: Callable[..., Any],
    work: Callable[..., None],
    client: Callable[..., Any],
    pool: bool,
    dispatched: int,
) -> None:
    """From the queue table, and from the log where the reput has not been yet."""
    broker = pipeline(transient_store_pool_enable=pool)
    broker.allocate(2)
    writer, committer, flusher, reput = (
        broker.start(kind) for kind in (Writer, Committer, Flusher, Reput)
    )
    producer = client(broker, writer)
    for number in range(8):
        producer.append([b"x"] * (1 + number % 2), queue_id=number % 2)
        if number == dispatched - 1:
            broker.positions.initialise("flush_wanted", broker.positions["wrote"])
            work(committer, flusher, reput)
    broker.crash(writer)
    wrote = broker.positions["wrote"]
    successor = client(broker, broker.start(Writer))
    (answer,) = successor.append([b"next"], queue_id=0)
    assert (answer.runs[0].queue_offset, answer.runs[0].physical_offset) == (4, wrote)
    (answer,) = successor.append([b"next"], queue_id=1)
    assert answer.runs[0].queue_offset == 8
    broker.positions.initialise("flush_wanted", broker.positions["wrote"])
    work(committer, flusher, reput)
    assert broker.queues() == {QueueKey("orders", 0): (0, 5), QueueKey("orders", 1): (0, 9)}


def test_a_successor_counts_the_queues_that_a_topic_no_longer_has(
    pipeline: Callable[..., Any],
    client: Callable[..., Any],
    produce_answer: Callable[[list[bytes]], Any],
) -> None:
    """Their messages are still there, and take as much of the queue table as any."""
    broker = pipeline(max_queues=6)
    broker.allocate(1)
    writer = broker.start(Writer)
    producer = client(broker, writer)
    producer.append([b"x"], queue_id=3)
    producer.ask(encode(UpdateTopic(2, "orders", read_queues=1, write_queues=1)))
    broker.crash(writer)
    successor, socket = broker.start(Writer), broker.client(broker.run.endpoints.produce)

    def create(topic: str, queues: int) -> Any:
        (answer,) = broker.ask(successor, socket, encode(CreateTopic(3, topic, queues)))
        return produce_answer(answer)

    refused = create("others", 3)
    assert isinstance(refused, Refused) and "more than 6 queues" in refused.what
    broker.positions.initialise("deleted_queues", 1)
    assert isinstance(create("others", 2), Refused), "its place comes free at the next start"
    broker.positions.initialise("deleted_queues", 0)
    assert create("others", 2) == Routed(3, "others", 2)


def test_a_successor_clears_what_was_never_published(
    pipeline: Callable[..., Any], client: Callable[..., Any]
) -> None:
    """Killed between the copy into the mapped segment and the store to `wrote`."""
    broker = pipeline(transient_store_pool_enable=False)
    broker.allocate(2)
    writer = broker.start(Writer)
    producer = client(broker, writer)
    producer.append([b"first"])
    told = broker.positions["wrote"]
    producer.append([b"unseen"] * 5)
    broker.crash(writer)
    broker.positions.initialise("wrote", told)
    successor = client(broker, broker.start(Writer))
    assert not any(broker.log(told, SEGMENT_BYTES))
    (answer,) = successor.append([b"second"])
    assert (answer.runs[0].queue_offset, answer.runs[0].physical_offset) == (1, told)


def test_a_full_disk_refuses_messages_until_there_is_room_and_keeps_what_is_stored(
    pipeline: Callable[..., Any], client: Callable[..., Any]
) -> None:
    broker = pipeline()
    broker.allocate(1)
    producer = client(broker, broker.start(Writer))
    (stored,) = producer.append([b"before"], keys="before-")
    wrote = broker.positions["wrote"]
    broker.positions.initialise("disk_full", 93)
    (refused,) = producer.append([b"refused"])
    assert isinstance(refused, Refused) and refused.status == "SERVICE_NOT_AVAILABLE"
    assert refused.what == "the disk is full" and "93%" in refused.value and refused.hint
    (again,) = producer.append([b"before"], keys="before-", retry=True)
    assert again.runs == stored.runs, "a retry of what is stored needs no room"
    assert broker.positions["wrote"] == wrote
    broker.positions.initialise("disk_full", 0)
    (after,) = producer.append([b"after"])
    assert after.runs[0].queue_offset == 1


@pytest.mark.parametrize("lost", ["the answer", "the frame"])
def test_a_retry_after_a_crash_is_stored_once(
    pipeline: Callable[..., Any], client: Callable[..., Any], lost: str
) -> None:
    broker = pipeline()
    broker.allocate(1)
    writer = broker.start(Writer)
    producer = client(broker, writer)
    (before,) = producer.append([b"0"], keys="first-")
    if lost == "the answer":
        (stored,) = producer.append([b"a", b"b", b"c"], keys="retried-")
    wrote = broker.positions["wrote"]
    broker.crash(writer)
    successor = client(broker, broker.start(Writer))
    successor.session = producer.session
    successor.hello(stored_after=before.runs[0].physical_offset)
    (answer,) = successor.append([b"a", b"b", b"c"], keys="retried-", retry=True)
    offsets = [run.queue_offset for run in answer.runs]
    if lost == "the answer":
        assert broker.positions["wrote"] == wrote
        assert offsets == [1, 2, 3]
        assert answer.runs[0].physical_offset == stored.runs[0].physical_offset
    else:
        assert broker.positions["wrote"] > wrote
        assert offsets == [1]


def test_a_new_writer_numbers_on_though_the_reput_goes_on_while_it_looks(
    pipeline: Callable[..., Any],
    client: Callable[..., Any],
    work: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It looks at what is dispatched before the ends of the queues, never after."""
    broker = pipeline(transient_store_pool_enable=False)
    reput = broker.start(Reput)
    for count in (1, 3):
        broker.append(count)
        for name in ("committed", "flushed"):
            broker.positions.initialise(name, broker.positions["wrote"])
        if count == 1:
            work(reput)
    look = QueueTable.max_offset

    def then_the_reput_goes_on(table: QueueTable, slot: int) -> int:
        monkeypatch.undo()
        found = look(table, slot)
        work(reput)
        return found

    monkeypatch.setattr(QueueTable, "max_offset", then_the_reput_goes_on)
    producer = client(broker, broker.start(Writer))
    assert broker.positions["dispatched"] == broker.positions["wrote"], "it did go on"
    (answer,) = producer.append([b"a"])
    assert answer.runs[0].queue_offset == 4


def test_a_retry_of_which_the_beginning_is_stored_stores_the_rest(
    pipeline: Callable[..., Any], client: Callable[..., Any]
) -> None:
    """A power failure cuts off the end of a frame."""
    broker = pipeline()
    broker.allocate(1)
    producer = client(broker, broker.start(Writer))
    producer.append([b"a", b"b"], keys="k-")
    producer.hello(stored_after=0)
    (answer,) = producer.append([b"a", b"b", b"c", b"d"], keys="k-", retry=True)
    assert [(run.first, run.queue_offset) for run in answer.runs] == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize("offset", [1, 77, 10**12, 2**61])
def test_a_retry_that_names_an_offset_where_no_record_begins_harms_nobody(
    pipeline: Callable[..., Any], client: Callable[..., Any], offset: int
) -> None:
    broker = pipeline()
    broker.allocate(1)
    producer = client(broker, broker.start(Writer))
    producer.append([b"a"], keys="k-")
    producer.hello(stored_after=offset)
    (answer,) = producer.append([b"b"], keys="l-", retry=True)
    assert isinstance(answer, Appended), "what it names is no reason to refuse it"
    assert [run.queue_offset for run in answer.runs] == [1]
    producer.hello(stored_after=0)
    (answer,) = producer.append([b"a"], keys="k-", retry=True)
    assert [run.queue_offset for run in answer.runs] == [0], "the others still find theirs"


def test_without_a_segment_a_frame_is_refused_at_once_and_ends_its_session(
    pipeline: Callable[..., Any], client: Callable[..., Any]
) -> None:
    """What is after it in the session must not be stored before a second try of it is."""
    broker = pipeline()
    producer = client(broker, broker.start(Writer))
    broker.positions.initialise("allocate_error", errno.ENOSPC)
    (refused,) = producer.append([b"a"])
    assert isinstance(refused, Refused)
    assert refused.status == "CREATE_MAPPED_FILE_FAILED" and "No space left" in refused.value
    assert broker.positions["append_wanted"] > 0
    broker.allocate(1)
    (after,) = producer.append([b"b"])
    assert isinstance(after, OutOfStep)
    assert broker.positions["wrote"] == 0
    producer.hello()
    (answer,) = producer.append([b"b"])
    assert isinstance(answer, Appended)


def test_without_its_segment_s_file_a_frame_is_refused_and_ends_its_session(
    pipeline: Callable[..., Any], client: Callable[..., Any]
) -> None:
    """Somebody has deleted it: the frame comes again, and before what is after it."""
    broker = pipeline(transient_store_pool_enable=False)
    broker.allocate(1)
    producer = client(broker, broker.start(Writer))
    broker.allocate(1)
    large = [bytes(15_000)] * 4
    assert isinstance(producer.append(large)[0], Appended)
    segment = broker.paths.commit_log / segment_name(SEGMENT_BYTES)
    segment.rename(hidden := broker.paths.root / "hidden")
    wrote = broker.positions["wrote"]
    (refused,) = producer.append(large)
    assert isinstance(refused, Refused) and refused.status == "CREATE_MAPPED_FILE_FAILED"
    assert isinstance(producer.append([b"x"])[0], OutOfStep)
    assert broker.positions["wrote"] == wrote
    hidden.rename(segment)
    producer.hello()
    assert isinstance(producer.append(large)[0], Appended)


@pytest.mark.parametrize(
    ("number", "todo"),
    [
        (errno.ENOSPC, "free disk space"),
        (errno.EDQUOT, "free disk space"),
        (errno.EACCES, "who may write there: ls -ld"),
        (errno.EROFS, "who may write there: ls -ld"),
    ],
)
def test_what_to_do_about_a_missing_segment_fits_what_has_refused_it(
    pipeline: Callable[..., Any], client: Callable[..., Any], number: int, todo: str
) -> None:
    broker = pipeline()
    producer = client(broker, broker.start(Writer))
    broker.positions.initialise("allocate_error", number)
    (refused,) = producer.append([b"a"])
    assert isinstance(refused, Refused) and os.strerror(number) in refused.value
    assert todo in refused.hint and refused.hint.endswith("send it again")


@pytest.fixture
def waiting(pipeline: Callable[..., Any], client: Callable[..., Any]) -> tuple[Any, Any, Any]:
    """(broker, writer, producer), with a frame that waits for a segment."""
    broker = pipeline()
    writer = broker.start(Writer)
    producer = client(broker, writer)
    producer.append([b"a"], answers=0)
    while not broker.positions["append_wanted"]:
        writer.work()
    return broker, writer, producer


def test_a_frame_waits_for_a_segment_that_is_late(waiting: tuple[Any, Any, Any]) -> None:
    broker, writer, producer = waiting
    broker.clock.advance(ALLOCATE_TIMEOUT_MS)
    writer.work()
    assert not producer.socket.poll(20)
    broker.allocate(1)
    (answer,) = producer.answers(1)
    assert isinstance(answer, Appended)


def test_a_frame_that_has_waited_is_not_stored_after_a_failed_flush(
    waiting: tuple[Any, Any, Any],
) -> None:
    """The allocator or the committer may make room after that."""
    broker, _, producer = waiting
    broker.positions.initialise("flush_error", errno.EIO)
    broker.allocate(1)
    (refused,) = producer.answers(1)
    assert isinstance(refused, Refused) and "read-only" in refused.what
    assert broker.positions["wrote"] == 0


def test_a_stopping_writer_takes_nothing_new_and_answers_what_it_has(
    pipeline: Callable[..., Any], work: Callable[..., None], client: Callable[..., Any]
) -> None:
    broker = pipeline()
    broker.allocate(1)
    writer, committer, flusher = (broker.start(kind) for kind in (Writer, Committer, Flusher))
    producer = client(broker, writer)
    producer.append([b"a"], ack="durable", answers=0)
    while broker.positions["wrote"] == 0:
        writer.work()
    wrote = broker.positions["wrote"]
    broker.stage_of(writer).stopping = True
    producer.append([b"b"], answers=0)
    for _ in range(50):
        writer.work()
    assert broker.positions["wrote"] == wrote and not writer.drained()
    work(committer, flusher)
    writer.work()
    broker.clock.advance(LINGER_MS)
    assert not writer.drained(), "the producer has a moment to take its answer"
    assert producer.socket.poll(60_000)
    broker.clock.advance(LINGER_MS)
    assert writer.drained()
    broker.stop(writer)


def test_store_times_do_not_go_back_with_the_clock(
    pipeline: Callable[..., Any], client: Callable[..., Any]
) -> None:
    broker = pipeline()
    broker.allocate(1)
    writer = broker.start(Writer)
    producer = client(broker, writer)
    (first,) = producer.append([b"a"])
    broker.clock.jump(-3_600_000)
    (second,) = producer.append([b"b"])
    assert second.store_timestamp_ms == first.store_timestamp_ms
    broker.crash(writer)
    (third,) = client(broker, broker.start(Writer)).append([b"c"])
    assert third.store_timestamp_ms == first.store_timestamp_ms
