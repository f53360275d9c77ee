"""The cleaner: old segments go, in order, with what belongs to them, and never what is needed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock.actors.cleaner import Cleaner
from penstock.actors.cleaner import actor as cleaner_module
from penstock.actors.cleaner.actor import SETTLE_MS
from penstock.actors.reput import Reput
from penstock.shared.config import Config
from penstock.shared.files import disk_space, durable
from penstock.shared.files.disk_space import disk_used_percent
from penstock.shared.files.durable import EXPIRED, expired_segments
from penstock.shared.formats.checkpoint import Checkpoint, encode_checkpoint
from penstock.shared.formats.index_layout import HEADER
from penstock.shared.formats.queue_entry import BLANK_ENTRY, ENTRY
from penstock.shared.formats.record_layout import store_timestamp_ms
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.log.archived import Archived, save_archived
from penstock.shared.memory.queue_table import QueueKey, QueueTable
from penstock.shared.process.disk_full import used_percent
from penstock.shared.store import deletions
from penstock.shared.store.deletions import Deletion, Reason, load_deletions
from penstock.shared.store.retention_clock import TRUST_CLOCK, held_ms

SEGMENT_BYTES = 64 << 10
QUEUE_SEGMENT_BYTES = 20 * 50
HOUR_MS = 3_600_000
# the clock of a test stands at hour 22
ANY_HOUR = {
    "transient_store_pool_enable": False,
    "file_reserved_time_h": 1,
    "delete_when": "22",
    "clean_resource_interval_ms": 1000,
}


class Disk:
    """A disk that is as full as the test says."""

    def __init__(self, percent: int = 10) -> None:
        self.percent = percent
        self.asked: list[Path] = []
        self.empty_bytes: list[int] = []

    def __call__(self, path: Path, empty_bytes: int) -> int:
        self.asked.append(path)
        self.empty_bytes.append(empty_bytes)
        return self.percent


class Store:
    """A run whose log has some segments, written an hour apart, the newest just now."""

    def __init__(self, broker: Any, work: Callable[..., None]) -> None:
        self.broker = broker
        self.work = work
        self.disk = Disk()
        self.reput = broker.start(Reput)

    def fill(self, segments: int, **record: Any) -> None:
        """Append until the log ends in that segment; all of it flushed and dispatched."""
        while self.broker.append(size=1000, **record) < segments * SEGMENT_BYTES + 5000:
            continue
        self.settle_log()

    def settle_log(self) -> None:
        positions = self.broker.positions
        for name in ("committed", "flushed"):
            positions.initialise(name, positions["wrote"])
        self.work(self.reput)
        self.confirm(positions["dispatched_record"])

    def confirm(self, record: int) -> None:
        page = encode_checkpoint(Checkpoint(1, 1, confirm_offset=record))
        self.broker.paths.checkpoint.write_bytes(page)

    def age(self, hours: float) -> None:
        """The segments that are there were last written this long ago."""
        for path in self.broker.paths.commit_log.iterdir():
            at_s = (self.broker.clock.now_ms() - hours * HOUR_MS) / 1000
            os.utime(path, (at_s, at_s))

    def cleaner(self) -> Any:
        def cleaner(stage: Any) -> Cleaner:
            return Cleaner(stage, self.disk)

        return self.broker.start(cleaner)

    def first_round(self) -> Any:
        """A cleaner at its first pause, which comes an interval after it has looked around."""
        cleaner = self.cleaner()
        self.work(cleaner)
        self.broker.clock.advance(self.broker.config.clean_resource_interval_ms)
        self.work(cleaner)
        return cleaner

    def run(self, cleaner: Any, rounds: int = 1) -> None:
        """Let it work through its pauses."""
        for _ in range(rounds):
            for _ in range(200):
                self.work(cleaner)
                self.broker.clock.advance(10)

    def segments(self) -> list[int]:
        return sorted(int(path.name) for path in self.broker.paths.commit_log.iterdir())

    def queue_files(self, queue_id: int = 0) -> list[int]:
        directory = self.broker.paths.queue("orders", queue_id)
        return sorted(int(path.name) for path in directory.iterdir())


@pytest.fixture
def store(pipeline: Callable[..., Any], work: Callable[..., None]) -> Callable[..., Store]:
    def make(**settings: Any) -> Store:
        return Store(pipeline(**{**ANY_HOUR, **settings}), work)

    return make


def test_segments_that_had_their_time_go_with_the_queue_files_of_their_messages(
    store: Callable[..., Store],
) -> None:
    it = store()
    it.fill(3)
    it.age(2)
    cleaner = it.cleaner()
    it.run(cleaner)
    positions = it.broker.positions
    assert it.segments()[0] == positions["log_start"] == 3 * SEGMENT_BYTES
    assert positions["deleted_segments"] == 3
    low, high = it.broker.queues()[QueueKey("orders", 0)]
    directory = it.broker.paths.queue("orders", 0)
    base = low * 20 - low * 20 % QUEUE_SEGMENT_BYTES
    assert it.queue_files() == list(range(base, high * 20, QUEUE_SEGMENT_BYTES))
    assert positions["deleted_queue_files"] == base // QUEUE_SEGMENT_BYTES > 0
    raw = (directory / segment_name(base)).read_bytes()
    offsets = [ENTRY.unpack_from(raw, at)[0] for at in range(0, QUEUE_SEGMENT_BYTES, 20)]
    at = low - base // 20
    assert offsets[at] >= 3 * SEGMENT_BYTES > offsets[at - 1], "the first that the log still has"


@pytest.mark.parametrize("kept", [0, 2])
def test_the_allocator_gets_as_many_expired_segments_as_it_is_to_have(
    store: Callable[..., Store], kept: int
) -> None:
    it = store(max_recycled_segments=kept)
    it.fill(3)
    it.age(2)
    it.run(it.cleaner())
    assert it.broker.positions["deleted_segments"] == 3
    names = [path.name for path in expired_segments(it.broker.paths.staging)]
    assert sorted(names) == [EXPIRED + segment_name(n * SEGMENT_BYTES) for n in range(kept)]
    assert it.segments() == [3 * SEGMENT_BYTES], "none of them is of the log"


def test_what_somebody_asks_for_is_not_kept_for_the_allocator(store: Callable[..., Store]) -> None:
    it = store(delete_when="3")
    it.fill(2)
    it.age(2)
    cleaner = it.cleaner()
    it.broker.run.clean_request.touch()
    it.run(cleaner)
    assert it.broker.positions["deleted_segments"] == 2
    assert expired_segments(it.broker.paths.staging) == []


def test_the_allocator_gets_none_where_the_disk_has_no_room_for_another(
    store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = store()
    it.fill(2)
    it.age(2)
    monkeypatch.setattr(disk_space, "_used_and_size", lambda path: (99, 100))
    it.run(it.cleaner())
    assert it.broker.positions["deleted_segments"] == 2
    assert expired_segments(it.broker.paths.staging) == []


def test_what_the_allocator_uses_again_counts_as_room_for_messages(
    store: Callable[..., Store],
) -> None:
    it = store(max_recycled_segments=2)
    it.fill(2)
    cleaner = it.first_round()
    before = it.disk.empty_bytes[-1]
    it.age(2)
    it.run(cleaner, 2)
    assert it.broker.positions["deleted_segments"] == 2
    assert it.disk.empty_bytes[-1] == before + 2 * SEGMENT_BYTES


def test_nothing_goes_outside_its_hour_and_before_its_time(store: Callable[..., Store]) -> None:
    it = store(delete_when="23", file_reserved_time_h=2)
    it.fill(2)
    it.age(1.5)
    cleaner = it.cleaner()
    it.run(cleaner)
    assert it.segments()[0] == 0
    it.broker.clock.advance(HOUR_MS)  # past two hours; and it is 23 now
    it.run(cleaner)
    assert it.segments()[0] == 2 * SEGMENT_BYTES
    it.fill(4)
    it.age(3)
    it.broker.clock.advance(HOUR_MS)
    it.run(cleaner)
    assert it.segments()[0] == 2 * SEGMENT_BYTES, "midnight is no hour of delete_when"
    it.broker.run.clean_request.touch()
    it.run(cleaner)
    assert it.segments()[0] == 4 * SEGMENT_BYTES, "asked for it does not matter"
    assert not it.broker.run.clean_request.exists()


def test_a_queue_loses_what_expires_later_to_the_same_cleaner(store: Callable[..., Store]) -> None:
    it = store()
    cleaner, lows = it.cleaner(), [0]
    for segments in (2, 4):
        it.fill(segments)
        it.age(2)
        it.run(cleaner, rounds=2)
        assert it.broker.positions["log_start"] == segments * SEGMENT_BYTES
        lows.append(it.broker.queues()[QueueKey("orders", 0)][0])
    assert lows == sorted({*lows})


@pytest.mark.parametrize(
    "word", ["committed", "flushed", "dispatched_record", "checkpoint", "unsaved_offsets"]
)
def test_what_a_start_would_need_stays_whatever_its_age(
    store: Callable[..., Store], word: str
) -> None:
    it = store(file_reserved_time_h=0)
    it.fill(3)
    it.age(100)
    if word == "checkpoint":
        it.confirm(SEGMENT_BYTES + 5)
    else:
        it.broker.positions.initialise(word, SEGMENT_BYTES + 5)
    cleaner = it.cleaner()
    it.run(cleaner)
    assert it.segments()[0] == it.broker.positions["log_start"] == SEGMENT_BYTES


def test_without_a_checkpoint_nothing_goes(store: Callable[..., Store]) -> None:
    it = store(file_reserved_time_h=0)
    it.fill(2)
    it.age(100)
    it.broker.paths.checkpoint.unlink()
    it.run(it.cleaner())
    assert it.segments()[0] == 0


def test_the_segment_with_the_last_record_stays_when_the_log_ends_with_it(
    store: Callable[..., Store],
) -> None:
    """An empty log costs RocketMQ all its queues, and this broker its start."""
    it = store(file_reserved_time_h=0)
    it.fill(2)
    left = 3 * SEGMENT_BYTES - it.broker.positions["wrote"]
    overhead = -it.broker.positions["wrote"] + it.broker.append(size=0)
    it.broker.append(size=left - 2 * overhead - 8)  # a blank's header is always left
    it.settle_log()
    it.age(100)
    it.broker.allocate(2)
    it.run(it.cleaner())
    assert it.segments()[0] == 2 * SEGMENT_BYTES


def test_of_a_damaged_log_nothing_goes(store: Callable[..., Store]) -> None:
    it = store(file_reserved_time_h=0)
    it.fill(3)
    it.age(100)
    it.broker.positions.initialise("read_only", 1)
    it.disk.percent = 99
    it.broker.run.clean_request.touch()
    it.run(it.cleaner())
    assert it.segments()[0] == 0
    assert it.broker.positions["disk_full"] == 99
    assert not it.broker.run.clean_request.exists()


def test_no_more_than_a_batch_goes_at_once_with_pauses_between(
    store: Callable[..., Store],
) -> None:
    it = store(delete_file_batch_max=2, delete_commit_log_files_interval_ms=100)
    it.fill(4)
    it.age(2)
    cleaner = it.first_round()
    assert it.segments()[0] == SEGMENT_BYTES, "one, then a pause"
    assert it.broker.positions["log_start"] == 2 * SEGMENT_BYTES, "decided for both"
    it.broker.clock.advance(99)
    it.work(cleaner)
    assert it.segments()[0] == SEGMENT_BYTES
    it.broker.clock.advance(1)
    it.work(cleaner)
    assert it.segments()[0] == 2 * SEGMENT_BYTES
    it.broker.clock.advance(200)
    it.work(cleaner)
    assert it.segments()[0] == 2 * SEGMENT_BYTES, "the next batch is for the next look"
    it.run(cleaner)
    assert it.segments()[0] == 4 * SEGMENT_BYTES


def test_asked_by_hand_it_waits_for_the_word_of_the_scheduler(store: Callable[..., Store]) -> None:
    """After a start nobody knows for a moment what waits; a round then would find nothing to do."""
    it = store(delete_when="3", clean_resource_interval_ms=10**9)
    it.fill(2)
    it.age(100)
    it.broker.positions.initialise("delay_floor", 0)
    cleaner = it.cleaner()
    it.run(cleaner)
    it.broker.run.clean_request.touch()
    it.run(cleaner)
    assert it.segments()[0] == 0 and it.broker.run.clean_request.exists()
    it.broker.positions.initialise("delay_floor", 1 << 62)
    it.run(cleaner)
    assert it.segments()[0] == 2 * SEGMENT_BYTES and not it.broker.run.clean_request.exists()


def test_what_no_archive_has_stays_if_only_that_may_go(
    store: Callable[..., Store], capfd: pytest.CaptureFixture[str]
) -> None:
    it = store(expire_archived_only=True, clean_file_forcibly_enable=True)
    it.fill(4)
    it.age(100)
    it.disk.percent = 99
    cleaner = it.cleaner()
    it.run(cleaner)
    assert it.segments()[0] == 0, "nothing was archived"
    paths = StorePaths(it.broker.config.store)
    save_archived(paths, Archived(log_offset=3 * SEGMENT_BYTES - 1, archive="/a"))
    it.run(cleaner)
    assert it.segments()[0] == 2 * SEGMENT_BYTES, "a segment goes when all of it is archived"
    paths.archived.write_bytes(b"{")
    for _ in range(2):
        it.run(cleaner)
    assert it.segments()[0] == 2 * SEGMENT_BYTES
    assert capfd.readouterr().err.count("nothing expires: [STORE_DAMAGED]") == 1


def test_asked_by_hand_it_does_not_stop_at_a_batch(store: Callable[..., Store]) -> None:
    it = store(delete_file_batch_max=1, delete_when="3", clean_resource_interval_ms=10**9)
    it.fill(4)
    it.age(2)
    cleaner = it.cleaner()
    it.run(cleaner)
    assert it.segments()[0] == 0
    it.broker.run.clean_request.touch()
    it.run(cleaner)
    assert it.segments()[0] == 4 * SEGMENT_BYTES


@pytest.mark.parametrize("percent", [86, 92, 100])
@pytest.mark.parametrize("asked", [False, True])
def test_a_full_disk_costs_no_message_before_its_time_and_takes_no_other(
    store: Callable[..., Store], capsys: pytest.CaptureFixture[str], percent: int, asked: bool
) -> None:
    """It says so once, and once that it is over."""

    def told() -> tuple[int, int]:
        said = capsys.readouterr().err
        return said.count("no message is taken"), said.count("messages are taken again")

    it = store(file_reserved_time_h=3, delete_when="22")
    it.fill(4)
    it.age(2)
    it.disk.percent = percent
    if asked:
        it.broker.run.clean_request.touch()
    it.run(it.cleaner(), rounds=3)
    assert it.segments()[0] == it.broker.positions["log_start"] == 0
    full = percent if percent > 90 else 0
    assert it.broker.positions["disk_full"] == full
    assert load_deletions(it.broker.paths) == []
    assert told() == (bool(full), 0)
    it.disk.percent = 90
    it.broker.clock.advance(1000)
    it.run(it.cleaner())
    assert it.broker.positions["disk_full"] == 0
    assert told() == (0, bool(full))


@pytest.mark.parametrize("full", ["commitlog", "consumequeue"])
def test_of_two_disks_the_fuller_one_counts(store: Callable[..., Store], full: str) -> None:
    it = store()

    def cleaner(stage: Any) -> Cleaner:
        return Cleaner(stage, lambda path, empty_bytes: 95 if path.name == full else 20)

    it.broker.start(cleaner)
    assert (it.broker.positions["disk_used"], it.broker.positions["disk_full"]) == (96, 95)


def test_room_that_is_allocated_ahead_counts_as_room(store: Callable[..., Store]) -> None:
    it = store()
    it.fill(1)
    it.broker.allocate(2)
    it.cleaner()
    wrote, allocated = (it.broker.positions[name] for name in ("wrote", "allocated"))
    assert set(it.disk.empty_bytes) == {allocated - wrote} != {0}


def test_who_starts_a_broker_on_a_full_disk_is_told_before_the_first_look(
    store: Callable[..., Store],
) -> None:
    it = store()
    it.disk.percent = 93
    it.cleaner()
    assert it.broker.positions["disk_full"] == 93


def test_a_disk_of_which_nobody_knows_how_full_it_is_is_not_empty(
    store: Callable[..., Store],
) -> None:
    it = store()
    assert used_percent(it.broker.positions["disk_used"]) is None, "nobody has looked yet"
    for percent, shown in ((0, 0), (-1, None), (7, 7)):
        it.disk.percent = percent
        it.cleaner()
        assert used_percent(it.broker.positions["disk_used"]) == shown


def test_a_disk_that_is_too_full_costs_the_oldest_one_by_one_where_that_is_allowed(
    store: Callable[..., Store],
) -> None:
    it = store(file_reserved_time_h=1000, delete_when="3", clean_file_forcibly_enable=True)
    it.fill(4)
    it.disk.percent = 92
    cleaner = it.first_round()
    positions = it.broker.positions
    assert (used_percent(positions["disk_used"]), positions["disk_full"]) == (92, 92)
    assert it.segments()[0] == positions["log_start"] == SEGMENT_BYTES
    it.broker.clock.advance(100)  # the pause after a deletion
    it.work(cleaner)
    it.disk.percent = 86  # less, and still too much: the store stays closed
    it.broker.clock.advance(SETTLE_MS)
    it.work(cleaner)
    assert it.segments()[0] == 2 * SEGMENT_BYTES and positions["disk_full"] == 86
    it.disk.percent = 80
    it.run(cleaner)
    assert it.segments()[0] == 2 * SEGMENT_BYTES
    assert (used_percent(positions["disk_used"]), positions["disk_full"]) == (80, 0)
    assert set(it.disk.asked) == {it.broker.paths.commit_log, it.broker.paths.consume_queue}
    rows = load_deletions(it.broker.paths)
    assert [(row.why, row.segments, row.disk_used_percent) for row in rows] == [
        (Reason.FORCED, 1, 92),
        (Reason.FORCED, 1, 86),
    ]


def test_a_queue_whose_messages_are_all_gone_keeps_its_next_offset(
    store: Callable[..., Store],
) -> None:
    it = store()
    it.broker.append(120, topic="orders", queue_id=1)
    it.fill(2, queue_id=0)
    it.age(2)
    it.run(it.cleaner())
    assert it.broker.queues()[QueueKey("orders", 1)] == (120, 120)
    assert it.queue_files(1) == [2 * QUEUE_SEGMENT_BYTES], "the last file stays"
    it.broker.append(topic="orders", queue_id=1)
    it.settle_log()
    assert it.broker.queues()[QueueKey("orders", 1)] == (120, 121)


def test_the_file_with_the_newest_entry_that_has_expired_stays(
    store: Callable[..., Store],
) -> None:
    """A queue whose files begin with a message that is there has lost those before: a start says
    so, and looks for their messages in the log."""
    it = store()
    it.broker.append(100, topic="orders", queue_id=1)
    it.fill(2, queue_id=0)
    it.broker.append(5, topic="orders", queue_id=1)
    it.settle_log()
    it.age(2)
    it.run(it.cleaner())
    assert it.broker.queues()[QueueKey("orders", 1)] == (100, 105)
    assert it.queue_files(1) == [QUEUE_SEGMENT_BYTES, 2 * QUEUE_SEGMENT_BYTES]


def test_blanks_before_a_queues_first_entry_are_passed_over(store: Callable[..., Store]) -> None:
    it = store()
    it.fill(2)
    low, high = it.broker.queues()[QueueKey("orders", 0)]
    file = it.broker.paths.queue("orders", 0) / segment_name(0)
    raw = bytearray(file.read_bytes())
    raw[:200] = BLANK_ENTRY * 10
    file.write_bytes(raw)
    it.age(2)
    it.run(it.cleaner())
    moved, _ = it.broker.queues()[QueueKey("orders", 0)]
    assert low < moved < high
    base = moved * 20 - moved * 20 % QUEUE_SEGMENT_BYTES
    kept = (it.broker.paths.queue("orders", 0) / segment_name(base)).read_bytes()
    assert ENTRY.unpack_from(kept, moved * 20 - base)[0] >= 2 * SEGMENT_BYTES


def test_leading_index_files_without_what_the_log_holds_go_and_the_last_stays(
    store: Callable[..., Store],
) -> None:
    it = store()
    it.fill(2)
    it.broker.paths.index.mkdir()
    ends = [5, 2 * SEGMENT_BYTES - 1, 2 * SEGMENT_BYTES, 7]
    for number, end in enumerate(ends):
        header = HEADER.pack(1, 2, 0, end, 1, 2)
        (it.broker.paths.index / f"{number:017d}").write_bytes(header.ljust(500, b"\0"))
    it.age(2)
    it.run(it.cleaner())
    assert sorted(path.name for path in it.broker.paths.index.iterdir()) == [
        f"{number:017d}" for number in (2, 3)
    ]
    assert it.broker.positions["deleted_index_files"] == 2


def test_a_successor_ends_what_was_begun_wherever_it_was(store: Callable[..., Store]) -> None:
    """Dying after any step leaves what the next one makes the same of."""
    reached = []
    for steps in range(40):
        it = store()
        it.fill(3)
        it.age(2)
        first = it.cleaner()
        for _ in range(steps):
            first.work()
            it.broker.clock.advance(100)
        before = it.broker.positions["log_start"], it.segments()[0], it.queue_files()[0]
        reached.append(before)
        it.broker.crash(first)
        assert before[1] <= before[0], "a file goes after log_start says so"
        low, _ = it.broker.queues()[QueueKey("orders", 0)]
        assert before[2] <= low * 20
        it.run(it.cleaner(), rounds=2)
        assert it.segments()[0] == it.broker.positions["log_start"] == 3 * SEGMENT_BYTES
        low, _ = it.broker.queues()[QueueKey("orders", 0)]
        assert it.queue_files()[0] == low * 20 - low * 20 % QUEUE_SEGMENT_BYTES
    assert len(set(reached)) >= 5, "the steps lie between deletions"


@pytest.mark.parametrize("again", [0, 9])
def test_a_successor_makes_the_last_deletion_durable_before_the_next_one(
    store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, again: int
) -> None:
    """After a power failure a younger one without the older would be a hole, and no start."""
    it = store(max_recycled_segments=again)
    it.fill(3)
    it.age(2)
    first = it.cleaner()
    while it.segments()[0] == 0:
        first.work()
        it.broker.clock.advance(100)
    it.broker.crash(first)
    steps: list[tuple[str, str]] = []

    def note(event: str, path: Path) -> None:
        if path.parent == it.broker.paths.commit_log or path == it.broker.paths.commit_log:
            steps.append((event, path.name))

    unlink, rename, sync = Path.unlink, os.rename, durable.sync_directory
    monkeypatch.setattr(Path, "unlink", lambda self, **how: note("go", self) or unlink(self, **how))
    monkeypatch.setattr(os, "rename", lambda old, new: note("go", old) or rename(old, new))
    for module in (durable, cleaner_module):
        monkeypatch.setattr(module, "sync_directory", lambda path: note("sync", path) or sync(path))
    it.run(it.cleaner())
    one, two = segment_name(SEGMENT_BYTES), segment_name(2 * SEGMENT_BYTES)
    sync_it = ("sync", "commitlog")
    assert steps == [sync_it, ("go", one), sync_it, ("go", two), sync_it]


@pytest.mark.parametrize("again", [0, 9])
def test_a_deletion_that_the_disk_did_not_confirm_is_made_durable_before_the_next_one(
    store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, again: int
) -> None:
    """Also when the one in front of it was confirmed: each deletion is by itself."""
    it = store(redelete_hanged_file_interval_ms=60_000, max_recycled_segments=again)
    it.fill(3)
    it.age(2)
    steps: list[str] = []
    failing = iter([False, True])

    def sync(path: Path) -> None:
        if path == it.broker.paths.commit_log:
            fails = next(failing, False)
            steps.append("fails" if fails else "sync")
            if fails:
                raise OSError(errno.EIO, "the disk does not answer")

    def unlink(path: Path, **how: Any) -> None:
        if path.parent == it.broker.paths.commit_log:
            steps.append("go")
        os.unlink(path)

    old_rename = os.rename

    def rename(path: Path, target: Path) -> None:
        if path.parent == it.broker.paths.commit_log:
            steps.append("go")
        old_rename(path, target)

    monkeypatch.setattr(Path, "unlink", unlink)
    monkeypatch.setattr(os, "rename", rename)
    cleaner = it.cleaner()
    cleaner._settled.add(it.broker.paths.commit_log)
    for module in (durable, cleaner_module):
        monkeypatch.setattr(module, "sync_directory", sync)
    it.run(cleaner)
    assert steps == ["go", "sync", "go", "fails"]
    it.broker.clock.advance(60_000)
    it.run(cleaner)
    assert steps[4:] == ["sync", "go", "sync"]
    assert it.segments()[0] == 3 * SEGMENT_BYTES


def test_a_file_that_cannot_be_deleted_is_told_and_tried_again_later(
    store: Callable[..., Store], capfd: pytest.CaptureFixture[str]
) -> None:
    """A directory in the segment's place stands for the file that the disk does not let go."""
    it = store(redelete_hanged_file_interval_ms=60_000)
    it.fill(2)
    first = it.broker.paths.commit_log / segment_name(0)
    first.unlink()
    first.mkdir()
    it.age(2)
    cleaner = it.cleaner()
    it.run(cleaner)
    assert it.broker.positions["clean_error"] == errno.EISDIR
    assert capfd.readouterr().err.count("what has expired cannot be deleted") == 1
    assert it.segments()[0] == 0
    first.rmdir()
    first.write_bytes(bytes(SEGMENT_BYTES))
    it.run(cleaner)
    assert it.segments()[0] == 0, "not yet"
    it.broker.clock.advance(60_000)
    it.run(cleaner)
    assert it.segments()[0] == 2 * SEGMENT_BYTES
    assert it.broker.positions["clean_error"] == 0


