"""Index files on disk: roll-over, names, and what a writer that was killed leaves to the next."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.chaos.machine.processes import descriptors
from penstock.shared.errors import StoreDamaged
from penstock.shared.formats.index_chains import Entries, link_entries, move_slots
from penstock.shared.formats.index_layout import Geometry, IndexHeader, decode_header
from penstock.shared.index import index_file
from penstock.shared.index.directory import index_files
from penstock.shared.index.index_file import IndexFile, IndexFiles

ST = 1700000001456
TINY = Geometry(5, 8)
Row = tuple[int, int, int]


def _entries(rows: list[Row]) -> Entries:
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    return Entries(*map(np.ascontiguousarray, columns))


def _rows(codes: list[int]) -> list[Row]:
    """A row for each code: a record each 100 bytes and 700 ms, some with two keys."""
    offsets = itertools.accumulate((0 if code % 3 == 0 else 100 for code in codes), initial=0)
    return [(code, offset, ST + 7 * offset) for code, offset in zip(codes, offsets, strict=False)]


def _stored_ms(offset: int) -> int:
    return ST + 7 * offset


@pytest.fixture
def open_files(tmp_path: Path) -> Callable[..., IndexFiles]:
    """Open an index directory below the test's own: open_files("name")."""

    def make(name: str, geometry: Geometry = TINY, now_ms: int = ST) -> IndexFiles:
        (tmp_path / "half-made").mkdir(exist_ok=True)
        return IndexFiles(tmp_path / name, tmp_path / "half-made", geometry, lambda: now_ms)

    return make


def _contents(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in index_files(directory)]


numbers = itertools.count()
codes = st.lists(st.integers(0, 9) | st.just(2**31 - 1), min_size=1, max_size=40)


def test_a_put_fetches_no_slots_but_those_it_changes(
    open_files: Callable[..., IndexFiles],
    tmp_path: Path,
    fetched_alone: Callable[[Path], list[bool]],
) -> None:
    files = open_files("index", Geometry(5000, 8))
    files.put(_entries(_rows([4000])))
    assert fetched_alone(index_files(tmp_path / "index")[0]) == [True]
    files.close()


