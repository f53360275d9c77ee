"""The committer: bytes go from the pool to the segments, when RocketMQ would or somebody waits."""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable
from typing import Any

import pytest

from penstock.actors import committer as committer_module
from penstock.actors.committer import UNFLUSHED_MS, Committer
from penstock.shared.files.descriptors import on_shortage
from penstock.shared.memory.transient_store_pool import TransientStorePool
from penstock.shared.process.doorbells import LAZY_MS, QUIET_TICK_MS
from penstock.shared.process.retry import RETRY_MS

PAGE = 4096
BLOCK = 4 * PAGE
# of a segment that does not end with a block
UNEVEN_BYTES = 60 << 10
SEGMENT_BYTES = 64 << 10
POOL_BYTES = 256 << 10
HANG_MS = 60_000  # only what hangs takes that long, however busy the machine


def _pool(broker: Any, start: int, stop: int) -> bytes:
    pool = TransientStorePool(broker.run.pool)
    found = b"".join(pool.pieces(start, stop))
    pool.close()
    return found


def test_a_message_that_comes_alone_is_committed_at_once(pipeline: Callable[..., Any]) -> None:
    """And the next in the same millisecond in the next one, for which nobody need ring."""
    broker = pipeline()
    broker.positions.initialise("client_filtered_pulls", 1)
    committer = broker.start(Committer)
    broker.clock.advance(1)
    for _ in range(3):
        broker.append()
        assert committer.work() == 1
        broker.append()
        assert committer.work() == 0 and committer.idle_ms() == 1
        broker.clock.advance(1)
        assert committer.work() == 1
        assert committer.idle_ms() == LAZY_MS, "the next bell may be left out"
        broker.clock.advance(1)
    broker.clock.advance(3 * LAZY_MS)
    assert committer.idle_ms() == QUIET_TICK_MS, "it sleeps until a bell"


@pytest.mark.parametrize(("flushing", "wait_ms"), [("async", LAZY_MS), ("sync", UNFLUSHED_MS)])
def test_where_nobody_waits_for_the_queues_some_messages_go_together(
    pipeline: Callable[..., Any], flushing: str, wait_ms: int
) -> None:
    """Fewer where consumers see what is on disk: they wait for it."""
    broker = pipeline(flush_disk_type=flushing)
    committer = broker.start(Committer)
    broker.clock.advance(wait_ms)
    broker.append()
    assert committer.work() == 1, "it comes alone"
    for _ in range(wait_ms):
        broker.append()
        assert committer.work() == 0 and 1 <= committer.idle_ms() <= wait_ms
        broker.clock.advance(1)
    assert committer.work() == 1
    assert broker.positions["committed"] == broker.positions["wrote"]
    broker.append()
    broker.clock.advance(1)
    assert committer.work() == 0
    broker.positions.initialise("filtered_pulls", 1)
    assert committer.work() == 1


def test_the_least_pages_are_committed_and_less_waits_as_long_as_is_set(
    pipeline: Callable[..., Any],
) -> None:
    broker = pipeline(
        commit_commit_log_least_pages=4,
        commit_commit_log_thorough_interval_ms=200,
        commit_interval_commit_log_ms=120,
    )
    committer = broker.start(Committer)
    broker.append(size=3 * PAGE)
    assert committer.work() == 0
    assert committer.idle_ms() == 120, "nothing tells it that a block is whole"
    broker.clock.advance(150)
    assert committer.idle_ms() == 50
    broker.clock.advance(49)
    assert committer.work() == 0
    broker.clock.advance(1)
    assert committer.work() == 1
    assert broker.positions["committed"] == broker.positions["wrote"] > 0
    broker.append(size=2 * PAGE)
    assert committer.work() == 0
    broker.append(size=2 * PAGE)
    assert committer.work() == 1, "a block of four pages has ended"
    assert broker.positions["committed"] < broker.positions["wrote"]
    broker.clock.advance(200)
    assert committer.work() == 1
    assert broker.positions["committed"] == broker.positions["wrote"]