def test_a_jump_of_the_clock_is_noticed_when_it_comes_also_while_nothing_may_go(
    store: Callable[..., Store], capfd: pytest.CaptureFixture[str]
) -> None:
    it = store()
    it.broker.positions.initialise("read_only", 1)
    cleaner = it.cleaner()
    it.run(cleaner)
    assert "jumped" not in capfd.readouterr().err
    it.broker.clock.jump(5 * HOUR_MS)
    it.run(cleaner)
    assert "the clock has jumped by 18000 s" in capfd.readouterr().err


@pytest.mark.parametrize("missing", [0, 1])
def test_a_segment_that_somebody_has_removed_keeps_no_other_from_going(
    store: Callable[..., Store], missing: int
) -> None:
    it = store()
    it.fill(3)
    it.age(2)
    (it.broker.paths.commit_log / segment_name(missing * SEGMENT_BYTES)).unlink()
    it.run(it.cleaner())
    assert it.segments()[0] == it.broker.positions["log_start"] == 3 * SEGMENT_BYTES
    assert it.broker.positions["clean_error"] == 0


def test_a_queue_that_cannot_be_read_is_told_once_and_keeps_no_other_from_expiring(
    store: Callable[..., Store], capfd: pytest.CaptureFixture[str]
) -> None:
    it = store()
    it.fill(1, queue_id=0)
    it.fill(3, queue_id=1)
    os.truncate(it.broker.paths.queue("orders", 0) / segment_name(0), 7)
    it.age(2)
    cleaner = it.cleaner()
    it.run(cleaner, rounds=3)
    assert capfd.readouterr().err.count("a queue keeps what has expired") == 1
    assert it.broker.positions["clean_error"] == errno.EIO
    assert it.segments()[0] == 3 * SEGMENT_BYTES
    assert it.broker.queues()[QueueKey("orders", 1)][0] > 0