@given(codes, st.lists(st.integers(1, 11), min_size=40, max_size=40))
def test_any_batches_over_any_restarts_fill_the_same_files(
    open_files: Callable[..., IndexFiles], tmp_path: Path, chosen: list[int], sizes: list[int]
) -> None:
    rows, case = _rows(chosen), next(numbers)
    whole, parts = open_files(f"whole{case}"), open_files(f"parts{case}")
    whole.put(_entries(rows))
    at = 0
    for size in sizes:
        if rows[at : at + size]:
            parts.put(_entries(rows[at : at + size]))
            at += size
            if size % 2:
                parts.close()
                parts = open_files(f"parts{case}")
    whole.close()
    parts.close()
    contents = _contents(tmp_path / f"whole{case}")
    assert contents == _contents(tmp_path / f"parts{case}")
    assert len(contents) == -(-len(rows) // (TINY.items - 1))
    assert {len(raw) for raw in contents} == {TINY.file_bytes}


@given(codes, st.data())
def test_cut_anywhere_and_put_again_is_as_if_nothing_had_happened(
    open_files: Callable[..., IndexFiles], tmp_path: Path, chosen: list[int], data: st.DataObject
) -> None:
    rows, case = _rows(chosen), next(numbers)
    files = open_files(f"cut{case}")
    files.put(_entries(rows))
    before = _contents(tmp_path / f"cut{case}")
    offset = data.draw(st.integers(0, rows[-1][1] + 1))
    files.cut(offset, _stored_ms)
    again = [row for row in rows if row[1] >= offset]
    kept = rows[: len(rows) - len(again)]
    end = kept[-1][1] if kept else None
    assert files.end_offset == end
    if data.draw(st.booleans()):
        files.close()
        files = open_files(f"cut{case}")
        assert files.end_offset == end
    if again:
        files.put(_entries(again))
    files.close()
    assert _contents(tmp_path / f"cut{case}") == before


@given(codes, st.integers(1, 40), st.sampled_from(["items", "slots"]))
def test_a_put_that_was_killed_before_its_header_is_forgotten(
    open_files: Callable[..., IndexFiles], tmp_path: Path, chosen: list[int], done: int, stage: str
) -> None:
    rows, case, roomy = _rows(chosen), next(numbers), Geometry(5, 60)
    while done < len(rows) and rows[done - 1][1] == rows[done][1]:
        done += 1  # a batch holds whole records
    files = open_files(f"whole{case}", roomy)
    files.put(_entries(rows))
    files.close()
    killed = tmp_path / f"killed{case}"
    files = open_files(killed.name, roomy)
    files.put(_entries(rows[:done]))
    files.close()
    if rest := rows[done:]:
        _put_without_header(IndexFile(index_files(killed)[0], roomy, writable=True), rest, stage)
    files = open_files(killed.name, roomy)
    files.cut(rest[0][1] if rest else rows[-1][1] + 1, _stored_ms)
    if rest:
        files.put(_entries(rest))
    files.close()
    assert _contents(killed) == _contents(tmp_path / f"whole{case}")


def _put_without_header(file: IndexFile, rows: list[Row], stage: str) -> None:
    entries, first = _entries(rows), file.header.next_item
    begin_ms = file.header.begin_timestamp_ms
    items, _ = link_entries(file.slots, *entries, first, begin_ms)
    os.pwrite(file.handle, items, file.geometry.item_at(first))
    if stage == "slots":
        move_slots(file.slots, entries.hashes[: len(rows) // 2 + 1], first)
    file.close()


@pytest.mark.parametrize("link", [-7, -(1 << 31), 3])
def test_a_link_that_leads_to_no_older_item_leaves_its_slot_empty_where_it_is_cut(
    open_files: Callable[..., IndexFiles], tmp_path: Path, link: int
) -> None:
    files = open_files("store", Geometry(5, 60))
    files.put(_entries(_rows([0, 5, 10])))  # all in one slot
    files.close()
    (path,) = index_files(tmp_path / "store")
    file = IndexFile(path, Geometry(5, 60), writable=True)
    file.items["previous"][3] = link
    file.slots[1:] = 60, 61, 1 << 30, 0  # no slot can lead there
    file.cut(3, _stored_ms)
    assert file.slots.tolist() == [0] * 5
    file.close()


@given(codes)
def test_slots_are_made_anew_from_the_items(
    open_files: Callable[..., IndexFiles], tmp_path: Path, chosen: list[int]
) -> None:
    case = next(numbers)
    files = open_files(f"again{case}", Geometry(5, 60))
    files.put(_entries(_rows(chosen)))
    files.close()
    (path,) = index_files(tmp_path / f"again{case}")
    before = path.read_bytes()
    file = IndexFile(path, Geometry(5, 60), writable=True)
    file.slots[:] = 77
    assert file.link_again(file.header.next_item) == file.header.slots_in_use
    file.close()
    assert path.read_bytes() == before


@given(
    st.lists(st.integers(1, 9) | st.just(2**31 - 1), min_size=1, max_size=40),
    st.data(),
    st.sampled_from([1, 3, 1 << 18]),
)
def test_a_file_is_made_again_from_the_items_that_are_whole_whatever_slots_and_header_say(
    open_files: Callable[..., IndexFiles],
    tmp_path: Path,
    chosen: list[int],
    data: st.DataObject,
    at_once: int,
) -> None:
    rows, case, roomy = _rows(chosen), next(numbers), Geometry(5, 60)
    offset = data.draw(st.integers(0, rows[-1][1] + 1))
    kept = [row for row in rows if row[1] < offset]
    for name, part in (("harmed", rows), ("model", kept)):
        files = open_files(f"{name}{case}", roomy)
        files.put(_entries(part))
        files.close()
    (path,) = index_files(tmp_path / f"harmed{case}")
    file = IndexFile(path, roomy, writable=True)
    file.slots[:] = data.draw(st.lists(st.integers(-9, 99), min_size=5, max_size=5))
    file.write_header(IndexHeader(ST, 5, 6, 7, data.draw(st.integers(0, 9)), 60))
    has_expired = data.draw(st.booleans())
    with patch.object(index_file, "_PIECE", at_once):
        file.repair(offset, lambda offset: None if has_expired else _stored_ms(offset))
    file.close()
    if kept:
        (expected,) = _contents(tmp_path / f"model{case}")
        header = decode_header(expected)
        if has_expired:  # items have seconds
            end_ms = ST + (kept[-1][2] - ST) // 1000 * 1000
            header = msgspec.structs.replace(header, end_timestamp_ms=end_ms)
        assert path.read_bytes() == header.encode() + expected[40:]
    else:
        assert decode_header(path.read_bytes()) == IndexHeader()


@pytest.mark.parametrize("at_once", [1, 3, 1 << 18])
def test_what_follows_an_item_that_is_not_whole_is_not_believed(
    open_files: Callable[..., IndexFiles], tmp_path: Path, at_once: int
) -> None:
    """However many items are looked at together."""
    files = open_files("index", Geometry(5, 60))
    files.put(_entries([(1, 100 * number, ST) for number in range(1, 21)]))
    files.close()
    (path,) = index_files(tmp_path / "index")
    file = IndexFile(path, Geometry(5, 60), writable=True)
    with patch.object(index_file, "_PIECE", at_once):
        assert file.whole_items(3000) == 21
        file.items["offset"][8] = 50  # as a page that did not reach the disk has it
        assert file.whole_items(3000) == 8
    with patch.object(index_file, "_PIECE", 3):
        file.items[1:4] = 0
        assert file.whole_items(3000) == 1, "a piece that is all zeros ends it"
    file.close()


def test_an_item_whose_hash_or_offset_is_0_counts_and_one_with_both_does_not(
    open_files: Callable[..., IndexFiles], tmp_path: Path
) -> None:
    for hashed, offset, whole in ((0, 100, 2), (7, 0, 2), (0, 0, 1)):
        files = open_files(f"{hashed}-{offset}")
        files.put(_entries([(hashed, offset, ST)]))
        files.close()
        file = IndexFile(index_files(tmp_path / f"{hashed}-{offset}")[0], TINY)
        assert file.whole_items(200) == whole
        file.close()


def test_a_closed_file_is_mapped_no_more(
    open_files: Callable[..., IndexFiles], tmp_path: Path
) -> None:
    """Even while somebody has the object: a deleted file would keep its disk space."""
    files = open_files("index")
    files.put(_entries(_rows([1])))
    files.close()
    (path,) = index_files(tmp_path / "index")
    file = IndexFile(path, TINY)
    assert str(path) in Path("/proc/self/maps").read_text()
    file.close()
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert not len(file.slots)


def test_a_file_that_is_cut_away_is_gone_for_good_before_the_one_before_it_is_filled(
    open_files: Callable[..., IndexFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure would bring it back as the newest."""
    files = open_files("index")
    files.put(_entries(_rows([1] * 20)))
    synced: list[list[str]] = []
    sync = os.fsync

    def note(handle: int) -> None:
        sync(handle)
        if os.readlink(f"/proc/self/fd/{handle}") == str(tmp_path / "index"):
            synced.append([path.name for path in index_files(tmp_path / "index")])

    before = [path.name for path in index_files(tmp_path / "index")]
    monkeypatch.setattr(os, "fsync", note)
    files.cut(100, _stored_ms)
    assert synced == [before[:2], before[:1]]
    files.close()


def test_a_new_file_begins_with_the_times_of_the_one_before_it(
    open_files: Callable[..., IndexFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it has an item: a look-up goes by them, and the store says how new its index is."""
    files = open_files("index")
    files.put(_entries(_rows([1] * (TINY.items - 1))))
    monkeypatch.setattr(IndexFile, "put", _fail)
    with pytest.raises(OSError, match="no space"):
        files.put(_entries([(1, 5000, ST + 35_000)]))
    files.close()
    full, empty = map(decode_header, _contents(tmp_path / "index"))
    assert empty == full.successor() != IndexHeader()


def _fail(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space")


def test_header_and_slots_have_their_place_on_disk_before_they_are_stored_through_the_mapping(
    open_files: Callable[..., IndexFiles], tmp_path: Path
) -> None:
    """A store into a hole is a SIGBUS where the disk is full."""
    wide = Geometry(50_000, 8)
    files = open_files("index", wide)
    files.put(_entries(_rows([1])))
    (path,) = index_files(tmp_path / "index")
    assert path.stat().st_blocks * 512 >= wide.table_bytes
    files.close()


def test_names_are_local_time_and_never_go_back(
    open_files: Callable[..., IndexFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    import time

    time.tzset()
    try:
        files = open_files("index")
        files.put(_entries(_rows([1] * 20)))
        files.close()
        files = open_files("index", now_ms=ST - 60_000)
        files.put(_entries(_rows([1] * 9)))
        files.close()
    finally:
        monkeypatch.undo()
        time.tzset()
    first = 20231115061321456
    assert [path.name for path in index_files(tmp_path / "index")] == [
        str(first + number) for number in range(5)
    ]


def test_what_is_not_an_index_file_is_left_alone(
    open_files: Callable[..., IndexFiles], tmp_path: Path
) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "note.txt").write_text("not ours")
    files = open_files("index")
    files.put(_entries(_rows([1])))
    files.close()
    assert [path.name for path in index_files(tmp_path / "index")] == ["20231114221321456"]


def test_a_file_of_another_geometry_is_refused_by_name(
    open_files: Callable[..., IndexFiles], tmp_path: Path
) -> None:
    files = open_files("index")
    files.put(_entries(_rows([1])))
    files.close()
    before = descriptors()
    with pytest.raises(StoreDamaged, match=r"20231114221321456 has 220 bytes.*rebuild .* --index"):
        open_files("index", Geometry(6, 8))
    (file,) = index_files(tmp_path / "index")
    with pytest.raises(StoreDamaged):
        IndexFile(file, Geometry(6, 8))
    assert descriptors() <= before, "and is not left open"


def test_a_file_is_open_for_looking_only_unless_it_is_to_be_filled(
    open_files: Callable[..., IndexFiles], tmp_path: Path
) -> None:
    files = open_files("index")
    files.put(_entries(_rows([1])))
    files.close()
    (file,) = index_files(tmp_path / "index")
    for writable in (False, True):
        found = IndexFile(file, TINY, writable) if writable else IndexFile(file, TINY)
        assert found.slots.flags.writeable is found.items.flags.writeable is writable
        found.close()


def test_the_time_of_a_record_that_has_expired_is_known_to_the_second(
    open_files: Callable[..., IndexFiles], tmp_path: Path
) -> None:
    files = open_files("index")
    files.put(_entries([(1, 0, ST), (2, 100, ST + 3700), (3, 200, ST + 4700)]))
    files.cut(200, lambda offset: None)
    files.close()
    header = decode_header(_contents(tmp_path / "index")[0])
    assert header == IndexHeader(ST, ST + 3000, 0, 100, 2, 3)


def test_what_is_cleared_after_the_items_is_clear_on_disk(
    open_files: Callable[..., IndexFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = open_files("index")
    files.put(_entries(_rows([1])))
    files.close()
    (path,) = index_files(tmp_path / "index")
    before, synced = path.read_bytes(), list[bytes]()
    file = IndexFile(path, TINY, writable=True)
    file.items["hash"][3] = 9  # of a put that was killed
    monkeypatch.setattr(os, "fdatasync", lambda handle: synced.append(path.read_bytes()))
    file.clear()
    os.utime(path, (0, 0))
    file.clear()
    file.close()
    assert synced == [before] * 2
    assert path.stat().st_mtime > 0, "zeros are written again: their sync may have failed"


def test_where_nothing_is_cut_the_time_stays_to_the_millisecond(
    open_files: Callable[..., IndexFiles], tmp_path: Path
) -> None:
    files = open_files("index")
    files.put(_entries([(1, 0, ST), (2, 100, ST + 3700)]))
    before = _contents(tmp_path / "index")
    files.cut(200, lambda offset: None)
    files.close()
    assert _contents(tmp_path / "index") == before
    assert decode_header(before[0]).end_timestamp_ms == ST + 3700


def test_a_disk_without_room_is_an_error_and_can_be_tried_again(
    open_files: Callable[..., IndexFiles], tmp_path: Path
) -> None:
    """The limit on file sizes stands for the disk."""
    rows = _rows(list(range(20)))
    files = open_files("whole")
    files.put(_entries(rows))
    files.close()
    files = open_files("index")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (TINY.file_bytes - 60, 30):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(OSError, match="too large"):
                files.put(_entries(rows))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    files.close()
    files = open_files("index")
    files.cut(0, _stored_ms)
    files.put(_entries(rows))
    files.close()
    assert _contents(tmp_path / "index") == _contents(tmp_path / "whole")
    assert struct.unpack_from(">i", _contents(tmp_path / "index")[0], 36) == (8,)