def test_a_block_that_has_just_become_whole_is_committed_at_once(
    pipeline: Callable[..., Any],
) -> None:
    broker = pipeline(commit_commit_log_least_pages=2, commit_commit_log_thorough_interval_ms=200)
    committer = broker.start(Committer)
    header_bytes = broker.append(size=100) - 100
    assert committer.work() == 0
    assert broker.append(size=2 * PAGE - 100 - 2 * header_bytes) == 2 * PAGE
    assert committer.work() == 1 and broker.positions["committed"] == 2 * PAGE


def _flood(pipeline: Callable[..., Any]) -> tuple[Any, Any]:
    """A broker whose pool has room for many blocks, and whose committer has just copied all."""
    broker = pipeline(
        commit_commit_log_least_pages=BLOCK // PAGE,
        flush_disk_type="async",
        mapped_file_size_commit_log_bytes=UNEVEN_BYTES,
    )
    committer = broker.start(Committer)
    broker.clock.advance(LAZY_MS)
    broker.append()
    assert committer.work() == 1
    return broker, committer


def test_of_a_flood_whole_blocks_are_copied_and_frames_are_told_when_all_of_them_is(
    pipeline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces, write = [], committer_module.write_at

    def noted(handle: int, data: memoryview, at: int) -> None:
        pieces.append((at, at + len(data)))
        write(handle, data, at)

    monkeypatch.setattr(committer_module, "write_at", noted)
    broker, committer = _flood(pipeline)
    ends, told = [broker.positions["committed"]], broker.positions["committed"]
    for number in range(60):
        ends.append(broker.append(size=3000 + 37 * number))
        committer.work()
        committed = broker.positions["committed"]
        # a reader of the log stops there, and a record that is there in part would be damage to it
        assert committed in ends and committed >= told
        assert broker.log(told, committed) == _pool(broker, told, committed)
        told = committed
    assert ends[-1] - told < 2 * BLOCK
    ends_of_pieces = {stop for _, stop in pieces[1:]}
    assert {BLOCK, 2 * BLOCK, 3 * BLOCK} < ends_of_pieces
    assert ends_of_pieces <= {BLOCK, 2 * BLOCK, 3 * BLOCK, UNEVEN_BYTES}
    # nothing is copied twice
    assert [start for start, _ in pieces] == [0, *(stop % UNEVEN_BYTES for _, stop in pieces[:-1])]


def test_of_a_flood_nothing_waits_for_its_block_longer_than_is_set(
    pipeline: Callable[..., Any], bells: Callable[..., int]
) -> None:
    broker, committer = _flood(pipeline)
    reput = broker.stage("reput")
    assert bells(reput) == 1
    committed, seen = broker.positions["committed"], broker.append(size=BLOCK)
    assert committer.work() == 1
    assert broker.positions["committed"] == committed < seen, "its block goes on behind it"
    assert bells(reput, 50) == 0
    broker.clock.advance(LAZY_MS)
    stop = broker.append(size=BLOCK)
    assert committer.work() == 1
    assert seen == broker.positions["committed"] < stop, "the new one's is for the next"
    broker.clock.advance(LAZY_MS - 1)
    assert committer.work() == 0 and committer.idle_ms() == 1
    broker.clock.advance(1)
    assert committer.work() == 1
    assert broker.positions["committed"] == stop


def test_what_comes_after_a_rest_is_committed_at_once_however_much_it_is(
    pipeline: Callable[..., Any],
) -> None:
    broker, committer = _flood(pipeline)
    broker.clock.advance(LAZY_MS)
    stop = broker.append(size=BLOCK)
    assert committer.work() == 1
    assert broker.positions["committed"] == stop


@pytest.mark.parametrize("waits", ["for the disk", "for room", "for its end"])
def test_who_cannot_wait_for_the_end_of_a_block_gets_all_of_it(
    pipeline: Callable[..., Any], waits: str
) -> None:
    broker, committer = _flood(pipeline)
    stop = broker.append(size=BLOCK)
    assert committer.work() == 1
    assert broker.positions["committed"] < stop
    if waits == "for the disk":
        broker.positions.initialise("flush_wanted", stop)
    elif waits == "for its end":
        assert not committer.drained()
    while waits == "for room" and stop - broker.positions["committed"] <= POOL_BYTES // 2:
        stop = broker.append(size=8 << 10)
    assert committer.work() == 1
    assert broker.positions["committed"] == stop
    assert broker.log(0, stop) == _pool(broker, 0, stop)


def test_what_somebody_waits_for_is_committed_at_once(pipeline: Callable[..., Any]) -> None:
    broker = pipeline()
    committer = broker.start(Committer)
    broker.positions.initialise("flush_wanted", broker.append())
    assert committer.work() == 1
    assert committer.work() == 0


def test_a_pool_that_is_half_full_is_emptied_whatever_the_settings(
    pipeline: Callable[..., Any],
) -> None:
    broker = pipeline(
        commit_commit_log_least_pages=1 << 20, commit_commit_log_thorough_interval_ms=1 << 20
    )
    committer = broker.start(Committer)
    for _ in range(2):
        committed = broker.positions["committed"]
        while broker.append(size=8 << 10) - committed <= POOL_BYTES // 2:
            assert committer.work() == 0
        assert committer.work() == 1


def test_the_segments_hold_what_was_in_the_pool_over_every_boundary(
    pipeline: Callable[..., Any],
) -> None:
    """More than once round the ring, and over the ends of segments, blanks included."""
    broker = pipeline(commit_commit_log_least_pages=0)
    committer = broker.start(Committer)
    start = 0
    for number in range(110):
        stop = broker.append(size=1000 + 89 * number)
        expected = _pool(broker, start, stop)
        assert committer.work() == 1
        assert broker.log(start, stop) == expected
        start = stop
    assert stop > 2 * POOL_BYTES


def test_a_committer_lives_while_it_copies_much_and_while_the_disk_takes_long(
    pipeline: Callable[..., Any], after_a_beat: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = pipeline(actor_stall_timeout_ms=40, commit_commit_log_least_pages=0)
    committer = broker.start(Committer)
    monkeypatch.setattr(committer_module, "_COPY_BYTES", PAGE)
    broker.append(size=3 * PAGE)
    beats = broker.positions.life("committer").cycles
    assert committer.work() == 1
    assert broker.positions.life("committer").cycles >= beats + 4, "three pages and a header"
    monkeypatch.setattr(
        committer_module,
        "write_at",
        after_a_beat(broker, "committer", committer_module.write_at),
    )
    stop = broker.append()
    assert committer.work() == 1
    assert broker.positions["committed"] == stop


def test_a_successor_copies_again_what_was_copied_and_not_told(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(commit_commit_log_least_pages=0)
    first = broker.start(Committer)
    broker.append(10)
    work(first)
    told = broker.positions["committed"]
    stop = broker.append(10)
    expected = _pool(broker, told, stop)
    # killed in the middle of the copy: half of it stands in the segment, the position does not
    with (broker.paths.commit_log / f"{0:020d}").open("r+b") as segment:
        segment.seek(told)
        segment.write(expected[: len(expected) // 2])
    broker.crash(first)
    second = broker.start(Committer)
    assert broker.positions["committed"] == told
    work(second)
    assert broker.positions["committed"] == stop
    assert broker.log(told, stop) == expected


def test_without_a_pool_committed_follows_wrote(pipeline: Callable[..., Any]) -> None:
    broker = pipeline(transient_store_pool_enable=False)
    committer = broker.start(Committer)
    stop = broker.append()
    before = broker.log(0, SEGMENT_BYTES)
    assert committer.work() == 1
    assert broker.positions["committed"] == stop
    assert broker.log(0, SEGMENT_BYTES) == before


@pytest.mark.parametrize(
    ("flush", "wanted", "flushers", "reputs"),
    [("sync", False, 1, 0), ("async", True, 1, 1), ("async", False, 0, 1)],
)
def test_it_rings_the_flusher_for_who_waits_and_the_reput_where_that_need_not_wait_for_the_disk(
    pipeline: Callable[..., Any],
    bells: Callable[..., int],
    flush: str,
    wanted: bool,
    flushers: int,
    reputs: int,
) -> None:
    broker = pipeline(flush_disk_type=flush, commit_commit_log_least_pages=0)
    flusher, reput = broker.stage("flusher"), broker.stage("reput")
    committer = broker.start(Committer)
    stop = broker.append()
    if wanted:
        broker.positions.initialise("flush_wanted", stop)
    committer.work()
    assert bells(reput, HANG_MS if reputs else 50) == reputs
    assert bells(flusher, HANG_MS if flushers else 50) == flushers


def test_who_says_after_the_commit_that_he_waits_for_the_disk_is_rung_for_once(
    pipeline: Callable[..., Any], bells: Callable[..., int]
) -> None:
    broker = pipeline(flush_disk_type="async")
    flusher = broker.stage("flusher")
    committer = broker.start(Committer)
    stop = broker.append()
    broker.clock.advance(LAZY_MS)
    assert committer.work() == 1
    broker.positions.initialise("flush_wanted", stop)
    assert committer.work() == committer.work() == 0
    assert bells(flusher) == 1 and bells(flusher, 50) == 0


def test_the_flusher_hears_of_what_somebody_waits_for_when_that_is_committed_too(
    pipeline: Callable[..., Any], bells: Callable[..., int]
) -> None:
    """A frame is stored, and its answer waits for the disk, while the one before is committed."""
    broker = pipeline(flush_disk_type="async", commit_commit_log_least_pages=0)
    flusher, committer = broker.stage("flusher"), broker.start(Committer)
    first = broker.append()
    broker.positions.initialise("flush_wanted", 2 * first)
    assert committer.work() == 1 and bells(flusher) == 1
    assert broker.append() == 2 * first
    assert committer.work() == 1 and bells(flusher) == 1


def test_it_is_drained_when_all_is_committed_and_then_needs_no_more_time(
    pipeline: Callable[..., Any],
) -> None:
    broker = pipeline()
    committer = broker.start(Committer)
    broker.append()
    assert not committer.drained()
    assert committer.work() == 1  # due at once when stopping
    assert committer.drained()


def _work_on_a_full_disk(committer: Any) -> None:
    """The limit on file sizes stands for the disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        committer.work()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_takes_no_bytes_is_told_once_and_tried_again(
    pipeline: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """What it refuses stays in the pool."""
    broker = pipeline(commit_commit_log_least_pages=0)
    committer = broker.start(Committer)
    stop = broker.append()
    _work_on_a_full_disk(committer)
    broker.clock.advance(RETRY_MS)
    _work_on_a_full_disk(committer)
    assert capsys.readouterr().err.count("the log cannot be written") == 1
    assert broker.positions["commit_error"] == errno.EFBIG
    assert broker.positions["committed"] == 0
    assert committer.drained(), "what it cannot write is the next start's"
    assert committer.work() == 0
    broker.clock.advance(RETRY_MS - 100)
    assert committer.idle_ms() == 100, "it sleeps until it may try again"
    broker.clock.advance(100)
    assert committer.work() == 1
    assert broker.positions["commit_error"] == 0
    assert broker.positions["committed"] == stop


def test_too_few_files_for_the_committer_is_no_error_of_the_disk(
    pipeline: Callable[..., Any],
) -> None:
    """It ends, and nobody is told that the log cannot be written: its successor writes it."""
    broker = pipeline(commit_commit_log_least_pages=0)
    committer = broker.start(Committer)
    broker.give_neighbours(committer)
    stop = broker.append()
    on_shortage(lambda: False)  # an actor that was in this process before would make room
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # the numbers below are the process's own three, which nobody closes meanwhile
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            committer.work()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (broker.positions["commit_error"], broker.positions["committed"]) == (0, 0)
    broker.crash(committer)
    assert broker.start(Committer).work() == 1
    assert broker.positions["committed"] == stop


def test_an_error_is_over_before_all_is_committed_or_nobody_would_ever_end_it(
    pipeline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer takes nothing while it stands; a successor that finds all done has no work."""
    broker = pipeline(commit_commit_log_least_pages=0)
    committer = broker.start(Committer)
    stop = broker.append()
    _work_on_a_full_disk(committer)
    broker.clock.advance(RETRY_MS)
    errors_when_passed = []

    def die(point: str) -> None:
        if point == "commit.after_cursor":
            errors_when_passed.append(broker.positions["commit_error"])

    monkeypatch.setattr(committer_module, "crash_point", die)
    committer.work()
    assert broker.positions["committed"] == stop
    assert errors_when_passed == [0]
