"""What is in a directory of segments: one rule, as a start, a checker and a repair apply it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.errors import StoreDamaged
from penstock.shared.files.segments import (
    Fit,
    list_segments,
    listed,
    missing_between,
    segment_bases,
)
from penstock.shared.layout import segment_name

SIZE = 4096


def make_segments(directory: Path, count: int, first: int = 0) -> bytes:
    """Segments whose bytes tell where they are; all bytes from 0 on."""
    raw = bytes(first * SIZE)
    for number in range(first, first + count):
        content = bytes((number * 7 + i) % 251 for i in range(SIZE))
        (directory / segment_name(number * SIZE)).write_bytes(content)
        raw += content
    return raw


@pytest.mark.parametrize(("first", "count"), [(0, 0), (0, 3), (7, 2)])
def test_the_segments_of_a_directory_are_listed_in_order(
    tmp_path: Path, first: int, count: int
) -> None:
    make_segments(tmp_path, count, first)
    (tmp_path / "directory").mkdir()
    assert segment_bases(tmp_path, SIZE) == [(first + i) * SIZE for i in range(count)]


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("notes.txt", 3),
        ("0" * 19, SIZE),
        ("0" * 21, SIZE),
        ("٠" * 20, SIZE),
        (segment_name(3 * SIZE) + ".bak", SIZE),
        (segment_name(3 * SIZE + 1), SIZE),
        (segment_name(3 * SIZE), SIZE - 1),
        (segment_name(3 * SIZE), SIZE + 1),
        (segment_name(3 * SIZE), 0),
        (segment_name(4 * SIZE), SIZE),
    ],
)
def test_what_is_no_segment_is_named_and_left_alone(tmp_path: Path, name: str, length: int) -> None:
    make_segments(tmp_path, 3)
    (tmp_path / name).write_bytes(bytes(length))
    before = sorted((path.name, path.stat().st_size) for path in tmp_path.iterdir())
    with pytest.raises(StoreDamaged) as caught:
        segment_bases(tmp_path, SIZE)
    shown = segment_name(3 * SIZE) if name == segment_name(4 * SIZE) else name
    assert shown in str(caught.value) and caught.value.hint
    assert sorted((path.name, path.stat().st_size) for path in tmp_path.iterdir()) == before


def test_a_link_is_no_segment(tmp_path: Path) -> None:
    make_segments(tmp_path, 1)
    (tmp_path / segment_name(SIZE)).symlink_to(tmp_path / segment_name(0))
    with pytest.raises(StoreDamaged):
        segment_bases(tmp_path, SIZE)


@pytest.mark.parametrize(
    ("name", "fit"),
    [
        (segment_name(SIZE), Fit.SEGMENT),
        (segment_name(SIZE + 1), Fit.OFF_GRID),
        ("notes.txt", Fit.NO_NAME),
    ],
)
def test_each_file_is_listed_with_how_it_fits(tmp_path: Path, name: str, fit: Fit) -> None:
    (tmp_path / name).write_bytes(b"12")
    (tmp_path / "directory").mkdir()
    assert [(each.path, each.size, each.fit) for each in listed(tmp_path, SIZE)] == [
        (tmp_path / name, 2, fit)
    ]


def test_where_nobody_knows_the_size_any_offset_is_a_name(tmp_path: Path) -> None:
    (tmp_path / segment_name(7)).touch()
    assert [(each.base, each.fit) for each in listed(tmp_path, 0)] == [(7, Fit.SEGMENT)]


def test_a_directory_that_is_missing_has_no_segments_for_a_checker_and_stops_a_start(
    tmp_path: Path,
) -> None:
    assert list_segments(tmp_path / "none", "log") == ([], [])
    with pytest.raises(FileNotFoundError):
        segment_bases(tmp_path / "none", SIZE)


def test_a_last_segment_without_a_byte_is_let_pass_where_that_is_allowed(tmp_path: Path) -> None:
    make_segments(tmp_path, 2)
    (tmp_path / segment_name(2 * SIZE)).touch()
    assert segment_bases(tmp_path, SIZE, empty_last=True) == [0, SIZE]
    (tmp_path / segment_name(SIZE)).write_bytes(b"")
    with pytest.raises(StoreDamaged):
        segment_bases(tmp_path, SIZE, empty_last=True)


@given(st.sets(st.integers(0, 30)))
def test_what_is_missing_is_all_that_lies_between_and_is_not_there(numbers: set[int]) -> None:
    bases = [number * SIZE for number in sorted(numbers)]
    span = range(min(numbers, default=0), max(numbers, default=0))
    missing = [number * SIZE for number in span if number not in numbers]
    assert list(missing_between(bases, SIZE)) == missing
