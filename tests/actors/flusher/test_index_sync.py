"""A flusher makes durable whatever of the index its predecessor may have failed to sync."""

from __future__ import annotations

import errno
import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from penstock.actors.flusher import index_sync
from penstock.actors.flusher.index_sync import IndexSync
from penstock.chaos.machine.processes import descriptors
from penstock.shared.files.durable import FlushFailed, write_again
from penstock.shared.formats.checkpoint import Checkpoint
from penstock.shared.formats.index_chains import KeyBatch
from penstock.shared.formats.index_layout import HEADER, Geometry
from penstock.shared.index.directory import index_files
from penstock.shared.index.index_file import IndexFiles

SMALL = Geometry(slots=7, items=20)
KEYS = 30  # a file is full with 19
EVER = 1 << 60


def _offset(number: int) -> int:
    return number * 1000


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A full file and one that is not, of records a second and 1000 bytes apart."""
    made = iter(range(1, 9))
    files = IndexFiles(tmp_path / "index", tmp_path, SMALL, lambda: next(made) * 86_400_000)
    batch = KeyBatch()
    for number in range(KEYS):
        batch.add(b"orders", b"", b"k%d" % number, _offset(number), (number + 1) * 1000)
    files.put(batch.entries())
    files.close()
    return tmp_path / "index"


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """(file, start, stop) of what was written again before it was synced."""
    done: list[tuple[str, int, int]] = []

    def note(handle: int, start: int, stop: int, *, replaces: bool) -> None:
        assert replaces, "an index can be made again, and a lost page of it must stop no flush"
        if start < stop:
            done.append((os.readlink(f"/proc/self/fd/{handle}"), start, stop))
        write_again(handle, start, stop, replaces=replaces)

    monkeypatch.setattr(index_sync, "write_again", note)
    return done


@pytest.mark.parametrize("confirmed", [0, 4, 18, 22, 29])
@pytest.mark.parametrize("full_is_known", [False, True])
def test_a_successor_writes_again_what_the_checkpoint_does_not_vouch_for(
    directory: Path, again: list[tuple[str, int, int]], confirmed: int, full_is_known: bool
) -> None:
    """The kernel tells of a failed sync once. Slots of the file that grows follow from its items,
    and are the reput's meanwhile."""
    full, growing = map(str, index_files(directory))
    before = [path.read_bytes() for path in index_files(directory)]
    known_ms = 19_000 if full_is_known else 0
    sync = IndexSync(directory, SMALL, Checkpoint(0, 0, known_ms, 0, _offset(confirmed)))
    list(sync.sync(EVER))
    first = confirmed + 1 if confirmed else 0
    expected = [
        (full, SMALL.item_at(1 + min(first, 19)), SMALL.item_at(20)),
        (full, 0, SMALL.table_bytes),
    ] * (not full_is_known)
    expected += [(growing, SMALL.item_at(1 + max(first - 19, 0)), SMALL.item_at(12))]
    assert again == [each for each in expected if each[1] < each[2]]
    assert [path.read_bytes() for path in index_files(directory)] == before
    again.clear()
    list(sync.sync(EVER))
    assert again == [], "in doubt is only what a predecessor has left"


def synced_ms(sync: IndexSync, dispatched: int = EVER) -> int:
    """What a whole sync says: the newest time of the files that have become full."""
    steps = sync.sync(dispatched)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return int(end.value)


def test_files_that_have_become_full_are_told_once_by_the_newest_time_in_them(
    directory: Path,
) -> None:
    sync = IndexSync(directory, SMALL, Checkpoint())
    assert synced_ms(sync) == 19_000
    assert synced_ms(sync) == 0, "the other grows"


def test_a_full_file_is_whole_once_its_last_record_is_dispatched(directory: Path) -> None:
    sync = IndexSync(directory, SMALL, Checkpoint())
    last = _offset(18)
    assert [synced_ms(sync, last), synced_ms(sync, last + 1)] == [0, 19_000]


def test_a_round_leaves_no_file_open(directory: Path) -> None:
    sync = IndexSync(directory, SMALL, Checkpoint())
    before = descriptors()
    for _ in range(2):
        assert list(sync.sync(EVER, whole=True)) and descriptors() <= before


@pytest.mark.parametrize("first_seen", ["whole", "cut"])
def test_of_a_file_that_somebody_has_cut_short_what_is_there_is_synced(
    directory: Path, first_seen: str
) -> None:
    """Whoever stores into it dies of that; the flusher comes to an end, and leaves the length."""
    _, growing = index_files(directory)
    header = growing.read_bytes()[: HEADER.size]
    sync = IndexSync(directory, SMALL, Checkpoint())
    if first_seen == "whole":
        growing.write_bytes(header[:36] + (5).to_bytes(4, "big") + growing.read_bytes()[40:])
        list(sync.sync(EVER))
        growing.write_bytes(header + growing.read_bytes()[HEADER.size :])
    os.truncate(growing, SMALL.item_at(7) + 3)
    steps = sync.sync(EVER)
    assert len(list(islice(steps, 1000))) < 1000
    assert growing.stat().st_size == SMALL.item_at(7) + 3


