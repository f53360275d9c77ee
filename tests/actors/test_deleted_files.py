"""Files that are deleted take their room until the last actor that has read them closes them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.actors.cleaner import Cleaner
from penstock.actors.committer import Committer
from penstock.actors.coordinator import Coordinator
from penstock.actors.flusher import Flusher
from penstock.actors.gateway import Gateway
from penstock.actors.monitor import Monitor
from penstock.actors.reader import Reader
from penstock.actors.reput import Reput
from penstock.actors.scheduler import Scheduler
from penstock.actors.transactions import Transactions
from penstock.actors.writer import Writer
from penstock.shared.index.directory import index_files
from penstock.shared.index.query_turns import CATCH_UP_MS, QueryTurns
from penstock.shared.layout import segment_name
from penstock.shared.queue.deleted_topics import (
    DeletedTopic,
    DeletedTopics,
    save_deleted_topics,
)
from penstock.shared.queue.reader import QueueReader
from penstock.shared.wire.messages import Query

SEGMENT_BYTES = 64 << 10

READERS: dict[Callable[..., Any], Callable[[Any], QueueReader]] = {
    Coordinator: lambda actor: actor._queues,
    Gateway: lambda actor: actor._queues,
    Monitor: lambda actor: actor._reading.queues,
    Reader: lambda actor: actor._queues,
    Scheduler: lambda actor: actor._queues,
    Transactions: lambda actor: actor._reader,
}


def _held(file: Path) -> int:
    """How often this process has a file open or mapped, deleted or not."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    places = [line.split(maxsplit=5)[5] for line in lines if "/" in line]
    for each in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread, as ZeroMQ's, has closed it meanwhile
            places.append(os.readlink(f"/proc/self/fd/{each}"))
    return sum(each.removesuffix(" (deleted)") == str(file) for each in places)


@pytest.mark.parametrize("kind", READERS)
def test_an_actor_that_has_read_what_is_deleted_closes_it(
    pipeline: Callable[..., Any], work: Callable[..., None], kind: Any
) -> None:
    broker = pipeline(transient_store_pool_enable=False)
    broker.append(80, size=1000)  # more than a segment has room for
    for name in ("committed", "flushed"):
        broker.positions.initialise(name, broker.positions["wrote"])
    reput = broker.start(Reput)
    work(reput)
    broker.crash(reput)
    actor = broker.start(kind)
    queues = READERS[kind](actor)
    slot = queues.queues("orders")[0]
    files = [
        broker.paths.commit_log / segment_name(0),
        broker.paths.queue("orders", 0) / segment_name(0),
    ]
    before = [_held(file) for file in files]
    for at in (0, 79):
        assert queues.read(slot, at, 1)[1] == at + 1
    assert [_held(file) for file in files] != before, "else this shows nothing"
    actor.release_deleted()
    assert [_held(file) for file in files] != before, "they are there, and may be asked for again"
    for file in files:
        file.unlink()
    actor.release_deleted()
    assert [_held(file) for file in files] == before
    assert queues.read(slot, 79, 1)[1] == 80, "the others it reads on"


LOG, QUEUE = 0, 1


def _all_held(broker: Any) -> list[int]:
    """How often files of the log, and of a queue, are open or mapped."""
    names = [segment_name(number * SEGMENT_BYTES) for number in range(4)]
    queue = broker.paths.queue("orders", 0)
    in_log = sum(_held(broker.paths.commit_log / name) for name in names)
    return [in_log, sum(_held(queue / segment_name(number * 1000)) for number in range(4))]


def _delete_all(broker: Any) -> None:
    for place in (broker.paths.commit_log, broker.paths.queue("orders", 0)):
        for file in place.iterdir() if place.exists() else ():
            file.unlink()


