"""Mapped segments: offsets go to the right file, and a directory that is none is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.errors import StoreDamaged
from penstock.shared.layout import segment_name
from penstock.shared.mapped_file_queue import MappedFile, MappedFileQueue, segment_bases

SIZE = 4096


def make_segments(directory: Path, count: int, first: int = 0) -> bytes:
    """Segments whose bytes tell where they are; all bytes from 0 on."""
    raw = bytes(first * SIZE)
    for number in range(first, first + count):
        content = bytes((number * 7 + i) % 251 for i in range(SIZE))
        (directory / segment_name(number * SIZE)).write_bytes(content)
        raw += content
    return raw


@given(st.lists(st.tuples(st.integers(0, 5 * SIZE - 1), st.integers(0, 2 * SIZE)), max_size=20))
def test_a_view_holds_the_bytes_of_its_offsets_up_to_the_segments_end(
    tmp_path_factory: pytest.TempPathFactory, looks: list[tuple[int, int]]
) -> None:
    directory = tmp_path_factory.mktemp("segments")
    raw = make_segments(directory, 5)
    queue = MappedFileQueue(directory, SIZE, keep=2)
    for position, length in looks:
        end = position - position % SIZE + SIZE
        assert (
            bytes(queue.view(position, position + length))
            == raw[position : min(position + length, end)]
        )
        assert queue.segment(position).base == position - position % SIZE
    queue.close()


def test_a_view_outlives_that_its_segment_is_put_aside(tmp_path: Path) -> None:
    raw = make_segments(tmp_path, 4)
    queue = MappedFileQueue(tmp_path, SIZE, keep=1)
    views = [queue.view(number * SIZE, len(raw)) for number in range(4)]
    queue.close()
    assert b"".join(views) == raw


def test_no_more_files_stay_open_than_are_kept(tmp_path: Path) -> None:
    make_segments(tmp_path, 6)
    queue = MappedFileQueue(tmp_path, SIZE, keep=3)
    before = len(os.listdir("/proc/self/fd"))
    for number in (0, 1, 2, 3, 4, 5, 0, 5):
        queue.segment(number * SIZE)
        assert len(os.listdir("/proc/self/fd")) - before <= 2 * 3  # mmap keeps one of its own
    kept = queue.segment(5 * SIZE)
    queue.segment(2 * SIZE)
    assert queue.segment(5 * SIZE) is kept, "the latest used stay"
    del kept
    queue.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_segment_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    make_segments(tmp_path, 1)
    queue = MappedFileQueue(tmp_path, SIZE, writable=True)
    with pytest.raises(FileNotFoundError):
        queue.view(SIZE, SIZE + 1)
    assert not queue.path(SIZE + 5).exists()
    assert queue.path(SIZE + 5).name == segment_name(SIZE)


def test_only_a_writable_queue_can_be_written(tmp_path: Path) -> None:
    raw = make_segments(tmp_path, 1)
    reading, writing = MappedFileQueue(tmp_path, SIZE), MappedFileQueue(tmp_path, SIZE, True)
    with pytest.raises(TypeError):
        reading.view(0, 3)[:] = b"abc"
    writing.view(4, 7)[:] = b"abc"
    assert bytes(reading.view(0, 9)) == raw[:4] + b"abc" + raw[7:9]
    reading.close()
    writing.close()


def test_a_file_of_another_length_is_not_mapped(tmp_path: Path) -> None:
    file = tmp_path / segment_name(0)
    file.write_bytes(bytes(SIZE - 1))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StoreDamaged, match=f"{SIZE - 1}"):
        MappedFile(file, 0, SIZE, writable=False)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_link_in_a_segments_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(bytes(SIZE))
    (tmp_path / segment_name(0)).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        MappedFileQueue(tmp_path, SIZE).view(0, 1)


# --- what is in a directory ---


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
