"""The allocator: segments are there before the writer needs them, whole, or their lack is told."""

from __future__ import annotations

import ctypes
import errno
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.actors.allocator import Allocator
from penstock.actors.allocator import actor as allocator
from penstock.actors.allocator.actor import UNLOCK_MS
from penstock.actors.allocator.warm_segment import WarmSegment
from penstock.shared.layout import segment_name
from penstock.shared.log.damage import QUARANTINE
from penstock.shared.process.doorbells import QUIET_TICK_MS, TICK_MS
from penstock.shared.process.retry import RETRY_MS

SEGMENT_BYTES = 64 << 10


def _segments(pipeline: Any) -> list[str]:
    return sorted(path.name for path in pipeline.paths.commit_log.iterdir())


def test_an_empty_log_gets_one_segment_and_a_used_one_the_next(
    pipeline: Callable[..., Any], work: Callable[..., None], bells: Callable[..., int]
) -> None:
    broker = pipeline()
    writer = broker.stage("writer")
    allocator = broker.start(Allocator)
    work(allocator)
    assert _segments(broker) == [segment_name(0)]
    assert broker.positions["allocated"] == SEGMENT_BYTES
    assert bells(writer) == 1
    broker.append()
    work(allocator)
    assert _segments(broker) == [segment_name(0), segment_name(SEGMENT_BYTES)]
    assert {path.stat().st_size for path in broker.paths.commit_log.iterdir()} == {SEGMENT_BYTES}


