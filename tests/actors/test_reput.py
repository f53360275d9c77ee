"""The reput: every message has its entry, in its place, whoever was killed in between."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Callable
from typing import Any

import pytest

from penstock.actors import reput as reput_module
from penstock.actors.flusher import Flusher
from penstock.actors.reput import Reput
from penstock.shared.files.file_cache import FileCache
from penstock.shared.files.segments import list_segments
from penstock.shared.formats.queue_entry import BLANK_SIZE, ENTRY
from penstock.shared.formats.record import decode_record
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_layout import AT_QUEUE_OFFSET
from penstock.shared.layout import segment_name
from penstock.shared.log.damage import QUARANTINE, damage_between, save_quarantine
from penstock.shared.log.scan import scan
from penstock.shared.memory.queue_table import SLOT_BYTES, QueueKey, QueueTable
from penstock.shared.process.doorbells import QUIET_AFTER_MS, QUIET_TICK_MS, TICK_MS
from penstock.shared.process.retry import RETRY_MS
from penstock.shared.queue.deleted_topics import (
    DeletedTopic,
    DeletedTopics,
    save_deleted_topics,
)
from penstock.shared.queue.known_queues import load_known_queues
from penstock.shared.store.checkpoint_file import load_checkpoint

MAPPED = {"transient_store_pool_enable": False}


def _expected(broker: Any) -> dict[QueueKey, list[tuple[int, int]]]:
    """(position, size) of each queue's records, as the log itself has them."""
    files = FileCache()
    found: dict[QueueKey, list[tuple[int, int]]] = {}
    segments, _ = list_segments(broker.paths.commit_log, "log")
    for position, kind, size, record, _ in scan(files, segments, 0):
        if kind is Kind.RECORD:
            fields = decode_record(bytes(record))
            found.setdefault(QueueKey(fields.topic, fields.queue_id), []).append((position, size))
    files.close()
    return found


def _entries(broker: Any, key: QueueKey) -> list[tuple[int, int]]:
    raw = b"".join(path.read_bytes() for path in sorted(broker.paths.queue(*key).iterdir()))
    return [(offset, size) for offset, size, _ in ENTRY.iter_unpack(raw) if size]


def _reach(broker: Any, stop: int | None = None) -> None:
    stop = broker.positions["wrote"] if stop is None else stop
    for name in ("committed", "flushed"):
        broker.positions.initialise(name, stop)


