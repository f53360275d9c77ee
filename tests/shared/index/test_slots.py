"""The number of an index file's slots is believed only where header, slots and items agree."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from penstock.chaos.machine.processes import descriptors
from penstock.shared.formats.index_chains import Entries
from penstock.shared.formats.index_layout import Geometry
from penstock.shared.index import slots
from penstock.shared.index.directory import index_files
from penstock.shared.index.index_file import IndexFiles
from penstock.shared.index.slots import find_geometry

ST = 1700000001456
SIZE = Geometry(50, 40)
# of one length with it
OTHERS = [Geometry(SIZE.slots + 5 * by, SIZE.items - by) for by in (-2, -1, 1, 2)]
Bender = Callable[[bytearray], None]


def word(raw: bytearray, at: int, to: int) -> None:
    raw[at : at + 4] = to.to_bytes(4, "big", signed=True)


def used(raw: bytearray, more: int) -> None:
    word(raw, 32, int.from_bytes(raw[32:36], "big") + more)


def slot_of(raw: bytearray, item: int) -> int:
    at = SIZE.item_at(item)
    return 40 + 4 * (int.from_bytes(raw[at : at + 4], "big") % SIZE.slots)


def filled(root: Path, size: Geometry, hashes: list[int]) -> Path:
    """A file with a key of each of these hashes."""
    (root / "half-made").mkdir(parents=True)
    files = IndexFiles(root / "index", root / "half-made", size, lambda: ST)
    numbers = range(len(hashes))
    columns = hashes, [4096 + 100 * each for each in numbers], [ST + each for each in numbers]
    files.put(Entries(*(np.array(each, np.int64) for each in columns)))
    files.close()
    (path,) = index_files(root / "index")
    return path


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A file of 30 keys in 25 slots."""
    return filled(tmp_path / "of", SIZE, [7 * (each % 25) + 50 * each for each in range(30)])


def test_a_whole_file_tells_it_with_and_without_guesses(whole: Path) -> None:
    before = descriptors(os.getpid())
    assert find_geometry([whole], []) == SIZE
    assert find_geometry([whole], [*OTHERS, SIZE]) == SIZE
    assert find_geometry([whole], OTHERS) == SIZE
    assert len(descriptors(os.getpid())) == len(before), "no file stays open"


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7])
def test_a_file_of_few_slots_tells_it_as_well(tmp_path: Path, count: int) -> None:
    size = Geometry(count, 40)
    # the newest key may have the hash 0
    for last in (0, 1, (1 << 31) - 1):
        hashes = [*range(1, 30), last]
        assert find_geometry([filled(tmp_path / str(last), size, hashes)], []) == size


def test_only_the_newest_items_are_compared_with_the_slots(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file of millions it would take long."""
    monkeypatch.setattr(slots, "_LOOKED_AT", 4)
    for number, found in ((26, SIZE), (27, None)):
        raw = bytearray(whole.read_bytes())
        word(raw, SIZE.item_at(number), -1)
        bent = whole.with_name("20240101000000000")
        bent.write_bytes(raw)
        assert find_geometry([bent], []) == found


def test_a_link_to_a_file_is_not_followed(whole: Path, tmp_path: Path) -> None:
    link = tmp_path / "20240101000000000"
    link.symlink_to(whole)
    with pytest.raises(OSError, match="symbolic"):
        find_geometry([link], [SIZE])


@pytest.mark.parametrize(
    "bend",
    [
        lambda raw: used(raw, 1),
        lambda raw: used(raw, -1),
        lambda raw: word(raw, slot_of(raw, 29), 28),
        lambda raw: word(raw, slot_of(raw, 10), 31),
        lambda raw: word(raw, SIZE.item_at(20), -1),
        lambda raw: word(raw, SIZE.item_at(1), -1),
        lambda raw: word(raw, SIZE.item_at(30), -1),
        lambda raw: word(raw, SIZE.item_at(0), 1),
        lambda raw: word(raw, SIZE.item_at(0) + 16, 1),
        lambda raw: word(raw, SIZE.item_at(1) + 8, 4000),
        lambda raw: word(raw, SIZE.item_at(1) + 4, 1),
        lambda raw: word(raw, SIZE.item_at(1) + 16, 5),
        lambda raw: word(raw, SIZE.item_at(30) + 8, 9000),
        lambda raw: word(raw, SIZE.item_at(30) + 4, 1),
        lambda raw: word(raw, 16, -1),
        lambda raw: word(raw, 24, -1),
        lambda raw: word(raw, 36, 30),
        lambda raw: word(raw, 36, 41),
        lambda raw: word(raw, 36, 42),
    ],
)
def test_a_file_of_which_one_word_is_another_does_not_tell_it(whole: Path, bend: Bender) -> None:
    raw = bytearray(whole.read_bytes())
    bend(raw)
    whole.write_bytes(raw)
    assert find_geometry([whole], []) is None
    assert find_geometry([whole], OTHERS) is None


def test_a_guess_that_fits_is_taken_where_a_search_could_not_tell(tmp_path: Path) -> None:
    """A key of hash 0 at the log's begin fits a row further on, too."""
    raw = bytearray(SIZE.file_bytes)
    word(raw, 32, 1)
    word(raw, 36, 2)
    word(raw, 40, 1)
    path = tmp_path / "20240101000000000"
    path.write_bytes(raw)
    assert find_geometry([path], []) is None
    for guess in (SIZE, *OTHERS):
        assert find_geometry([path], [guess]) == guess


def test_a_file_without_room_for_a_slot_is_one_without_items(tmp_path: Path) -> None:
    path = tmp_path / "20240101000000000"
    for size in (0, 1, 39, 40, 43):
        path.write_bytes(b"\x01" * size)
        assert find_geometry([path], []) is None
        assert find_geometry([path], [SIZE]) == SIZE
