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


@pytest.mark.parametrize("target", ["a file", "a directory", "nothing"])
def test_a_link_is_listed_and_never_followed(tmp_path: Path, target: str) -> None:
    """What leads out of the store is not looked at, and not hidden."""
    (tmp_path / "a file").touch()
    (tmp_path / "a directory").mkdir()
    directory = tmp_path / "commitlog"
    directory.mkdir()
    link = directory / segment_name(0)
    link.symlink_to(tmp_path / target)
    assert [(each.path, each.fit) for each in listed(directory, SIZE)] == [(link, Fit.NO_FILE)]
    segments, (problem,) = list_segments(directory, "log")
    assert (segments, problem.kind, problem.file) == ([], "stray-file", str(link))
    assert (problem.offset, problem.position) == (0, None)


@pytest.mark.parametrize(
    ("files", "multiple_of", "size", "wrong"),
    [
        ({0: 40, 40: 40}, 20, 40, []),
        ({80: 40, 120: 40}, 20, 0, []),
        ({}, 20, 40, []),
        # the usual length is that of most, or of the first
        ({0: 40, 40: 20}, 20, 0, [(40, "size")]),
        ({0: 20, 40: 40, 80: 40}, 20, 0, [(0, "size")]),
        ({0: 40, 40: 40}, 20, 20, [(0, "size"), (40, "size"), (40, "gap")]),
        ({0: 30, 30: 30}, 20, 0, [(0, "size"), (30, "size")]),
        ({0: 40, 120: 40, 160: 40}, 20, 40, [(120, "gap")]),
        ({10: 40, 50: 40}, 20, 0, [(10, "name"), (50, "name")]),
    ],
)
def test_segments_are_equal_and_side_by_side_and_what_is_not_is_listed_all_the_same(
    tmp_path: Path, files: dict[int, int], multiple_of: int, size: int, wrong: list[tuple[int, str]]
) -> None:
    for base, length in files.items():
        (tmp_path / segment_name(base)).write_bytes(bytes(length))
    (tmp_path / "notes.txt").write_bytes(b"12")
    segments, (stray, *problems) = list_segments(
        tmp_path, "queue", multiple_of=multiple_of, size=size
    )
    assert [(each.base, each.size, each.end) for each in segments] == [
        (base, length, base + length) for base, length in files.items()
    ]
    assert (stray.kind, stray.file) == ("stray-file", str(tmp_path / "notes.txt"))
    assert [(each.file, each.kind) for each in problems] == [
        (str(tmp_path / segment_name(base)), f"queue-segment-{what}") for base, what in wrong
    ]
    assert {(each.offset, each.position) for each in problems} <= {(0, None)}
    in_log = list_segments(tmp_path, "log", multiple_of=multiple_of, size=size)[1][1:]
    assert [(each.position, each.kind) for each in in_log] == [
        (base, f"log-segment-{what}") for base, what in wrong
    ]


def test_a_file_without_a_byte_is_no_segment_and_one_off_the_grid_none_of_the_stores(
    tmp_path: Path,
) -> None:
    (tmp_path / segment_name(0)).touch()
    (tmp_path / segment_name(7)).write_bytes(b"1")
    segments, problems = list_segments(tmp_path, "log", size=SIZE)
    assert segments == []
    assert [each.kind for each in problems] == ["empty-segment", "log-segment-name"]


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
