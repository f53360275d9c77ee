"""Which records a file of the index has, and which have to be looked at: exactly the candidates,
and those that the file has not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.formats.index_chains import Entries
from penstock.shared.formats.index_layout import Geometry
from penstock.shared.index.directory import index_files
from penstock.shared.index.index_file import IndexFile, IndexFiles
from penstock.shared.index.indexed_records import IndexedRecords, indexed_records

OFFSETS = st.lists(st.integers(0, 20), max_size=12)


@given(OFFSETS, st.sets(st.integers(0, 20)), OFFSETS)
def test_a_record_is_passed_over_where_the_file_has_it_under_other_keys_alone(
    offsets: list[int], chosen: set[int], records: list[int]
) -> None:
    candidates = sorted(chosen & {*offsets})
    found = IndexedRecords(
        np.array(sorted(offsets), np.int64), np.array(candidates, np.int64)
    ).may_match(np.array(records, np.int64))
    assert found.tolist() == [each not in offsets or each in candidates for each in records]


ST = 1_700_000_001_456
GEOMETRY = Geometry(5, 40)
# the log offset and the hash of each item: two records have two keys
ITEMS = [(100, 1), (200, 2), (200, 3), (300, 1), (400, 2), (500, 1), (500, 2), (600, 3), (700, 1)]


@pytest.fixture
def file(tmp_path: Path) -> IndexFile:
    (tmp_path / "half-made").mkdir()
    files = IndexFiles(tmp_path / "index", tmp_path / "half-made", GEOMETRY, lambda: ST)
    offsets, hashes = np.array(ITEMS, np.int64).T
    files.put(Entries(hashes.copy(), offsets.copy(), offsets + ST))
    files.close()
    return IndexFile(index_files(tmp_path / "index")[0], GEOMETRY, writable=True)


def between_the_ends(items: list[tuple[int, int]], wanted: int) -> tuple[list[int], list[int]]:
    """What is to be found of these items: the first and the last record are not spoken of."""
    inner = [(at, code) for at, code in items if items[0][0] < at < items[-1][0]]
    return [at for at, _ in inner], sorted({at for at, code in inner if code == wanted})


@pytest.mark.parametrize("log_end", [50, *range(100, 801, 50)])
@pytest.mark.parametrize("wanted", [1, 2, 4])
def test_of_a_record_past_the_log_s_end_a_file_says_nothing(
    file: IndexFile, log_end: int, wanted: int
) -> None:
    found = indexed_records(file, np.array([wanted], np.int64), log_end)
    below = [each for each in ITEMS if each[0] < log_end]
    expected = between_the_ends(below, wanted) if below else ([], [])
    assert (found.offsets.tolist(), found.candidates.tolist()) == expected


@pytest.mark.parametrize("counted", range(1, len(ITEMS) + 1))
def test_an_item_that_its_header_does_not_count_yet_is_none(file: IndexFile, counted: int) -> None:
    file.write_header(msgspec.structs.replace(file.header, next_item=counted + 1))
    found = indexed_records(file, np.array([2], np.int64), 1000)
    expected = between_the_ends(ITEMS[:counted], 2)
    assert (found.offsets.tolist(), found.candidates.tolist()) == expected


def test_a_file_whose_first_page_of_items_was_torn_off_says_nothing(file: IndexFile) -> None:
    file.write_header(msgspec.structs.replace(file.header, begin_offset=99))
    found = indexed_records(file, np.array([2], np.int64), 1000)
    assert not len(found.offsets) and not len(found.candidates)
