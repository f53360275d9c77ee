"""The flusher: what counts as flushed is on disk, and a failed flush is never forgotten."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.actors.committer import Committer
from penstock.actors.flusher import Flusher, queue_sync
from penstock.actors.flusher import actor as flusher
from penstock.actors.flusher.actor import QUEUES_AT_ONCE, QUEUES_MS
from penstock.actors.reput import Reput
from penstock.shared.files.descriptors import on_shortage
from penstock.shared.files.durable import FlushFailed
from penstock.shared.formats.checkpoint import Checkpoint, decode_checkpoint
from penstock.shared.layout import segment_name
from penstock.shared.log.damage import QUARANTINE
from penstock.shared.loops.forms import rows_of
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.queue_table import QueueKey, QueueTable
from penstock.shared.process.doorbells import LAZY_BYTES, QUIET_TICK_MS, TICK_MS
from penstock.shared.queue.known_queues import load_known_flush, load_known_queues
from penstock.shared.store.watermark import WATERMARK_MS, load_watermark

PAGE = 4096
SEGMENT_BYTES = 64 << 10


def _checkpoint(broker: Any) -> Checkpoint:
    return decode_checkpoint(broker.paths.checkpoint.read_bytes())


def _commit(broker: Any, stop: int | None = None) -> None:
    broker.positions.initialise("committed", broker.positions["wrote"] if stop is None else stop)


def test_with_sync_flushing_whatever_is_committed_is_flushed_at_once(
    pipeline: Callable[..., Any], bells: Callable[..., int]
) -> None:
    broker = pipeline(transient_store_pool_enable=False)
    writer, reput = broker.stage("writer"), broker.stage("reput")
    flusher = broker.start(Flusher)
    broker.append()
    assert flusher.work() == 0, "nothing is committed"
    _commit(broker)
    assert flusher.work() == 1
    assert broker.positions["flushed"] == broker.positions["wrote"]
    assert bells(writer) == 1 and bells(reput) == 1
    assert flusher.work() == 0


def test_with_sync_flushing_a_reader_hears_of_a_little_whatever_was_flushed_before(
    pipeline: Callable[..., Any], bells: Callable[..., int]
) -> None:
    """Of much it hears when the queues have it."""
    broker = pipeline(transient_store_pool_enable=False)
    reader, flusher = broker.stage("reader"), broker.start(Flusher)
    broker.positions.initialise("waiting_pulls", 1)
    broker.append(1 + LAZY_BYTES // 10_000, size=10_000)
    _commit(broker)
    assert flusher.work() == 1
    broker.append()
    _commit(broker)
    assert flusher.work() == 1
    assert bells(reader) == 1


def test_a_flusher_lives_while_the_disk_takes_long_to_sync_the_log(
    pipeline: Callable[..., Any], after_a_beat: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = pipeline(transient_store_pool_enable=False, actor_stall_timeout_ms=40)
    it = broker.start(Flusher)
    for name in ("write_again", "sync_file"):
        monkeypatch.setattr(flusher, name, after_a_beat(broker, "flusher", getattr(flusher, name)))
    broker.append()
    _commit(broker)
    assert it.work() == 1
    assert broker.positions["flushed"] == broker.positions["wrote"]
    took_ns, counts = broker.positions.durations("flush")
    assert sum(counts) == 1 and took_ns > 0


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EMFILE, errno.ENOSPC, errno.EDQUOT])
def test_a_sync_that_fails_is_a_failed_flush_whatever_number_it_has(
    pipeline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Of a call that opens or makes something, these numbers say that nothing is lost."""
    broker = pipeline(transient_store_pool_enable=False)
    it = broker.start(Flusher)

    def failing(handle: int) -> None:
        raise FlushFailed(number, os.strerror(number))

    monkeypatch.setattr(flusher, "sync_file", failing)
    broker.append()
    _commit(broker)
    assert it.work() == 0
    assert (broker.positions["flush_error"], broker.positions["flushed"]) == (number, 0)


def test_once_a_name_may_be_lost_nothing_more_is_flushed(pipeline: Callable[..., Any]) -> None:
    broker = pipeline(transient_store_pool_enable=False)
    flusher = broker.start(Flusher)
    broker.append()
    _commit(broker)
    broker.positions.initialise("name_error", errno.EIO)
    assert flusher.work() == 0
    assert (broker.positions["flush_error"], broker.positions["flushed"]) == (errno.EIO, 0)