def _refuse_files(reput: Any, work: Callable[..., None], most_bytes: int) -> None:
    """Let the reput work on a disk that takes no file longer than this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        work(reput)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(("flush", "bound"), [("sync", "flushed"), ("async", "committed")])
def test_consumers_see_what_is_flushed_or_with_async_flushing_what_is_committed(
    pipeline: Callable[..., Any], work: Callable[..., None], flush: str, bound: str
) -> None:
    broker = pipeline(flush_disk_type=flush, **MAPPED)
    reput = broker.start(Reput)
    first = broker.append(3)
    broker.append(3)
    other = "committed" if bound == "flushed" else "flushed"
    broker.positions.initialise(other, broker.positions["wrote"])
    broker.positions.initialise(bound, first)
    work(reput)
    assert broker.positions["dispatched"] == first
    assert broker.queues() == {QueueKey("orders", 0): (0, 3)}


def test_every_record_has_its_entry_over_every_boundary(
    pipeline: Callable[..., Any], work: Callable[..., None], bells: Callable[..., int]
) -> None:
    broker = pipeline(**MAPPED)
    reader = broker.stage("reader")
    reput = broker.start(Reput)
    for number in range(300):
        broker.append(size=500 + 7 * number, topic=f"t{number % 2}", queue_id=number % 3)
    _reach(broker)
    work(reput)
    expected = _expected(broker)
    assert len(expected) == 6 and len(list(broker.paths.commit_log.iterdir())) > 5
    for key, places in expected.items():
        assert _entries(broker, key) == places
        assert broker.queues()[key] == (0, len(places))
    assert broker.positions["dispatched"] == broker.positions["wrote"]
    assert bells(reader) > 0


@pytest.mark.parametrize(
    ("who", "waits"),
    [
        ("reader", "waiting_pulls"),
        ("reader", "filtered_pulls"),
        ("gateway", "client_pulls"),
        ("gateway", "client_filtered_pulls"),
    ],
)
def test_where_pulls_wait_a_message_wakes_and_elsewhere_it_is_told_of_now_and_then(
    pipeline: Callable[..., Any],
    work: Callable[..., None],
    bells: Callable[..., int],
    who: str,
    waits: str,
) -> None:
    broker = pipeline(**MAPPED)
    follower = broker.stage(who)
    reput = broker.start(Reput)

    def heard(timeout_ms: int) -> int:
        _reach(broker, broker.append())
        work(reput)
        return bells(follower, timeout_ms)

    assert heard(60_000) == 1, "the first for long"
    assert heard(20) == 0
    broker.positions.initialise(waits, 1)
    assert heard(60_000) == 1
    broker.positions.initialise(waits, 0)
    assert heard(20) == 0
    broker.clock.advance(TICK_MS)
    assert heard(60_000) == 1


@pytest.mark.parametrize("back", [0, 1, 40])
def test_a_successor_writes_again_what_its_predecessor_had_not_told_of(
    pipeline: Callable[..., Any], work: Callable[..., None], back: int
) -> None:
    """Killed after the queue table's store and before the position's: the table does not go back,
    and the entries come to the same places."""
    broker = pipeline(**MAPPED)
    first = broker.start(Reput)
    steps = [broker.append() for _ in range(120)]
    _reach(broker)
    work(first)
    before = _entries(broker, QueueKey("orders", 0))
    broker.crash(first)
    queued = broker.positions["queued"]
    broker.positions.initialise("dispatched", steps[-1 - back])
    second = broker.start(Reput)
    assert broker.queues() == {QueueKey("orders", 0): (0, 120)}
    _reach(broker, steps[-1 - back // 2])
    work(second)
    assert broker.positions["dispatched"] == steps[-1 - back // 2]
    assert broker.positions["queued"] == queued == steps[-1], "consumers have seen that"
    broker.append(2)
    _reach(broker)
    work(second)
    assert broker.queues() == {QueueKey("orders", 0): (0, 122)}
    after = _entries(broker, QueueKey("orders", 0))
    assert after[:120] == before and after == _expected(broker)[QueueKey("orders", 0)]


def test_a_queue_added_and_not_counted_is_added_again(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    """Killed between filling a slot of the table and counting it."""
    broker = pipeline(**MAPPED)
    table = QueueTable(broker.run.queues, writable=True)
    table.add(0, QueueKey("half", 7), min_offset=5, max_offset=9)
    table.close()
    broker.append()
    _reach(broker)
    work(broker.start(Reput))
    assert broker.queues() == {QueueKey("orders", 0): (0, 1)}


def test_a_queue_whose_beginning_is_gone_begins_with_blanks(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    """The log's first segments have expired and the queues are lost: the rest is dispatched."""
    broker = pipeline(**MAPPED)
    steps = [broker.append() for _ in range(10)]
    broker.positions.initialise("dispatched", steps[6])
    _reach(broker)
    work(broker.start(Reput))
    assert broker.queues() == {QueueKey("orders", 0): (7, 10)}
    raw = (broker.paths.queue("orders", 0) / segment_name(0)).read_bytes()
    sizes = [size for _, size, _ in ENTRY.iter_unpack(raw)]
    assert sizes[:7] == [BLANK_SIZE] * 7 and all(sizes[7:10]) and not any(sizes[10:])


