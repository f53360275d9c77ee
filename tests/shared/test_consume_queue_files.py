"""Live consume queues: every entry in its place, no segment without one, nothing left unsynced."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared import consume_queue_files
from penstock.shared.checkpoint import Checkpoint, encode_checkpoint
from penstock.shared.config import Config
from penstock.shared.consume_queue import BLANK_ENTRY, ENTRY
from penstock.shared.consume_queue_files import ConsumeQueueFiles, ConsumeQueueSync
from penstock.shared.errors import StoreDamaged
from penstock.shared.known_queues import make_known_queues
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.positions import Positions
from penstock.shared.queue_table import QueueKey, QueueTable
from penstock.shared.run_directory import Run

SEGMENT = 100  # five entries
KEY = QueueKey("orders", 3)
ConfigMaker = Callable[..., Config]


def entry(number: int) -> bytes:
    return ENTRY.pack(number * 1000, 100 + number, -number)


def entries(start: int, stop: int) -> bytes:
    return b"".join(map(entry, range(start, stop)))


def files_in(root: Path, writable: bool = True) -> ConsumeQueueFiles:
    paths = StorePaths(root)
    paths.half_made.mkdir(parents=True, exist_ok=True)
    config = Config(mapped_file_size_consume_queue_bytes=SEGMENT)
    return ConsumeQueueFiles(paths, config, writable)


@given(
    st.integers(0, 23),
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), min_size=1, max_size=8),
)
def test_a_queue_is_what_was_put_however_often_and_wherever_it_began(
    tmp_path_factory: pytest.TempPathFactory, first: int, puts: list[tuple[int, int]]
) -> None:
    """A reput goes on from where its predecessor was, or from before that."""
    root = tmp_path_factory.mktemp("store")
    files = files_in(root)
    stop = first
    for back, count in puts:
        start = max(first, stop - back)
        files.put(KEY, start, entries(start, start + count))
        stop = max(stop, start + count)
    lead = first - first % 5
    whole = BLANK_ENTRY * (first - lead) + entries(first, stop)
    padded = whole + bytes(-len(whole) % SEGMENT)
    directory = StorePaths(root).queue(*KEY)
    found = sorted(directory.iterdir())
    assert [path.name for path in found] == [
        segment_name(lead * 20 + at) for at in range(0, len(padded), SEGMENT)
    ]
    assert b"".join(path.read_bytes() for path in found) == padded
    read, at = b"", first
    while at < stop:
        piece = files.read(KEY, at, stop)
        assert (
            piece
            and (len(read + piece) // 20 + first) * 20 % SEGMENT == 0
            or (len(read + piece) // 20 + first == stop)
        )
        read += piece
        at += len(piece) // 20
    assert read == entries(first, stop)
    assert list(StorePaths(root).half_made.iterdir()) == []
    files.close()


def test_a_segment_gets_its_name_together_with_its_first_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ does not start on an empty one, and a crash may come at any moment."""
    files = files_in(tmp_path)
    names, rename = [], os.rename

    def look(source: Path, target: Path) -> None:
        names.append((target.name, source.read_bytes()))
        rename(source, target)

    monkeypatch.setattr(os, "rename", look)
    files.put(KEY, 3, entries(3, 7))
    assert names == [
        (segment_name(0), BLANK_ENTRY * 3 + entries(3, 5)),
        (segment_name(100), (entries(5, 7)).ljust(SEGMENT, b"\0")),
    ]
    files.close()


def test_reading_makes_nothing(tmp_path: Path) -> None:
    files = files_in(tmp_path, writable=False)
    with pytest.raises(FileNotFoundError):
        files.read(KEY, 0, 1)
    assert not StorePaths(tmp_path).consume_queue.exists()