@pytest.mark.parametrize(
    ("interval_ms", "most_ms"), [(10, TICK_MS), (300, 300), (9000, QUIET_TICK_MS)]
)
def test_it_sleeps_no_longer_than_until_a_flush_may_be_due_of_which_no_bell_tells(
    pipeline: Callable[..., Any], interval_ms: int, most_ms: int
) -> None:
    broker = pipeline(flush_disk_type="async", flush_interval_commit_log_ms=interval_ms)
    flusher = broker.start(Flusher)
    broker.clock.advance(10 * interval_ms)
    assert flusher.idle_ms() == most_ms


def test_with_async_flushing_four_pages_are_flushed_after_500_ms_and_less_after_10_s(
    pipeline: Callable[..., Any],
) -> None:
    broker = pipeline(transient_store_pool_enable=False, flush_disk_type="async")
    flusher = broker.start(Flusher)
    broker.append(size=5 * PAGE)
    _commit(broker)
    broker.clock.advance(499)
    flusher.work()
    assert broker.positions["flushed"] == 0
    broker.clock.advance(1)
    flusher.work()
    flushed = broker.positions["flushed"]
    assert flushed == broker.positions["wrote"]
    broker.append(size=PAGE)
    _commit(broker)
    broker.clock.advance(9_499)
    flusher.work()
    assert broker.positions["flushed"] == flushed
    broker.clock.advance(1)  # 10 s after the start
    flusher.work()
    flushed = broker.positions["flushed"]
    assert flushed == broker.positions["wrote"]
    broker.append(size=PAGE)
    _commit(broker)
    broker.clock.advance(9_999)
    flusher.work()
    assert broker.positions["flushed"] == flushed
    broker.clock.advance(1)  # 10 s after the last thorough flush
    flusher.work()
    assert broker.positions["flushed"] == broker.positions["wrote"]


def test_with_async_flushing_the_500_ms_count_from_the_last_flush(
    pipeline: Callable[..., Any],
) -> None:
    broker = pipeline(transient_store_pool_enable=False, flush_disk_type="async")
    flusher = broker.start(Flusher)
    broker.clock.advance(500)
    for _ in range(3):
        broker.append(size=5 * PAGE)
        _commit(broker)
        flusher.work()
        flushed = broker.positions["flushed"]
        assert flushed == broker.positions["wrote"]
        broker.append(size=5 * PAGE)
        _commit(broker)
        broker.clock.advance(499)
        flusher.work()
        assert broker.positions["flushed"] == flushed
        broker.clock.advance(501)


def test_with_async_flushing_what_somebody_waits_for_is_flushed_at_once(
    pipeline: Callable[..., Any], bells: Callable[..., int]
) -> None:
    broker = pipeline(transient_store_pool_enable=False, flush_disk_type="async")
    flusher, reput = broker.start(Flusher), broker.stage("reput")
    broker.positions.initialise("flush_wanted", broker.append())
    _commit(broker)
    assert flusher.work() == 1
    assert broker.positions["flushed"] == broker.positions["wrote"]
    assert bells(reput, 20) == 0, "it has heard of the commit"


def test_with_async_flushing_a_stop_waits_for_no_interval(pipeline: Callable[..., Any]) -> None:
    broker = pipeline(transient_store_pool_enable=False, flush_disk_type="async")
    flusher = broker.start(Flusher)
    broker.append()
    _commit(broker)
    assert flusher.work() == 0 and not flusher.drained()
    assert flusher.work() == 1 and flusher.drained()


