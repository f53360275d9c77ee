"""An index that is made from the log: every key once, in the log's order, and on disk on return."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.shared.formats.index_layout import HEADER, ITEM, SLOT_BYTES, Geometry
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record
from penstock.shared.formats.record_check import Kind
from penstock.shared.index.directory import index_files
from penstock.shared.index.index_file import IndexFile, IndexFiles
from penstock.shared.recovery import build_index
from penstock.shared.recovery.build_index import index_entries, index_log, rebuild_index
from penstock.shared.store.directory import StoreDirectory

COUNT = 23
GEOMETRY = Geometry(5, 12)  # eleven keys a file, as item 0 is none


@pytest.fixture
def root(store_builder: Callable[..., Path], make_record: Callable[..., Record]) -> Path:
    """A log in several segments, of records with a key each, but for one without."""
    keys = [encode_properties({"KEYS": f"k{number}"}) for number in range(COUNT)]
    records = [make_record(body=bytes(400), properties=each) for each in keys]
    return store_builder([*records[:7], make_record(), *records[7:]])


@pytest.fixture
def starts(root: Path) -> list[int]:
    """Where the records with a key begin."""
    with StoreDirectory(root) as store:
        found = [at for at, kind, *_ in store.scan_log() if kind is Kind.RECORD]
    return found[:7] + found[8:]


def _offsets(directory: Path) -> list[int]:
    """The log offsets in the files' items, in their order."""
    found = []
    for path in index_files(directory):
        file = IndexFile(path, GEOMETRY)
        count = file.header.next_item
        file.close()
        raw = path.read_bytes()[HEADER.size + SLOT_BYTES * GEOMETRY.slots :]
        found += [ITEM.unpack_from(raw, number * ITEM.size)[1] for number in range(1, count)]
    return found


@pytest.mark.parametrize("at_once", [1, 2, 7, 1 << 16])
def test_an_index_made_anew_has_every_key_and_is_on_disk(
    root: Path, starts: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(build_index, "_BATCH_KEYS", at_once)
    directory, staging = tmp_path / "made", tmp_path / "staging"
    for each in (directory, staging):
        each.mkdir()
    told, synced = [], list[str]()
    for call in ("fsync", "fdatasync"):
        monkeypatch.setattr(
            os, call, lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        )
    with StoreDirectory(root) as store:
        made = rebuild_index(
            store, directory, staging, GEOMETRY, lambda: 5, lambda *each: told.append(each)
        )
        total = store.files_end
    assert made == (3, COUNT)
    assert _offsets(directory) == starts
    done = [*starts[at_once - 1 :: at_once], *starts[-1:] * (COUNT % at_once > 0)]
    assert told == [(each, total) for each in done]
    assert synced[-1] == str(directory)
    assert {str(path) for path in index_files(directory)} <= set(synced)


@pytest.mark.parametrize(("first", "last"), [(0, None), (0, 5), (5, 9), (22, None), (3, 3)])
def test_a_part_of_the_log_is_indexed_up_to_where_the_next_one_begins(
    root: Path, starts: list[int], tmp_path: Path, first: int, last: int | None
) -> None:
    directory, staging = tmp_path / "made", tmp_path / "staging"
    for each in (directory, staging):
        each.mkdir()
    files, told = IndexFiles(directory, staging, GEOMETRY, lambda: 5), list[tuple[int, int]]()
    with StoreDirectory(root) as store:
        stop = None if last is None else starts[last]
        count = index_log(store, files, starts[first], stop, lambda *each: told.append(each))
        end = store.files_end if stop is None else stop
        single = [each for each in index_entries(store, starts[first], stop)]
    files.close()
    expected = starts[first:last]
    assert (count, _offsets(directory)) == (len(expected), expected)
    assert [int(at) for each in single for at in each.offsets] == expected
    assert told == [(each - starts[first], end - starts[first]) for each in expected[-1:]]