def test_a_segment_that_is_too_short_is_damage(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    files.put(KEY, 0, entries(0, 5))
    os.truncate(files.path(KEY, 0), 50)
    with pytest.raises(StoreDamaged, match=segment_name(0)):
        files.read(KEY, 0, 5)
    assert files.read(KEY, 0, 2) == entries(0, 2)
    files.close()


def test_no_more_files_stay_open_than_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume_queue_files, "OPEN_FILES", 4)
    files = files_in(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(12):
        files.put(QueueKey("t", number), 0, entry(number))
    for number in range(12):
        assert files.read(QueueKey("t", number), 0, 1) == entry(number)
        assert len(os.listdir("/proc/self/fd")) - before <= 4
    files.close()
    assert len(os.listdir("/proc/self/fd")) == before


# --- syncing ---


class Queues:
    """What the reput keeps, and the flusher's half."""

    def __init__(self, config: Config, run: Run) -> None:
        self.config, self.run = config, run
        self.paths = StorePaths(config.store)
        self.paths.half_made.mkdir(parents=True, exist_ok=True)
        make_known_queues(self.paths.known_queues)
        self.files = ConsumeQueueFiles(self.paths, config, writable=True)
        self.table = QueueTable(run.queues, writable=True)
        self.positions = Positions(run.positions, owner="supervisor")
        self.sync = self.flusher()

    def flusher(self) -> ConsumeQueueSync:
        return ConsumeQueueSync(self.paths, self.config, self.run, self.positions)

    def put(self, slot: int, start: int, stop: int) -> None:
        key = QueueKey("t", slot)
        if slot == self.positions["queue_count"]:
            self.table.add(slot, key, start, start)
            self.positions.initialise("queue_count", slot + 1)
        self.files.put(key, start, entries(start, stop))
        self.table.publish_max_offset(slot, stop)

    def close(self) -> None:
        for each in (self.sync, self.files, self.table, self.positions):
            each.close()


@pytest.fixture
def queues(make_config: ConfigMaker, make_run: Callable[[Config], Run]) -> Iterator[Queues]:
    config = make_config(mapped_file_size_consume_queue_bytes=8000)
    queues = Queues(config, make_run(config))
    yield queues
    queues.close()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the segments that were synced, shortened."""
    done: list[str] = []

    def note(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path.name != "queues":  # the list of names
            done.append(f"{path.parent.name}/{int(path.name)}")

    monkeypatch.setattr(os, "fdatasync", note)
    return done


def complete(sync: ConsumeQueueSync, least_pages: int) -> bool:
    """Run all steps; whether everything is on disk."""
    steps = sync.sync(least_pages)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bool(end.value)


def test_what_has_grown_is_synced_and_nothing_else(queues: Queues, synced: list[str]) -> None:
    queues.put(0, 0, 10)
    queues.put(1, 0, 500)
    assert complete(queues.sync, 0)
    assert synced == ["0/0", "1/0", "1/8000"]
    synced.clear()
    assert complete(queues.sync, 0) and synced == []
    queues.put(0, 10, 11)
    assert complete(queues.sync, 0) and synced == ["0/0"]


def test_a_little_growth_waits_for_more_and_is_said_to_be_missing(
    queues: Queues, synced: list[str]
) -> None:
    queues.put(0, 0, 300)
    assert not complete(queues.sync, 2) and synced == []
    queues.put(0, 300, 420)
    assert complete(queues.sync, 2)
    assert synced == ["0/0", "0/8000"]


def test_every_segment_the_growth_touches_is_synced(queues: Queues, synced: list[str]) -> None:
    queues.put(0, 0, 10)
    complete(queues.sync, 0)
    synced.clear()
    queues.put(0, 10, 1300)
    assert complete(queues.sync, 0)
    assert synced == ["0/0", "0/8000", "0/16000", "0/24000"]


def test_a_successor_syncs_what_its_predecessor_may_not_have(
    queues: Queues, synced: list[str]
) -> None:
    queues.put(0, 0, 500)
    complete(queues.sync, 0)
    synced.clear()
    successor = queues.flusher()
    assert complete(successor, 0)
    assert "0/8000" in synced
    successor.close()


@pytest.mark.parametrize(
    ("confirmed", "expected"),
    [
        (None, ["0/0", "0/8000", "0/16000", "0/24000"]),
        (450, ["0/8000", "0/16000", "0/24000"]),
        (1299, ["0/24000"]),
    ],
)
def test_a_successor_syncs_all_that_the_checkpoint_does_not_vouch_for(
    queues: Queues, synced: list[str], confirmed: int | None, expected: list[str]
) -> None:
    """Its predecessor may have died with more than a segment to sync."""
    if confirmed is not None:
        offset = int.from_bytes(entry(confirmed)[:8], "big")
        page = encode_checkpoint(Checkpoint(confirm_offset=offset))
        queues.paths.checkpoint.write_bytes(page)
    queues.put(0, 0, 1300)
    paths = sorted(queues.paths.queue("t", 0).iterdir())
    before = [path.read_bytes() for path in paths]
    for path in paths:
        os.utime(path, (0, 0))
    successor = queues.flusher()
    complete(successor, 1 << 20)  # not enough to sync yet: it stays in doubt
    assert synced == []
    assert complete(successor, 0)
    assert synced == expected
    # of a sync that failed the kernel tells once: only what is written again fails again
    again = [path.stat().st_mtime > 0 for path in paths]
    assert again == [newest > (confirmed or 0) for newest in (399, 799, 1199, 1299)]
    assert [path.read_bytes() for path in paths] == before
    successor.close()


def test_a_queue_whose_first_segment_is_not_there_yet_is_left_out(queues: Queues) -> None:
    """The reput counts a queue before it writes to it."""
    queues.table.add(0, QueueKey("t", 0), 7, 7)
    queues.positions.initialise("queue_count", 1)
    assert complete(queues.sync, 0)
    queues.put(0, 7, 8)
    assert complete(queues.sync, 0)