def test_the_first_error_of_a_flush_is_the_last_flush(
    pipeline: Callable[..., Any], bells: Callable[..., int]
) -> None:
    """Here the segment is gone. That it comes back helps nobody: not this flusher, nor the next."""
    broker = pipeline(transient_store_pool_enable=False)
    writer = broker.stage("writer")
    broker.append()
    segment = broker.paths.commit_log / segment_name(0)
    hidden = segment.rename(broker.paths.root / "hidden")
    flusher = broker.start(Flusher)
    _commit(broker)
    flusher.work()
    assert broker.positions["flush_error"] == errno.ENOENT
    assert broker.positions["flushed"] == 0
    assert bells(writer) == 1
    hidden.rename(segment)
    broker.append()
    _commit(broker)
    flusher.work()
    assert broker.positions["flushed"] == 0
    broker.crash(flusher)
    successor = broker.start(Flusher)
    successor.work()
    assert broker.positions["flushed"] == 0
    assert successor.drained(), "a broker that cannot flush can be stopped"
    files = broker.paths.checkpoint, broker.paths.watermark
    before = [file.read_bytes() for file in files]
    broker.stop(successor)
    assert [file.read_bytes() for file in files] == before, "and that is no orderly stop"


def test_a_successor_writes_again_what_its_predecessor_may_have_failed_to_flush(
    pipeline: Callable[..., Any],
) -> None:
    """The kernel tells of a failed flush once; only pages that are dirty again fail again."""
    broker = pipeline(transient_store_pool_enable=False)
    broker.append(80, size=1000)
    _commit(broker)
    segments = sorted(broker.paths.commit_log.iterdir())
    before = [path.read_bytes() for path in segments]
    stamps = [path.stat().st_mtime_ns for path in segments]
    flusher = broker.start(Flusher)
    flusher.work()
    assert [path.read_bytes() for path in segments] == before
    assert all(
        path.stat().st_mtime_ns > stamp for path, stamp in zip(segments, stamps, strict=True)
    )
    assert broker.positions["flushed"] == broker.positions["wrote"]