@pytest.mark.parametrize(
    "kind, opens", [(Committer, [LOG]), (Flusher, [LOG, QUEUE]), (Reput, [LOG]), (Cleaner, [QUEUE])]
)
def test_an_actor_that_has_worked_on_what_is_deleted_closes_it(
    pipeline: Callable[..., Any], work: Callable[..., None], kind: Any, opens: list[int]
) -> None:
    """`opens`: of what it has no file open any more then. The reput has the ends of queues open,
    which nobody deletes but itself."""
    broker = pipeline(transient_store_pool_enable=kind is Committer)
    positions = broker.positions
    broker.append(80, size=1000)
    if kind is not Committer:
        positions.initialise("committed", positions["wrote"])
        positions.initialise("flushed", positions["wrote"])
    if kind in (Flusher, Cleaner):
        reput = broker.start(Reput)
        work(reput)
        broker.crash(reput)
        positions.initialise("committed", broker.append(30, size=1000))
        positions.initialise("log_start", 1000)
    before = _all_held(broker)
    actor = broker.start(kind)
    for _ in range(30):
        broker.clock.advance(3000)
        work(actor)
    during = _all_held(broker)
    assert all(during[each] > before[each] for each in opens), "else this shows nothing"
    actor.release_deleted()
    assert _all_held(broker) == during, "they are there, and may be asked for again"
    _delete_all(broker)
    actor.release_deleted()
    after = _all_held(broker)
    assert [after[each] for each in opens] == [before[each] for each in opens]


def test_a_writer_closes_what_is_deleted(
    pipeline: Callable[..., Any], client: Callable[..., Any]
) -> None:
    broker = pipeline(transient_store_pool_enable=False)
    before = _all_held(broker)
    writer = broker.start(Writer)
    broker.allocate(3)
    producer = client(broker, writer)
    for _ in range(10):
        producer.append([bytes(1000)] * 10)
    producer.hello(0)
    # said again: the log is searched for it
    producer.append([bytes(1000)] * 10, keys="k", retry=True)
    during = _all_held(broker)
    writer.release_deleted()
    assert _all_held(broker) == during > before
    _delete_all(broker)
    writer.release_deleted()
    assert _all_held(broker) == before


@pytest.mark.parametrize(
    "kind, turns_of",
    [(Reader, lambda actor: actor._queries), (Gateway, lambda actor: actor._queries._turns)],
)
def test_an_index_file_that_is_deleted_is_closed_when_no_query_is_at_work(
    pipeline: Callable[..., Any],
    work: Callable[..., None],
    kind: Any,
    turns_of: Callable[[Any], QueryTurns[int]],
) -> None:
    small = {"max_hash_slot_num": 7, "max_index_num": 20}
    broker = pipeline(transient_store_pool_enable=False, flush_disk_type="async", **small)
    positions = broker.positions
    broker.append(properties={"UNIQ_KEY": "k"})
    for name in ("committed", "flushed"):
        positions.initialise(name, positions["wrote"])
    reput = broker.start(Reput)
    work(reput)
    broker.crash(reput)
    actor = broker.start(kind)
    turns, query = turns_of(actor), Query(1, "orders", "k", 9, 0, 1 << 60, True)
    (file,) = index_files(broker.paths.index)
    before = _held(file)
    turns.add(1, query)
    ((_, _, found),) = turns.work()
    assert isinstance(found, list) and len(found) == 1
    during = _held(file)
    actor.release_deleted()
    assert _held(file) == during > before, "it is there, and may be asked for again"
    broker.append()  # the reput has not done it, so the next query waits
    turns.add(2, query)
    assert turns.work() == []
    file.unlink()
    actor.release_deleted()
    assert _held(file) == during, "a query may be at it"
    broker.clock.advance(CATCH_UP_MS)
    assert len(turns.work()) == 1
    actor.release_deleted()
    assert _held(file) == before


def test_the_reput_closes_the_queues_of_a_topic_that_is_deleted(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    """It has moved them away by then, so it is asked by their number."""

    def mapped(inode: int) -> int:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return sum(line.split()[4] == str(inode) for line in lines)

    broker = pipeline(transient_store_pool_enable=False)
    reput = broker.start(Reput)
    end = broker.append(topic="gone")
    for name in ("committed", "flushed"):
        broker.positions.initialise(name, broker.positions["wrote"])
    work(reput)
    inode = (broker.paths.queue("gone", 0) / segment_name(0)).stat().st_ino
    assert mapped(inode), "else this shows nothing"
    row = DeletedTopic(number=1, topic="gone", log_end=end, at_ms=1, is_done=True)
    save_deleted_topics(broker.paths.deleted_topics, DeletedTopics(1, (row,)))
    broker.positions.initialise("deleted_topics", 1)
    work(reput)
    assert not broker.paths.queue("gone", 0).exists() and not mapped(inode)