def test_a_disk_that_takes_no_entry_is_told_and_tried_again(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    """The limit on file sizes stands for the disk. It lets a part of the entries through."""
    broker = pipeline(**MAPPED)
    reput = broker.start(Reput)
    broker.append(10)
    _reach(broker)
    work(reput)
    told = broker.positions["dispatched"]
    broker.append(30)
    broker.append(5, queue_id=1)
    _reach(broker)
    _refuse_files(reput, work, 20 * 25)
    first, second = QueueKey("orders", 0), QueueKey("orders", 1)
    assert broker.positions["dispatch_error"] == errno.EFBIG
    assert broker.positions["dispatched"] == told
    assert broker.queues() == {first: (0, 10), second: (0, 0)}
    assert len(_entries(broker, first)) == 40 and not [*broker.paths.queue(*second).iterdir()]
    broker.clock.advance(RETRY_MS)
    work(reput)
    assert broker.positions["dispatch_error"] == 0
    broker.clock.advance(QUIET_AFTER_MS)
    assert reput.idle_ms() == QUIET_TICK_MS
    assert broker.queues() == {first: (0, 40), second: (0, 5)}
    expected = _expected(broker)
    for key in (first, second):
        assert _entries(broker, key) == expected[key]


def test_what_a_disk_refuses_of_an_earlier_run_keeps_its_slot(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    """A reput doubts what was stored before it began, by the order in which it meets it. A second
    try must not meet it a second time: the last message of a queue would be no one's."""
    broker = pipeline(**MAPPED)
    first, second = QueueKey("orders", 0), QueueKey("orders", 1)
    broker.append(1)
    broker.append(1, queue_id=1)
    _reach(broker)
    reput = broker.start(Reput)
    for _ in range(2):
        _refuse_files(reput, work, 20 * 25)
        assert broker.positions["dispatch_error"] == errno.EFBIG
        broker.clock.advance(RETRY_MS)
    work(reput)
    assert broker.positions["dispatched"] == broker.positions["wrote"]
    assert broker.queues() == {first: (0, 1), second: (0, 1)}
    broker.append(1)
    _reach(broker)
    work(reput)
    expected = _expected(broker)
    for key in (first, second):
        assert _entries(broker, key) == expected[key]


def test_messages_of_a_deleted_topic_have_no_entries_and_those_between_them_have(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(**MAPPED)
    ends = [broker.append(topic=topic) for topic in ("gone", "orders", "gone", "orders")]
    row = DeletedTopic(number=1, topic="gone", log_end=ends[2], at_ms=1, is_done=True)
    save_deleted_topics(broker.paths.deleted_topics, DeletedTopics(1, (row,)))
    _reach(broker)
    work(broker.start(Reput))
    assert broker.queues() == {QueueKey("orders", 0): (0, 2)}
    orders = QueueKey("orders", 0)
    assert _entries(broker, orders) == _expected(broker)[orders]


def test_memory_without_room_for_a_new_queue_is_told_and_tried_again(
    pipeline: Callable[..., Any], work: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it is met in a record that is longer than a cycle: the next try begins without."""
    monkeypatch.setattr(reput_module, "CYCLE_BYTES", 300)
    broker = pipeline(**MAPPED)
    reput = broker.start(Reput)
    broker.append(1)
    broker.append(1, size=1000, queue_id=1)
    _reach(broker)
    reserve = os.posix_fallocate

    def full(handle: int, at: int, size: int) -> None:
        if size == SLOT_BYTES and at:
            raise OSError(errno.ENOSPC, "no room")
        reserve(handle, at, size)

    with monkeypatch.context() as memory:
        memory.setattr(os, "posix_fallocate", full)
        for _ in range(2):
            work(reput)
            assert broker.positions["dispatch_error"] == errno.ENOSPC
            assert broker.queues() == {QueueKey("orders", 0): (0, 1)}
            broker.clock.advance(RETRY_MS)
    work(reput)
    assert broker.queues() == {QueueKey("orders", 0): (0, 1), QueueKey("orders", 1): (0, 1)}


def test_names_of_which_nobody_knows_whether_they_are_on_disk_stop_the_store(
    pipeline: Callable[..., Any], work: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has told the reput; the flusher, who syncs them later, is told nothing."""
    broker = pipeline(mapped_file_size_consume_queue_bytes=20 * 8, **MAPPED)
    reput, flusher = broker.start(Reput), broker.start(Flusher)
    broker.append(10)
    broker.positions.initialise("committed", broker.positions["wrote"])
    sync = os.fsync

    def fails(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EIO, "no such luck")
        sync(handle)

    work(flusher)
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", fails)
        work(reput)
    assert broker.positions["name_error"] == broker.positions["dispatch_error"] == errno.EIO
    broker.clock.advance(5000)
    work(reput, flusher)
    assert broker.positions["dispatched"] == 0
    assert broker.positions["flush_error"] == errno.EIO
    assert not load_known_queues(broker.paths.known_queues)
    broker.stop(reput)
    broker.stop(flusher)
    assert load_checkpoint(broker.paths.checkpoint).confirm_offset == 0


def test_a_new_reput_removes_its_predecessors_half_made_files_and_nobody_elses(
    pipeline: Callable[..., Any],
) -> None:
    broker = pipeline(**MAPPED)
    own = broker.paths.staging / f"0-{segment_name(0)}-4711"
    other = broker.paths.staging / f"commitlog-{segment_name(0)}-4712"
    for path in (own, other):
        path.write_bytes(b"half")
    foreign = broker.paths.staging / "0-mine"
    foreign.mkdir()
    broker.start(Reput)
    assert not own.exists() and other.exists() and foreign.exists()


def test_bytes_that_are_no_record_end_it_and_are_named(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(**MAPPED)
    stop = broker.append()
    broker.positions.initialise("wrote", stop + 500)
    _reach(broker)
    with pytest.raises(Exception, match=f"no record and no blank begins .*{stop}"):
        work(broker.start(Reput))
    assert broker.positions["dispatched"] == stop


def test_it_is_drained_when_all_that_was_written_is_dispatched(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(**MAPPED)
    reput = broker.start(Reput)
    broker.append()
    assert not reput.drained()
    _reach(broker)
    work(reput)
    assert reput.drained()


@pytest.mark.parametrize(
    ("number", "bent", "entries"),
    [
        (2, 1 << 40, [0, 1, 3, 3, 4]),
        (2, 3, [0, 1, 2, 3, 4]),
        (2, 1, [0, 1, 3, 3, 4]),
        (3, 1, [0, 1, 2, 4, 4]),
    ],
)
def test_a_record_whose_queue_offset_is_damaged_keeps_nobody_from_the_others(
    pipeline: Callable[..., Any],
    work: Callable[..., None],
    number: int,
    bent: int,
    entries: list[int],
) -> None:
    """No checksum covers it. One that jumps is passed over at a start, one that names the slot of
    another does not get it, and the slot that it had leads to the next of its queue."""
    broker = pipeline(**MAPPED)
    starts = [0, *(broker.append() for _ in range(5))]
    with (broker.paths.commit_log / segment_name(0)).open("r+b") as file:
        file.seek(starts[number] + AT_QUEUE_OFFSET)
        file.write(bent.to_bytes(8, "big"))
    _reach(broker)
    reput = broker.start(Reput)
    work(reput)
    assert broker.positions["dispatched"] == broker.positions["wrote"]
    found = [position for position, _ in _entries(broker, QueueKey("orders", 0))]
    assert found == [starts[each] for each in entries]
    assert broker.queues() == {QueueKey("orders", 0): (0, 5)}


def test_messages_that_are_lost_with_damage_have_entries_that_lead_to_it(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    """A queue has no gap, and readers pass over what is known to be damaged."""
    broker = pipeline(**MAPPED)
    starts = [0, *(broker.append() for _ in range(7))]
    segment_bytes = broker.config.mapped_file_size_commit_log_bytes
    damage = damage_between(broker.paths, segment_bytes, starts[2], starts[4], "bad")
    save_quarantine(broker.paths, damage, 77)
    broker.positions.initialise("read_only", QUARANTINE)
    _reach(broker)
    work(broker.start(Reput))
    (file,) = broker.paths.queue("orders", 0).iterdir()
    entries = [*ENTRY.iter_unpack(file.read_bytes())][:7]
    assert [entry[0] for entry in entries] == [
        starts[0], starts[1], starts[2], starts[2], *starts[4:7]
    ]  # fmt: skip
    assert entries[2] == entries[3] == (starts[2], starts[4] - starts[2], 0), "and have no tag"
    assert broker.queues() == {QueueKey("orders", 0): (0, 7)}


@pytest.mark.parametrize("what", ["a blank", "damage"])
def test_queues_hold_all_below_what_has_no_entry_once_that_is_passed(
    pipeline: Callable[..., Any], work: Callable[..., None], what: str
) -> None:
    """Else whoever waits until they hold what was stored waits for the next message."""
    broker = pipeline(**MAPPED)
    segment_bytes = broker.config.mapped_file_size_commit_log_bytes
    starts = [broker.append(size=15_000) for _ in range(6)]
    end = segment_bytes
    if what == "damage":
        end = starts[-1]
        damage = damage_between(broker.paths, segment_bytes, starts[-2], end, "bad")
        save_quarantine(broker.paths, damage, 77)
        broker.positions.initialise("read_only", QUARANTINE)
    _reach(broker, end)
    work(broker.start(Reput))
    assert broker.positions["dispatched"] == broker.positions["queued"] == end


def test_a_topic_that_rocketmq_names_after_a_cluster_has_queues(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(**MAPPED)
    broker.append(topic="rmq_sys_REVIVE_LOG_my.cluster")
    _reach(broker)
    work(broker.start(Reput))
    assert broker.queues() == {QueueKey("rmq_sys_REVIVE_LOG_my.cluster", 0): (0, 1)}