def test_a_deleted_topics_directories_go_with_their_files_in_one_round(
    store: Callable[..., Store], capfd: pytest.CaptureFixture[str]
) -> None:
    it = store()
    for topic in ("1-1", "2-1"):
        for queue_id in ("0", "1"):
            directory = it.broker.paths.deleted_queues / topic / queue_id
            directory.mkdir(parents=True)
            (directory / segment_name(0)).write_bytes(b"entries")
    it.run(it.cleaner())
    assert not [*it.broker.paths.deleted_queues.iterdir()]
    assert it.broker.positions["deleted_queue_files"] == 4
    assert "cannot be deleted" not in capfd.readouterr().err


def test_what_stays_of_a_deleted_topic_keeps_nothing_from_going_and_nobody_awake(
    store: Callable[..., Store], capfd: pytest.CaptureFixture[str]
) -> None:
    """A link stands for the file that the disk does not let go. A cleaner went round without a
    rest, and nothing expired any more."""
    it = store()
    it.fill(2)
    stuck = it.broker.paths.deleted_queues / "1-1" / "0" / "link"
    other = it.broker.paths.deleted_queues / "2-1" / "0" / segment_name(0)
    for path in (stuck, other):
        path.parent.mkdir(parents=True)
    stuck.symlink_to("..")
    other.write_bytes(b"entries")
    it.age(2)
    cleaner = it.cleaner()
    for _ in range(20):
        assert any(not cleaner.work() for _ in range(1000)), "it never waits"
        it.broker.clock.advance(1000)
    assert it.broker.positions["clean_error"] == errno.ENOTEMPTY
    assert capfd.readouterr().err.count("what has expired cannot be deleted") == 1
    assert not other.parent.parent.exists()
    assert it.segments()[0] == 2 * SEGMENT_BYTES
    stuck.unlink()
    it.run(cleaner, rounds=2)
    assert not [*it.broker.paths.deleted_queues.iterdir()]
    assert it.broker.positions["clean_error"] == 0


