"""An area of mapped pieces: each shows its file, at its place, and is replaced in one step."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.shared.files.mapped_area import MappedArea, most_pieces

PAGE = mmap.PAGESIZE


def mapped(area: MappedArea, place: int, file: Path, at: int = 0) -> None:
    handle = os.open(file, os.O_RDWR)
    try:
        area.map(place, handle, at)
    finally:
        os.close(handle)


def test_what_lies_around_a_piece_in_its_file_is_not_fetched_with_it(
    tmp_path: Path, fetched_alone: Callable[[Path], list[bool]]
) -> None:
    (tmp_path / "file").write_bytes(bytes(8 * PAGE))
    area = MappedArea(2, PAGE)
    mapped(area, 1, tmp_path / "file", 3 * PAGE)
    assert fetched_alone(tmp_path / "file") == [True]
    area.close()


def test_pieces_of_files_lie_side_by_side_and_are_written_through(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "ab"]
    for number, file in enumerate(files):
        file.write_bytes(bytes([65 + number]) * 3 * PAGE)
    area = MappedArea(3, PAGE)
    mapped(area, 2, files[0])
    mapped(area, 1, files[1], 2 * PAGE)
    assert bytes(area.view[2 * PAGE - 2 : 2 * PAGE + 2]) == b"BBAA"
    area.view[2 * PAGE - 1 : 2 * PAGE + 1] = b"ba"
    assert files[0].read_bytes()[:2] == b"aA" and files[1].read_bytes()[-2:] == b"Bb"
    mapped(area, 2, files[1])
    assert bytes(area.view[2 * PAGE : 2 * PAGE + 2]) == b"BB"
    area.view[2 * PAGE] = 99
    area.release_pages()
    assert area.view[2 * PAGE] == 99
    assert str(tmp_path) in Path("/proc/self/maps").read_text()
    area.close()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    with pytest.raises(ValueError, match="released"):
        len(area.view)
    assert files[0].read_bytes()[:2] == b"aA" and files[1].read_bytes()[:2] == b"cB"


def test_what_cannot_be_mapped_is_an_error_and_leaves_other_places_as_they_were(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"a" * PAGE)
    area = MappedArea(2, PAGE)
    mapped(area, 0, file)
    handle = os.open(file, os.O_RDONLY)
    with pytest.raises(OSError) as caught:
        area.map(1, handle, 0)
    os.close(handle)
    assert caught.value.errno == errno.EACCES
    with pytest.raises(OSError) as caught:
        area.map(1, handle, 0)
    assert caught.value.errno in (errno.EBADF, errno.ENODEV)
    assert bytes(area.view[:2]) == b"aa"
    area.close()


def test_a_quarter_of_the_kernels_mappings_is_left_for_all_else() -> None:
    limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    assert most_pieces() == limit - -(-limit // 4)