def test_segments_that_the_writer_asks_for_are_made_one_after_the_other(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline()
    broker.positions.initialise("append_wanted", 3 * SEGMENT_BYTES - 5)
    allocator = broker.start(Allocator)
    assert allocator.work() == 1
    assert broker.positions["allocated"] == SEGMENT_BYTES
    work(allocator)
    assert broker.positions["allocated"] == 3 * SEGMENT_BYTES


def test_a_segment_is_allocated_on_disk_and_not_a_hole(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    """A hole would become a SIGBUS in the writer when the disk is full."""
    broker = pipeline()
    work(broker.start(Allocator))
    path = broker.paths.commit_log / segment_name(0)
    assert path.stat().st_blocks * 512 >= SEGMENT_BYTES


def test_a_successor_goes_on_behind_what_is_there_and_removes_what_is_half_made(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline()
    first = broker.start(Allocator)
    work(first)
    broker.crash(first)
    half = broker.paths.staging / f"commitlog-{segment_name(SEGMENT_BYTES)}-4711"
    half.write_bytes(b"half")
    other = broker.paths.staging / f"0-{segment_name(0)}-4712"
    other.write_bytes(b"the reput's")
    foreign = broker.paths.staging / "commitlog-mine"
    foreign.mkdir()
    broker.append()
    second = broker.start(Allocator)
    assert broker.positions["allocated"] == SEGMENT_BYTES
    work(second)
    assert broker.positions["allocated"] == 2 * SEGMENT_BYTES
    assert not half.exists() and other.exists() and foreign.exists()


def test_a_successor_makes_again_what_nobody_counted_for_its_name_may_not_be_durable(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline()
    work(broker.start(Allocator))
    uncounted = broker.paths.commit_log / segment_name(SEGMENT_BYTES)
    uncounted.write_bytes(bytes(SEGMENT_BYTES))
    broker.start(Allocator)
    assert _segments(broker) == [segment_name(0)]
    assert broker.positions["allocated"] == SEGMENT_BYTES


def test_an_allocator_lives_while_the_disk_takes_long_to_make_a_segment(
    pipeline: Callable[..., Any], after_a_beat: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = pipeline(actor_stall_timeout_ms=40)
    it = broker.start(Allocator)
    slow = after_a_beat(broker, "allocator", allocator.make_file)
    monkeypatch.setattr(allocator, "make_file", slow)
    assert it.work() == 1
    assert broker.positions["allocated"] == SEGMENT_BYTES


def test_a_damaged_log_gets_no_more_segments(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline()
    broker.positions.initialise("read_only", QUARANTINE)
    work(broker.start(Allocator))
    assert _segments(broker) == [] and broker.positions["allocated"] == 0


def test_a_stray_file_among_the_segments_is_named(pipeline: Callable[..., Any]) -> None:
    broker = pipeline()
    (broker.paths.commit_log / "notes.txt").write_text("mine")
    with pytest.raises(Exception, match="notes.txt"):
        broker.start(Allocator)


# --- warm segments ---

WARM = {"transient_store_pool_enable": False, "warm_mapped_file_enable": True}


def _locked(broker: Any, base: int) -> int:
    """Bytes of this segment's mappings that are locked into memory ("lo" among their flags)."""
    path = str(broker.paths.commit_log / segment_name(base))
    found = size = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            size = 0
            if line.endswith(path):
                start, end = (int(each, 16) for each in words[0].split("-"))
                size = end - start
        elif words[0] == "VmFlags:" and "lo" in words:
            found += size
    return found


def _mapped(broker: Any, base: int) -> bool:
    """Whether this process has a segment mapped."""
    return str(broker.paths.commit_log / segment_name(base)) in Path("/proc/self/maps").read_text()


def test_a_warm_segment_is_touched_locked_and_unlocked_after_it_is_full(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(**WARM)
    allocator = broker.start(Allocator)
    assert allocator.work() == 1
    assert broker.positions["allocated"] == 0, "it is warmed before it counts"
    work(allocator)
    assert broker.positions["allocated"] == SEGMENT_BYTES
    assert _locked(broker, 0) == SEGMENT_BYTES
    assert broker.positions["lock_error"] == 0
    while broker.append(size=1000) < SEGMENT_BYTES:
        work(allocator)
    work(allocator)
    assert _locked(broker, 0) == _locked(broker, SEGMENT_BYTES) == SEGMENT_BYTES
    broker.clock.advance(UNLOCK_MS - 1)
    work(allocator)
    assert _locked(broker, 0) == SEGMENT_BYTES, "whoever is at its end still finds it"
    assert allocator.idle_ms() == TICK_MS, "it unlocks without a bell"
    broker.clock.advance(1)
    work(allocator)
    assert (_locked(broker, 0), _locked(broker, SEGMENT_BYTES)) == (0, SEGMENT_BYTES)
    assert allocator.idle_ms() == QUIET_TICK_MS
    broker.stop(allocator)
    assert _locked(broker, SEGMENT_BYTES) == 0


def test_a_segment_that_is_full_to_its_last_byte_is_unlocked_though_nothing_comes_after_it(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(**WARM)
    allocator = broker.start(Allocator)
    work(allocator)
    for wrote, locked in ((SEGMENT_BYTES - 1, SEGMENT_BYTES), (SEGMENT_BYTES, 0)):
        broker.positions.initialise("wrote", wrote)
        work(allocator)
        broker.clock.advance(UNLOCK_MS)
        work(allocator)
        assert _locked(broker, 0) == locked


@pytest.mark.parametrize(("flushing", "pages"), [("sync", 3), ("async", 0)])
def test_what_is_warmed_is_written_out_bit_by_bit_where_the_writer_waits_for_the_disk(
    pipeline: Callable[..., Any],
    work: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    flushing: str,
    pages: int,
) -> None:
    """Else its first flush would find a gigabyte to write."""
    made, begin = list[int](), WarmSegment.__init__

    def noted(segment: WarmSegment, path: Path, base: int, size: int, sync_pages: int) -> None:
        made.append(sync_pages)
        begin(segment, path, base, size, sync_pages)

    monkeypatch.setattr(WarmSegment, "__init__", noted)
    settings = {"flush_disk_type": flushing, "flush_least_pages_when_warm_mapped_file": 3}
    broker = pipeline(**WARM, **settings)
    work(broker.start(Allocator))
    assert made == [pages]


def test_warming_goes_on_for_a_writer_that_has_room(
    pipeline: Callable[..., Any], work: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has asked for all that there is, and has it."""
    monkeypatch.setattr(f"{WarmSegment.__module__}.STEP_PAGES", 1)
    broker = pipeline(**WARM)
    allocator = broker.start(Allocator)
    work(allocator)
    broker.positions.initialise("append_wanted", SEGMENT_BYTES)
    broker.append()
    for _ in range(3):
        allocator.work()
        assert broker.positions["allocated"] == SEGMENT_BYTES, "it is warmed before it counts"
    work(allocator)
    assert broker.positions["allocated"] == 2 * SEGMENT_BYTES


def test_a_segment_that_cannot_be_warmed_is_told_and_warmed_again_soon(
    pipeline: Callable[..., Any], work: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, step = pipeline(**WARM), WarmSegment.step

    def failing(segment: WarmSegment) -> bool:
        monkeypatch.setattr(WarmSegment, "step", step)
        raise OSError(errno.EIO, "the disk")

    allocator = broker.start(Allocator)
    monkeypatch.setattr(WarmSegment, "step", failing)
    work(allocator)
    assert broker.positions["allocate_error"] == errno.EIO
    assert broker.positions["allocated"] == 0 and not _mapped(broker, 0)
    file = (broker.paths.commit_log / segment_name(0)).stat().st_ino
    broker.clock.advance(RETRY_MS)
    work(allocator)
    assert broker.positions["allocate_error"] == 0
    assert broker.positions["allocated"] == _locked(broker, 0) == SEGMENT_BYTES
    assert (broker.paths.commit_log / segment_name(0)).stat().st_ino == file, "it was there"


def test_a_segment_counts_before_it_is_locked_which_may_take_long(
    pipeline: Callable[..., Any], work: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, lock, allocated = pipeline(**WARM), WarmSegment.lock, []

    def noted(segment: WarmSegment) -> int:
        allocated.append(broker.positions["allocated"])
        return lock(segment)

    monkeypatch.setattr(WarmSegment, "lock", noted)
    work(broker.start(Allocator))
    assert allocated == [SEGMENT_BYTES]


def test_a_segment_that_is_being_warmed_at_a_stop_is_closed(
    pipeline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = pipeline(**WARM)
    allocator = broker.start(Allocator)
    assert allocator.work() == 1 and _mapped(broker, 0)
    allocator.close()
    assert not _mapped(broker, 0)


def test_warming_stops_for_a_writer_that_waits(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(**WARM)
    allocator = broker.start(Allocator)
    allocator.work()
    broker.positions.initialise("append_wanted", 10)
    allocator.work()
    assert broker.positions["allocated"] == SEGMENT_BYTES


def test_a_successor_locks_again_and_touches_nothing_that_counts(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(**WARM)
    broker.append(90, size=1000)
    wrote = broker.positions["wrote"]
    assert SEGMENT_BYTES < wrote < 2 * SEGMENT_BYTES == broker.positions["allocated"]
    broker.positions.initialise("lock_error", errno.EPERM)
    before = broker.log(0, 2 * SEGMENT_BYTES)
    allocator = broker.start(Allocator)
    assert (_locked(broker, 0), _locked(broker, SEGMENT_BYTES)) == (0, SEGMENT_BYTES)
    assert broker.positions["lock_error"] == 0, "that was the one before it"
    work(allocator)
    assert broker.log(0, 2 * SEGMENT_BYTES) == before


def test_where_locking_is_not_allowed_that_is_said_once_and_harms_nothing(
    pipeline: Callable[..., Any],
    work: Callable[..., None],
    capfd: pytest.CaptureFixture[str],
    no_locking: None,
) -> None:
    broker = pipeline(**WARM)
    allocator = broker.start(Allocator)
    broker.positions.initialise("append_wanted", 3 * SEGMENT_BYTES)
    work(allocator)
    assert broker.positions["allocated"] == 3 * SEGMENT_BYTES
    assert broker.positions["lock_error"] in (errno.ENOMEM, errno.EPERM)
    assert not any(_mapped(broker, number * SEGMENT_BYTES) for number in range(3))
    said = capfd.readouterr().err
    assert said.count("not locked into memory") == 1 and "ulimit -l" in said
    assert f"{2 * SEGMENT_BYTES // 1024} KiB are needed" in said, "that of two segments"


@pytest.fixture
def no_locking() -> Any:
    """This process may lock no memory, as little as an ordinary user without a limit for it."""
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, before[1]))
    restore = _drop_ipc_lock()
    yield
    restore()
    resource.setrlimit(resource.RLIMIT_MEMLOCK, before)


def _drop_ipc_lock() -> Callable[[], None]:
    """Give up CAP_IPC_LOCK, which lets root lock beyond the limit, until the result is called."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    words = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, words) == 0
    effective = words[0]

    def apply(value: int) -> None:
        words[0] = value
        assert libc.capset(header, words) == 0

    apply(effective & ~(1 << 14))
    return lambda: apply(effective)


def test_with_the_pool_on_nothing_is_warmed_and_that_is_said(
    pipeline: Callable[..., Any], work: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    broker = pipeline(warm_mapped_file_enable=True)
    work(broker.start(Allocator))
    assert broker.positions["allocated"] == SEGMENT_BYTES
    assert _locked(broker, 0) == 0
    assert "warm_mapped_file_enable has no effect" in capfd.readouterr().err