def test_items_that_have_come_since_the_last_sync_are_written_through_once_in_pieces(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing after them: it may be the reput's by the time it is written."""
    monkeypatch.setattr(index_sync, "_PIECE_BYTES", 50)
    _, growing = index_files(directory)
    whole = growing.read_bytes()
    growing.write_bytes(whole[:36] + (5).to_bytes(4, "big") + whole[40:])
    sync = IndexSync(directory, SMALL, Checkpoint())
    list(sync.sync(EVER))
    growing.write_bytes(whole)
    synced: list[tuple[int, int, int]] = []
    pwritev = os.pwritev

    def note(handle: int, pieces: list[bytes], at: int, flags: int) -> int:
        synced.append((at, at + sum(map(len, pieces)), flags))
        return pwritev(handle, pieces, at, flags)

    monkeypatch.setattr(os, "pwritev", note)
    list(sync.sync(EVER))
    start, stop = SMALL.item_at(5), SMALL.item_at(12)
    assert synced == [(at, min(at + 50, stop), os.RWF_DSYNC) for at in range(start, stop, 50)]
    assert growing.read_bytes() == whole
    list(sync.sync(EVER))
    assert len(synced) == 3, "nothing has come meanwhile"


def test_a_file_that_goes_while_it_is_listed_keeps_no_other_from_the_disk(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has expired, or a cut has emptied it."""
    full, growing = index_files(directory)
    sync, opened, synced = IndexSync(directory, SMALL, Checkpoint()), os.open, list[str]()

    def expire(path: Any, *words: Any, **others: Any) -> int:
        full.unlink(missing_ok=True)
        return opened(path, *words, **others)

    monkeypatch.setattr(os, "open", expire)
    fdatasync = os.fdatasync

    def note(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        fdatasync(handle)

    monkeypatch.setattr(os, "fdatasync", note)
    assert synced_ms(sync) == 0 and synced == [str(growing)]


def test_a_link_among_the_files_is_not_followed(directory: Path, tmp_path: Path) -> None:
    """It could lead out of the store, and what is synced is also written to."""
    _, growing = index_files(directory)
    growing.rename(tmp_path / "elsewhere")
    growing.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        list(IndexSync(directory, SMALL, Checkpoint()).sync(EVER))


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files and directories that were synced as a whole."""
    done, calls = list[str](), {"fsync": os.fsync, "fdatasync": os.fdatasync}

    def note(name: str, handle: int) -> None:
        done.append(os.path.basename(os.readlink(f"/proc/self/fd/{handle}")))
        calls[name](handle)

    monkeypatch.setattr(os, "fsync", lambda handle: note("fsync", handle))
    monkeypatch.setattr(os, "fdatasync", lambda handle: note("fdatasync", handle))
    return done


def test_a_file_is_synced_as_a_whole_when_it_is_new_with_its_name_when_it_is_full_and_at_the_end(
    directory: Path, synced: list[str]
) -> None:
    full, growing = (path.name for path in index_files(directory))
    sync = IndexSync(directory, SMALL, Checkpoint())
    list(sync.sync(_offset(18)))
    assert synced == [full, "index", growing, "index"]
    synced.clear()
    list(sync.sync(_offset(18)))
    assert synced == [], "nothing has come"
    list(sync.sync(EVER))
    assert synced == [full], "now all of it is dispatched"
    list(sync.sync(EVER, whole=True))
    assert synced == [full, growing]


def test_what_is_in_doubt_of_a_file_that_grows_is_written_again_at_the_end(
    directory: Path, again: list[tuple[str, int, int]]
) -> None:
    """Nobody stores into its slots then. Of a file that is new since nothing is in doubt."""
    full, growing = index_files(directory)
    raw = growing.read_bytes()
    growing.unlink()
    sync = IndexSync(directory, SMALL, Checkpoint())
    growing.write_bytes(raw)
    list(sync.sync(EVER, whole=True))
    assert {path for path, _, _ in again} == {str(full)}
    again.clear()
    list(IndexSync(directory, SMALL, Checkpoint(0, 0, 19_000, 0)).sync(EVER, whole=True))
    items = SMALL.item_at(1), SMALL.item_at(12)
    assert again == [(str(growing), *items), (str(growing), 0, SMALL.table_bytes)]
    again.clear()
    list(IndexSync(directory, SMALL, Checkpoint(0, 0, 1 << 50, 0)).sync(EVER))
    assert again == [(str(growing), *items)], "a time vouches for files that are full"


def test_an_item_that_the_disk_does_not_take_is_a_failed_flush(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can tell whether the write or the sync has failed, even where there is no room."""
    _, growing = index_files(directory)
    whole = growing.read_bytes()
    growing.write_bytes(whole[:36] + (5).to_bytes(4, "big") + whole[40:])
    sync = IndexSync(directory, SMALL, Checkpoint())
    list(sync.sync(EVER))
    growing.write_bytes(whole)

    def full(*words: Any) -> int:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(FlushFailed, match="no room"):
        list(sync.sync(EVER))
