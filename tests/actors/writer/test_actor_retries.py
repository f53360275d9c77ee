"""The writer and what is sent again: found by all of it, in turns with what others send."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from penstock.actors.writer import Writer
from penstock.actors.writer.retries import MEMORY_MS
from penstock.shared.wire.messages import Append, Appended, CreateTopic, QueueRun, encode

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
    refused, *stored = retrying.answers(3)
    assert refused.status == "SYSTEM_BUSY" and refused.retry_after_ms > 0
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