@pytest.mark.parametrize("kind", ["queue", "index"])
def test_a_file_of_queues_or_index_that_stays_keeps_no_segment_from_going(
    store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    it = store()
    it.fill(1, queue_id=0)
    it.fill(2, queue_id=1)
    it.broker.paths.index.mkdir()
    for number in range(2):
        header = HEADER.pack(1, 2, 0, 5, 1, 2).ljust(500, b"\0")
        (it.broker.paths.index / f"{number:017d}").write_bytes(header)
    it.age(2)
    stuck = it.broker.paths.queue("orders", 0) if kind == "queue" else it.broker.paths.index
    unlink = Path.unlink

    def refuse(path: Path, **how: Any) -> None:
        if path.parent == stuck:
            raise OSError(errno.EPERM, "it stays")
        unlink(path, **how)

    with monkeypatch.context() as disk:
        disk.setattr(Path, "unlink", refuse)
        cleaner = it.cleaner()
        it.run(cleaner, rounds=2)
        assert it.broker.positions["clean_error"] == errno.EPERM
        assert it.segments()[0] == 2 * SEGMENT_BYTES
        assert it.queue_files(1)[0] > 0, "another queue's files go"
        it.fill(3, queue_id=1)
        it.age(2)
        it.run(cleaner, rounds=2)
        assert it.segments()[0] == 3 * SEGMENT_BYTES
        for _ in range(2):
            it.run(cleaner)
            assert it.broker.positions["clean_error"] == errno.EPERM, "nothing more has expired"
    it.run(cleaner, rounds=2)
    assert it.queue_files(0)[0] > 0 and len([*it.broker.paths.index.iterdir()]) == 1
    assert it.broker.positions["clean_error"] == 0


def test_by_hand_goes_only_what_has_had_its_time_also_when_the_clock_has_jumped(
    store: Callable[..., Store],
) -> None:
    it = store(delete_when="3", file_reserved_time_h=72)
    it.fill(2)
    it.age(0)
    cleaner = it.cleaner()
    it.broker.clock.jump(10 * 365 * 24 * HOUR_MS)
    it.broker.run.clean_request.touch()
    it.run(cleaner)
    assert it.segments()[0] == 0 and not it.broker.run.clean_request.exists()
    assert held_ms(it.broker.paths.retention, it.broker.clock) > 71 * HOUR_MS
    it.broker.run.clean_request.write_bytes(TRUST_CLOCK)
    it.run(cleaner)
    assert it.segments()[0] == 2 * SEGMENT_BYTES
    assert [row.why for row in load_deletions(it.broker.paths)] == [Reason.ASKED]


# --- what is told of it ---


def _deletions(it: Store) -> list[Deletion]:
    return load_deletions(it.broker.paths)


def test_each_deletion_is_said_and_written_down_with_its_messages_and_their_times(
    store: Callable[..., Store], capfd: pytest.CaptureFixture[str]
) -> None:
    it = store(clean_resource_interval_ms=10)
    it.fill(2, queue_id=0)
    it.broker.clock.advance(5000)
    it.fill(3, queue_id=1)
    it.age(2)
    before = it.broker.queues()
    it.run(it.cleaner())
    gone = sum(it.broker.queues()[key][0] - low for key, (low, _) in before.items())
    (row,) = _deletions(it)
    first_kept = (it.broker.paths.commit_log / segment_name(3 * SEGMENT_BYTES)).read_bytes()
    assert row == Deletion(
        at_ms=row.at_ms,
        why=Reason.DELETE_WHEN,
        disk_used_percent=10,
        segments=3,
        log_start=0,
        log_end=3 * SEGMENT_BYTES,
        messages=gone,
        uncounted_queues=0,
        stored_before_ms=store_timestamp_ms(first_kept, 0),
    )
    assert gone > 150 and 0 <= it.broker.clock.now_ms() - row.at_ms <= 10_000
    said = [line for line in capfd.readouterr().err.splitlines() if "deleting" in line]
    assert len(said) == 1
    assert f"deleting 3 segments, log offsets [0, {3 * SEGMENT_BYTES})" in said[0]
    assert f"with {gone} messages stored before 20" in said[0]
    assert "their 1 h are over, and it is an hour of delete_when (22)" in said[0]


@pytest.mark.parametrize(
    ("percent", "asked", "why", "said"),
    [
        (80, False, Reason.DISK_USED, "the disk is 80% full"),
        (-1, False, Reason.DISK_USED, "nobody knows how full the disk is"),
        (80, True, Reason.ASKED, "penstock clean"),
    ],
)
def test_each_deletion_says_why(
    store: Callable[..., Store],
    capfd: pytest.CaptureFixture[str],
    percent: int,
    asked: bool,
    why: Reason,
    said: str,
) -> None:
    it = store(delete_when="3")
    it.fill(2)
    it.age(2)
    it.disk.percent = percent
    if asked:
        it.broker.run.clean_request.touch()
    it.run(it.cleaner())
    assert [row.why for row in _deletions(it)] == [why]
    assert said in capfd.readouterr().err


def test_blanks_before_a_queues_first_entry_are_no_messages(store: Callable[..., Store]) -> None:
    it = store()
    it.fill(2)
    file = it.broker.paths.queue("orders", 0) / segment_name(0)
    raw = bytearray(file.read_bytes())
    raw[:200] = BLANK_ENTRY * 10
    file.write_bytes(raw)
    it.age(2)
    it.run(it.cleaner())
    low, _ = it.broker.queues()[QueueKey("orders", 0)]
    assert [row.messages for row in _deletions(it)] == [low - 10]


def test_a_queue_of_which_nothing_is_left_counts_as_such(store: Callable[..., Store]) -> None:
    """Its next entry would be the first of a file that is not there yet."""
    it = store()
    it.broker.append(2 * QUEUE_SEGMENT_BYTES // 20, queue_id=1)
    cleaner = it.cleaner()
    for segments in (2, 4):
        it.fill(segments)
        it.age(2)
        it.run(cleaner)
        assert it.broker.queues()[QueueKey("orders", 1)] == (100, 100)
    assert [row.uncounted_queues for row in _deletions(it)] == [0, 0]


def test_a_queue_that_cannot_be_read_is_said_to_be_uncounted(store: Callable[..., Store]) -> None:
    it = store()
    it.fill(1, queue_id=0)
    it.fill(3, queue_id=1)
    os.truncate(it.broker.paths.queue("orders", 0) / segment_name(0), 7)
    it.age(2)
    it.run(it.cleaner())
    (row,) = _deletions(it)
    low, _ = it.broker.queues()[QueueKey("orders", 1)]
    assert (row.messages, row.uncounted_queues) == (low, 1)


def test_the_list_is_right_wherever_the_cleaner_dies(store: Callable[..., Store]) -> None:
    """Whatever a cleaner has done is on the list once, with all its messages."""
    for steps in range(12):
        it = store(delete_file_batch_max=2)
        it.fill(3)
        it.age(2)
        first = it.cleaner()
        for _ in range(steps):
            first.work()
            it.broker.clock.advance(100)
        it.broker.crash(first)
        it.run(it.cleaner(), rounds=2)
        low, _ = it.broker.queues()[QueueKey("orders", 0)]
        rows = _deletions(it)
        assert sum(row.messages for row in rows) == low
        assert [row.log_end for row in rows] == [2 * SEGMENT_BYTES, 3 * SEGMENT_BYTES]
        assert [row.log_start for row in rows] == [0, 2 * SEGMENT_BYTES]


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_what_a_crash_of_the_broker_kept_is_struck_off_the_list(
    store: Callable[..., Store], gone: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """The next start finds segments that were to go: the log begins with them again."""
    it = store(delete_when="3")
    it.fill(4)
    low, high = it.broker.queues()[QueueKey("orders", 0)]
    entries = b"".join(
        path.read_bytes() for path in sorted(it.broker.paths.queue("orders", 0).iterdir())
    )
    offsets = [ENTRY.unpack_from(entries, at * 20)[0] for at in range(low, high)]
    row = Deletion(
        at_ms=5,
        why=Reason.ASKED,
        disk_used_percent=50,
        segments=2,
        log_start=0,
        log_end=2 * SEGMENT_BYTES,
        messages=sum(offset < 2 * SEGMENT_BYTES for offset in offsets),
        uncounted_queues=0,
        stored_before_ms=7,
    )
    it.broker.paths.deletions.write_bytes(msgspec.json.encode([row]))
    start = gone * SEGMENT_BYTES
    table = QueueTable(it.broker.run.queues, writable=True)
    table.publish_min_offset(0, low + sum(offset < start for offset in offsets))
    table.close()
    it.broker.positions.initialise("log_start", start)
    it.run(it.cleaner())
    found, said = _deletions(it), capfd.readouterr().err
    assert said.count("nothing went yet of") == (gone == 0)
    assert said.count("only this was done: deleting 1 segment,") == (gone == 1)
    if gone == 0:
        assert found == []
    elif gone == 2:
        assert found == [row]
    else:
        assert [(each.segments, each.log_end) for each in found] == [(1, SEGMENT_BYTES)]
        assert found[0].messages == sum(offset < SEGMENT_BYTES for offset in offsets)
        assert found[0].stored_before_ms > 7


def test_a_list_that_finds_no_room_keeps_nothing_from_going_and_is_written_later(
    store: Callable[..., Store],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    it = store()
    it.fill(2)
    it.age(2)
    full = [True]
    replace_file = deletions.replace_file

    def write(path: Path, content: bytes) -> None:
        if full and it.segments()[0] < 2 * SEGMENT_BYTES:
            raise OSError(errno.ENOSPC, "full")
        replace_file(path, content)

    monkeypatch.setattr(deletions, "replace_file", write)
    it.run(it.cleaner())
    assert it.segments()[0] == 2 * SEGMENT_BYTES
    assert [row.segments for row in _deletions(it)] == [2]
    said = capfd.readouterr().err
    assert "deleting 2 segments" in said and "cannot be written now" in said


@pytest.mark.parametrize("broken", [b"", b"\xff{", b'{"a":1}', b'[{"a":' + b"[" * 100_000])
def test_a_list_that_cannot_be_read_stops_no_cleaner(
    store: Callable[..., Store], broken: bytes
) -> None:
    it = store()
    it.fill(2)
    it.age(2)
    it.broker.paths.deletions.write_bytes(broken)
    it.run(it.cleaner())
    assert [row.segments for row in _deletions(it)] == [2]
    assert it.broker.paths.deletions.with_name("deletions.json.broken").read_bytes() == broken


def test_the_list_keeps_the_last_hundred(tmp_path: Path) -> None:
    paths = StorePaths(tmp_path)
    paths.own.mkdir()
    told: list[str] = []
    kept = deletions.Deletions(paths, told.append)
    row = Deletion(
        at_ms=0,
        why=Reason.FORCED,
        disk_used_percent=-1,
        segments=1,
        log_start=0,
        log_end=1,
        messages=1,
        uncounted_queues=2,
        stored_before_ms=0,
    )
    for number in range(deletions.KEPT + 5):
        kept.add(msgspec.structs.replace(row, at_ms=number))
    assert [each.at_ms for each in load_deletions(paths)] == list(range(5, deletions.KEPT + 5))
    said = deletions.describe(row, Config())
    assert "before their time, as nobody knows how full the disk is" in said
    assert "those of 2 queues that cannot be read" in said and "a time that cannot be read" in said
    assert told == []


def test_a_disks_use_is_counted_as_df_counts_it(tmp_path: Path) -> None:
    place = tmp_path
    disk = os.statvfs(place)
    used = disk.f_blocks - disk.f_bfree
    exact = 100 * used / (used + disk.f_bavail)
    assert exact - 1 <= disk_used_percent(place) <= exact + 2
    assert disk_used_percent(place / "nowhere") == -1


def test_a_disk_that_is_half_full_is_so_to_the_percent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves = SimpleNamespace(f_blocks=120, f_bfree=70, f_bavail=50, f_frsize=1)
    monkeypatch.setattr(os, "statvfs", lambda path: halves)
    assert disk_used_percent(tmp_path) == 50
    assert disk_used_percent(tmp_path, empty_bytes=1) == 49
    assert disk_used_percent(tmp_path, empty_bytes=60) == 0