def test_all_that_is_in_doubt_is_written_again_in_pieces_between_which_the_flusher_beats(
    pipeline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = pipeline(transient_store_pool_enable=False)
    broker.append(80, size=1000)
    _commit(broker)
    it, wrote = broker.start(Flusher), broker.positions["wrote"]
    pieces, write_again = [], flusher.write_again

    def noted(handle: int, start: int, stop: int) -> None:
        pieces.append((start, stop))
        write_again(handle, start, stop)

    monkeypatch.setattr(flusher, "write_again", noted)
    monkeypatch.setattr(flusher, "_WRITE_AGAIN_BYTES", PAGE)
    beats = broker.positions.life("flusher").cycles
    assert it.work() == 1
    starts = [*range(0, SEGMENT_BYTES, PAGE), *range(0, wrote - SEGMENT_BYTES, PAGE)]
    assert [start for start, _ in pieces] == starts
    assert sum(stop - start for start, stop in pieces) == wrote
    assert broker.positions.life("flusher").cycles >= beats + len(pieces) + 2, "two segments"


def test_queues_and_checkpoint_follow_the_log(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(transient_store_pool_enable=False)
    committer, reput, flusher = (broker.start(kind) for kind in (Committer, Reput, Flusher))
    broker.append(10)
    last = broker.positions["wrote"]
    broker.append()
    work(committer, flusher, reput)
    assert _checkpoint(broker).confirm_offset == 0
    broker.clock.advance(5000)
    work(flusher)
    found = _checkpoint(broker)
    assert found.confirm_offset == last == broker.positions["dispatched_record"]
    assert found.logics_timestamp_ms == broker.positions["wrote_timestamp"]
    assert found.physic_timestamp_ms == broker.positions["wrote_timestamp"]


def test_queues_that_have_grown_by_less_than_a_page_follow_after_5_s_of_rounds(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(transient_store_pool_enable=False)
    committer, reput, flusher = (broker.start(kind) for kind in (Committer, Reput, Flusher))
    broker.append()
    work(committer, flusher, reput)
    broker.append()
    work(committer, flusher, reput)
    for last in (0, 0, 0, 0, broker.positions["dispatched_record"]):
        broker.clock.advance(1000)
        work(flusher)
        assert _checkpoint(broker).confirm_offset == last


def test_with_async_flushing_the_checkpoint_waits_for_the_log_to_follow_the_queues(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    """Consumers see what is committed, so the queues are on disk first."""
    broker = pipeline(
        transient_store_pool_enable=False,
        flush_disk_type="async",
        flush_commit_log_least_pages=1 << 20,
    )
    committer, reput, flusher = (broker.start(kind) for kind in (Committer, Reput, Flusher))
    broker.append(10)
    work(committer, flusher, reput)
    record = broker.positions["dispatched_record"]
    broker.clock.advance(5000)
    work(flusher)
    assert broker.positions["flushed"] == 0
    assert _checkpoint(broker).confirm_offset == 0
    broker.positions.initialise("flush_wanted", broker.positions["wrote"])
    flusher.work()
    assert broker.positions["flushed"] > record
    assert _checkpoint(broker).confirm_offset == record, "at once, and not only with the next round"


def test_rounds_of_queues_and_watermarks_come_at_their_times_and_not_before(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(
        transient_store_pool_enable=False,
        flush_consume_queue_least_pages=0,
        flush_interval_consume_queue_ms=1000,
    )
    committer, reput, flusher = (broker.start(kind) for kind in (Committer, Reput, Flusher))

    def passed(ms: int) -> tuple[int, int]:
        """Messages of the queue, and bytes of the log, that the disk has by its own word."""
        broker.clock.advance(ms)
        work(committer, flusher, reput)
        mark = load_watermark(broker.paths.watermark)
        assert mark is not None
        known = load_known_queues(broker.paths.known_queues).get("orders/0")
        return (known.end if known else 0), mark.flushed

    for number in range(1, 4):
        before = broker.positions["wrote"]
        wrote = broker.append()
        # the last look at it was a ms before the round
        assert passed(WATERMARK_MS - 2) == (number - 1, before)
        assert passed(2) == (number - 1, wrote)
        assert passed(1000 - WATERMARK_MS - 1) == (number - 1, wrote)
        assert passed(1) == (number, wrote)
        mark = load_watermark(broker.paths.watermark)
        assert mark is not None and mark.checkpoint == _checkpoint(broker), "it vouches for that"


def test_a_stop_leaves_a_checkpoint_of_the_last_message(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(transient_store_pool_enable=False)
    committer, reput, flusher = (broker.start(kind) for kind in (Committer, Reput, Flusher))
    broker.append(5)
    broker.clock.advance(50)
    broker.append()
    work(committer, flusher, reput)
    beats = broker.positions.life("flusher").cycles
    broker.stop(flusher)
    assert broker.positions.life("flusher").cycles > beats, "a stop may take long"
    found = _checkpoint(broker)
    newest = broker.positions["wrote_timestamp"]
    assert found.physic_timestamp_ms == found.logics_timestamp_ms == newest
    assert found.confirm_offset == broker.positions["dispatched_record"]
    mark = load_watermark(broker.paths.watermark)
    assert mark is not None and mark.is_last
    listed = load_known_flush(broker.paths.known_queues)
    assert listed == mark.flushed, "by which a start knows an older copy of the list"


def test_checkpoint_and_watermark_of_a_damaged_log_stay_as_they_were(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    """A start would take them for witnesses that everything below them is whole."""
    broker = pipeline(transient_store_pool_enable=False)
    committer, reput, flusher = (broker.start(kind) for kind in (Committer, Reput, Flusher))
    broker.append(10)
    work(committer, flusher, reput)
    files = (broker.paths.checkpoint, broker.paths.watermark)
    before = [file.read_bytes() for file in files]
    broker.positions.initialise("read_only", QUARANTINE)
    broker.clock.advance(5000)
    work(flusher)
    broker.stop(flusher)
    assert [file.read_bytes() for file in files] == before


def test_many_queues_do_not_hold_up_the_log(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    """Their sync goes on in steps, and between two of them the log is looked at."""
    broker = pipeline(transient_store_pool_enable=False)
    committer, reput, flusher = (broker.start(kind) for kind in (Committer, Reput, Flusher))
    queues = 3 * QUEUES_AT_ONCE
    for queue_id in range(queues):
        broker.append(queue_id=queue_id)
    work(committer, flusher, reput)
    broker.clock.advance(5000)
    flusher.work()
    assert _checkpoint(broker).confirm_offset == 0, "the round has only begun"
    broker.append()
    work(committer)
    assert flusher.work() > 0
    assert broker.positions["flushed"] == broker.positions["wrote"]
    turns = 2
    while flusher.work():
        turns += 1
    # a file and a directory of each queue, and some of all together
    assert 2 * queues / QUEUES_AT_ONCE <= turns <= 2 * queues / QUEUES_AT_ONCE + 3
    assert _checkpoint(broker).confirm_offset > 0


def test_a_slow_sync_of_a_queue_ends_the_turn(
    pipeline: Callable[..., Any], work: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers wait for the log, which is looked at between two turns."""
    broker = pipeline(transient_store_pool_enable=False)
    committer, reput, it = (broker.start(kind) for kind in (Committer, Reput, Flusher))
    for queue_id in range(3):
        broker.append(queue_id=queue_id)
    work(committer, it, reput)
    synced, sync_file = [], queue_sync.sync_file

    def slow(handle: int) -> None:
        synced.append(handle)
        broker.clock.advance(QUEUES_MS + 1)
        sync_file(handle)

    monkeypatch.setattr(queue_sync, "sync_file", slow)
    broker.clock.advance(5000)
    for count in (1, 2, 3):
        assert it.work() and len(synced) == count
    work(it)
    assert _checkpoint(broker).confirm_offset == broker.positions["dispatched_record"]


def test_a_queue_that_was_just_added_has_nothing_to_sync_yet(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    """One that begins mid-way, in a log whose first segments are gone: no file is there yet."""
    broker = pipeline(transient_store_pool_enable=False)
    table = QueueTable(broker.run.queues, writable=True)
    table.add(0, QueueKey("orders", 0), min_offset=70, max_offset=70)
    reput = Positions(broker.run.positions, owner="reput")
    reput.publish("queue_count", 1)
    flusher = broker.start(Flusher)
    broker.clock.advance(5000)
    work(flusher)
    assert broker.positions["flush_error"] == 0
    # its first entries: the segment before never was there
    directory = broker.paths.queue("orders", 0)
    directory.mkdir(parents=True)
    (directory / segment_name(1000)).write_bytes(bytes(1000))
    table.move_max_offsets(rows_of(0, 71, bytes(20)))
    broker.clock.advance(5000)
    work(flusher)
    assert broker.positions["flush_error"] == 0
    table.close()
    reput.close()


def test_a_segment_that_is_no_longer_whole_stops_the_store(
    pipeline: Callable[..., Any],
) -> None:
    broker = pipeline(transient_store_pool_enable=False)
    broker.append()
    segment: Path = broker.paths.commit_log / segment_name(0)
    flusher = broker.start(Flusher)
    with segment.open("r+b") as file:
        file.truncate(100)
    _commit(broker)
    flusher.work()
    assert broker.positions["flush_error"] == errno.EIO
    assert broker.positions["flushed"] == 0


def test_too_few_files_for_the_flusher_is_no_error_of_the_disk(
    pipeline: Callable[..., Any],
) -> None:
    """It ends, loudly; a successor that may open files flushes what is there."""
    broker = pipeline(transient_store_pool_enable=False)
    flusher = broker.start(Flusher)
    broker.give_neighbours(flusher)
    broker.append()
    _commit(broker)
    on_shortage(lambda: False)  # an actor that was in this process before would make room
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # the numbers below are the process's own three, which nobody closes meanwhile
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            flusher.work()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (broker.positions["flush_error"], broker.positions["flushed"]) == (0, 0)
    broker.crash(flusher)
    broker.start(Flusher).work()
    assert broker.positions["flushed"] == broker.positions["wrote"]


def test_a_flush_that_fails_at_a_stop_is_told_by_its_number(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(transient_store_pool_enable=False)
    committer, reput, flusher = (broker.start(kind) for kind in (Committer, Reput, Flusher))
    broker.append()
    work(committer, flusher, reput)
    broker.paths.consume_queue.rename(broker.paths.root / "hidden")
    broker.stop(flusher)
    assert broker.positions["flush_error"] == errno.ENOENT


def test_a_segment_cut_short_is_a_failed_flush_also_at_a_stop(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    """There is no record to vouch for, and nothing to be replaced for again and again."""
    broker = pipeline(transient_store_pool_enable=False)
    committer, reput, flusher = (broker.start(kind) for kind in (Committer, Reput, Flusher))
    broker.append(5)
    work(committer, flusher, reput)
    broker.crash(flusher)
    successor = broker.start(Flusher)
    os.truncate(broker.paths.commit_log / segment_name(0), 4096)
    broker.stop(successor)
    assert broker.positions["flush_error"] == errno.EIO
