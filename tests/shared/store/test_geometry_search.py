"""What the names and lengths of files say about the sizes that they were made with."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.shared.config import Config
from penstock.shared.formats.index_layout import Geometry
from penstock.shared.formats.record import Record
from penstock.shared.formats.record_check import Kind
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.geometry_search import (
    ITEMS,
    LOG,
    QUEUE,
    SLOTS,
    Looked,
    has_files,
    lengths_of,
    look_at_index,
    look_at_log,
    look_at_queues,
    named_to,
    queue_directories,
    segment_files,
)

PAGE = 4096


def _make(directory: Path, files: dict[int, int]) -> None:
    """Files by their bases and lengths, which nobody has written to."""
    directory.mkdir(parents=True)
    for base, length in files.items():
        (directory / segment_name(base)).touch()
        os.truncate(directory / segment_name(base), length)


def _make_index(paths: StorePaths, length: int) -> None:
    """An index file without a key."""
    paths.index.mkdir()
    (path := paths.index / "20240101000000000").touch()
    os.truncate(path, length)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({0: 0}, None),
        ({0: PAGE}, PAGE),
        ({5 * PAGE: PAGE}, PAGE),
        ({0: PAGE + 1}, 0),
        ({0: PAGE, PAGE: PAGE}, PAGE),
        ({0: PAGE, PAGE: 0}, PAGE),
        ({0: PAGE, PAGE: 3 * PAGE}, PAGE),
        # one was cut, and is the last one or another
        ({0: 2 * PAGE, 2 * PAGE: 2 * PAGE, 4 * PAGE: PAGE}, 2 * PAGE),
        ({0: PAGE, 2 * PAGE: 2 * PAGE}, 2 * PAGE),
        # one is missing
        ({0: PAGE, PAGE: PAGE, 3 * PAGE: PAGE}, PAGE),
        # half of the names must agree
        ({0: 2 * PAGE, PAGE: 2 * PAGE}, 2 * PAGE),
        ({0: 2 * PAGE, PAGE: 2 * PAGE, 3 * PAGE: 2 * PAGE}, 0),
        # as many votes for one length as for another
        ({0: PAGE, 7 * PAGE: 2 * PAGE}, 0),
    ],
)
def test_a_length_counts_where_names_and_lengths_agree_on_it(
    tmp_path: Path, files: dict[int, int], expected: int | None
) -> None:
    paths = StorePaths(tmp_path)
    _make(paths.commit_log, files)
    found = look_at_log(paths)
    assert (None if found is None else found.value) == expected
    if found is not None:
        assert bool(found.why) == (not expected)
        for length in {length for length in files.values() if length and not expected}:
            assert str(length) in found.why
    assert has_files(paths, LOG) == any(files.values())
    assert lengths_of([paths.commit_log]).total() == len(files)


def test_queues_vote_together_in_lengths_of_whole_entries(tmp_path: Path) -> None:
    paths = StorePaths(tmp_path)
    assert (look_at_queues(paths), has_files(paths, QUEUE)) == (None, False)
    _make(paths.queue("orders", 0), {0: 60, 60: 60})
    _make(paths.queue("orders", 10), {0: 100})
    _make(paths.consume_queue / "orders" / "x", {0: 100, 100: 100, 200: 100})
    (paths.consume_queue / "orders" / "11").touch()
    (paths.queue("orders", 0) / "lock").touch()
    (paths.queue("orders", 0) / segment_name(120)).mkdir()
    assert {path.name for path in queue_directories(paths)} == {"0", "10"}
    assert len(segment_files(paths.queue("orders", 0))) == 2
    assert segment_files(tmp_path / "none") == []
    assert look_at_queues(paths) == Looked(60) and has_files(paths, QUEUE)
    _make(paths.queue("others", 0), {0: 61, 61: 61, 122: 61, 183: 61})
    found = look_at_queues(paths)
    assert found is not None and found.value == 0, "no whole entries"


def test_the_newest_record_that_a_queue_names_is_told(
    store_builder: Callable[..., Path], make_record: Callable[..., Record]
) -> None:
    records = [make_record(queue_id=number % 2, body=bytes(300)) for number in range(15)]
    paths = StorePaths(store_builder(records))
    with StoreDirectory(paths.root) as store:
        end = max(at + size for at, kind, size, *_ in store.scan_log() if kind is Kind.RECORD)
    assert named_to(paths) == end
    (last,) = [path for path in segment_files(paths.commit_log) if path.name == segment_name(PAGE)]
    assert PAGE < end < 2 * PAGE
    assert look_at_log(paths) == Looked(PAGE)
    last.rename(last.with_name("x"))
    found = look_at_log(paths)
    assert found is not None and (found.value, "ends before" in found.why) == (0, True)
    assert named_to(StorePaths(paths.root / "nowhere")) == 0


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, Config()),
        ({SLOTS: 30}, Geometry(30, 13)),
        ({ITEMS: 13}, Geometry(30, 13)),
        ({ITEMS: 14}, Geometry(25, 14)),
        ({SLOTS: 31}, None),
        ({ITEMS: 1}, None),
        ({SLOTS: 30, ITEMS: 99}, Geometry(30, 13)),
    ],
)
def test_of_an_index_without_a_key_what_somebody_says_counts_where_it_fits(
    tmp_path: Path, asked: dict[str, int], expected: Geometry | Config | None
) -> None:
    paths = StorePaths(tmp_path)
    assert look_at_index(paths, asked) == {} and not has_files(paths, ITEMS)
    if isinstance(expected, Config):
        expected = Geometry(expected.max_hash_slot_num, expected.max_index_num)
        length = expected.file_bytes
    else:
        length = Geometry(30, 13).file_bytes
    _make_index(paths, length)
    found = look_at_index(paths, asked)
    assert has_files(paths, SLOTS)
    if expected is None:
        assert (found[SLOTS].value, found[ITEMS].value) == (0, 0) and found[SLOTS].why
    else:
        assert found == {SLOTS: Looked(expected.slots), ITEMS: Looked(expected.items)}


def test_what_somebody_says_goes_before_the_default_of_the_same_length(tmp_path: Path) -> None:
    paths, default = StorePaths(tmp_path), Config()
    slots, items = default.max_hash_slot_num + 5, default.max_index_num - 1
    _make_index(paths, Geometry(slots, items).file_bytes)
    for asked in ({SLOTS: slots}, {ITEMS: items}):
        assert look_at_index(paths, asked) == {SLOTS: Looked(slots), ITEMS: Looked(items)}
