"""How index files are opened, cut away and closed, and what is believed of them piece by piece."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from penstock.chaos.machine.processes import descriptors
from penstock.shared.formats.index_chains import Entries
from penstock.shared.formats.index_layout import Geometry
from penstock.shared.index import index_file
from penstock.shared.index.directory import index_files
from penstock.shared.index.index_file import IndexFile, IndexFiles

ST = 1700000001456
TINY = Geometry(5, 8)
Opener = Callable[..., IndexFiles]


def entries(offsets: list[int]) -> Entries:
    """A key of each record at these log offsets."""
    columns = [offsets, offsets, [ST + offset for offset in offsets]]
    return Entries(*(np.array(each, np.int64) for each in columns))


@pytest.fixture
def opened(tmp_path: Path) -> Opener:
    def make(name: str = "index", geometry: Geometry = TINY) -> IndexFiles:
        (tmp_path / "half-made").mkdir(exist_ok=True)
        return IndexFiles(tmp_path / name, tmp_path / "half-made", geometry, lambda: ST)

    return make


def test_an_index_of_which_all_is_cut_begins_as_a_new_one(opened: Opener, tmp_path: Path) -> None:
    files, others = opened(), opened("other")
    files.put(entries([100, 200]))
    files.cut(0, lambda offset: ST + offset)
    assert files.end_offset is None and index_files(tmp_path / "index") == []
    for each in (files, others):
        each.put(entries([5000]))
        assert each.end_offset == 5000
        each.close()
    made = [
        path.read_bytes() for name in ("index", "other") for path in index_files(tmp_path / name)
    ]
    assert len(made) == 2 and made[0] == made[1]


def test_files_that_are_cut_away_are_closed_and_a_second_close_closes_nothing(
    opened: Opener, tmp_path: Path
) -> None:
    files = opened()
    files.put(entries(list(range(100, 2100, 100))))
    assert len(index_files(tmp_path / "index")) == 3
    before = descriptors(os.getpid())
    files.cut(200, lambda offset: ST + offset)
    assert len(index_files(tmp_path / "index")) == 1
    assert len(descriptors(os.getpid())) == len(before)
    files.close()
    files.close()
    assert len(descriptors(os.getpid())) == len(before) - 1


def test_a_file_that_is_only_looked_at_is_opened_only_to_be_read(
    opened: Opener, tmp_path: Path
) -> None:
    """Its disk, or its owner, may allow no more."""
    files = opened()
    files.put(entries([100]))
    files.close()
    (path,) = index_files(tmp_path / "index")
    for writable, access in ((False, os.O_RDONLY), (True, os.O_RDWR)):
        file = IndexFile(path, TINY, writable=writable)
        assert fcntl.fcntl(file.handle, fcntl.F_GETFL) & os.O_ACCMODE == access
        file.close()


def test_a_new_file_takes_no_more_of_the_disk_than_its_slots_and_items(
    opened: Opener, tmp_path: Path
) -> None:
    wide = Geometry(5, 100_000)
    files = opened(geometry=wide)
    files.put(entries([100]))
    files.close()
    (path,) = index_files(tmp_path / "index")
    assert path.stat().st_size == wide.file_bytes > 10 * path.stat().st_blocks * 512


def test_what_no_header_counts_is_cleared_in_the_newest_file(
    opened: Opener, tmp_path: Path
) -> None:
    files = opened()
    files.clear()
    assert index_files(tmp_path / "index") == [], "there was none, and there is none"
    files.put(entries([100]))
    (path,) = index_files(tmp_path / "index")
    before = path.read_bytes()
    file = IndexFile(path, TINY, writable=True)
    file.items["hash"][3] = 9
    file.close()
    assert path.read_bytes() != before
    files.clear()
    assert path.read_bytes() == before
    files.close()


def test_an_item_before_the_last_one_of_the_piece_before_it_is_not_believed(
    opened: Opener, tmp_path: Path
) -> None:
    files = opened()
    files.put(entries([100, 200, 300]))
    files.close()
    (path,) = index_files(tmp_path / "index")
    file = IndexFile(path, TINY, writable=True)
    file.items["offset"][3] = 150
    for at_once in (1, 2, 3, 4):
        with patch.object(index_file, "_PIECE", at_once):
            assert file.whole_items(3000) == 3
    file.close()


def test_a_page_that_the_disk_has_lost_does_not_end_the_process_that_looks_at_it(
    opened: Opener, tmp_path: Path
) -> None:
    """Here a file that became shorter, of which the missing part cannot be read either."""
    pytest.importorskip("penstock.shared.loops.compiled", reason="was not built")
    wide = Geometry(5, 1000)
    files = opened(geometry=wide)
    files.put(entries([100]))
    files.close()
    (path,) = index_files(tmp_path / "index")
    for writable in (False, True):
        if (child := os.fork()) == 0:
            file = IndexFile(path, wide, writable=writable)
            os.truncate(path, 100)
            os._exit(int(file.items["offset"][999] != -1))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        os.truncate(path, wide.file_bytes)
