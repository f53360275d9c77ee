"""Files with sectors that a real disk cannot read: what is left, and how they are mended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.chaos.machine.bad_disk import Lost, bad_disk, lacks
from penstock.shared.files.bad_sectors import FILL, read_at, read_file, read_into, unreadable_pages
from penstock.shared.files.durable import replace_lost, write_again, zero_from
from penstock.shared.files.file_cache import FileCache
from penstock.shared.layout import PAGE_BYTES

pytestmark = pytest.mark.skipif(bool(lacks()), reason=f"for want of {lacks()}")

WHOLE = bytes(range(256)) * 400  # 25 pages
# kernels read several pages at once, and may lose them together
LOST = range(8 * PAGE_BYTES, 9 * PAGE_BYTES)
AROUND = range(0, 24 * PAGE_BYTES)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("disk")
    (place / "files").mkdir()
    (place / "files" / "some").write_bytes(WHOLE)
    with bad_disk(place, place / "files", [Lost(Path("some"), 8, 9)]) as files:
        handle = os.open(files / "some", os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
        with pytest.raises(OSError, match="Input/output error"):
            os.pread(handle, 1, LOST.start)
        os.close(handle)
        yield files / "some"


def _is_rest(raw: bytes) -> bool:
    """Whether what the disk can read is right, and the lost page is as it is said to be."""
    assert len(raw) == len(WHOLE)
    differing = {at for at in range(len(raw)) if raw[at] != WHOLE[at]}
    return (
        set(raw[LOST.start : LOST.stop]) == {FILL}
        and {raw[at] for at in differing} == {FILL}
        and differing <= set(AROUND)
    )


def test_a_file_is_read_without_the_sectors_that_are_lost(file: Path) -> None:
    assert _is_rest(read_file(file))


def test_a_read_at_an_offset_goes_on_behind_what_is_lost_and_ends_with_the_file(file: Path) -> None:
    handle = os.open(file, os.O_RDONLY)
    try:
        assert _is_rest(read_at(handle, len(WHOLE) + 10, 0))
        assert read_at(handle, 7, LOST.start + 3) == bytes([FILL]) * 7
        target = bytearray(len(WHOLE) + 10)
        assert read_into(handle, memoryview(target), 0) == len(WHOLE)
        assert _is_rest(bytes(target[: len(WHOLE)])) and not any(target[len(WHOLE) :])
    finally:
        os.close(handle)


def test_what_reads_a_store_reads_on(file: Path) -> None:
    files = FileCache()
    assert _is_rest(files.read(file, 0, len(WHOLE)))
    assert files.bytes_read == len(WHOLE)
    files.close()


def test_what_is_lost_is_told_of_once_and_counted_each_time(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        before = unreadable_pages()
        lost = read_file(file).count(bytes([FILL]) * PAGE_BYTES)
        assert unreadable_pages() - before >= lost > 0
    # perhaps by an earlier test
    assert len(caplog.records) <= 1


def test_an_error_that_is_no_lost_sector_is_raised(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none")
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(IsADirectoryError):
            read_at(handle, 1, 0)
        with pytest.raises(IsADirectoryError):
            read_into(handle, memoryview(bytearray(1)), 0)
    finally:
        os.close(handle)


def test_a_lost_page_is_written_in_part_once_it_was_replaced_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    for name in ("repaired", "zeroed", "short", "again"):
        (tmp_path / "files" / name).write_bytes(WHOLE[: 4 * PAGE_BYTES - 100 * (name == "short")])
    lost = [Lost(Path("repaired"), 1, 2), Lost(Path("zeroed"), 1, 2), Lost(Path("short"), 3, 4)]
    lost.append(Lost(Path("again"), 2, 3))
    # in the order of the disk, which a write makes long enough for all that comes before it
    with bad_disk(tmp_path, tmp_path / "files", lost) as files:
        handle = os.open(files / "repaired", os.O_RDWR)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
        with pytest.raises(OSError, match="Input/output error"):
            os.pwrite(handle, b"whole", PAGE_BYTES + 100)
        rest = WHOLE[2 * PAGE_BYTES : 3 * PAGE_BYTES + 3]
        lost_part = bytes([FILL]) * (PAGE_BYTES - 3)
        assert read_at(handle, 2 * PAGE_BYTES, PAGE_BYTES + 3) == lost_part + rest
        replace_lost(handle, PAGE_BYTES + 100, PAGE_BYTES + 105)
        os.pwrite(handle, b"whole", PAGE_BYTES + 100)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(handle, 7, PAGE_BYTES + 99) == b"\xffwhole\xff"
        assert os.pread(handle, PAGE_BYTES, 0) == WHOLE[:PAGE_BYTES]
        os.close(handle)
        handle = os.open(files / "zeroed", os.O_RDWR)
        assert zero_from(handle, PAGE_BYTES, 4 * PAGE_BYTES) > 0
        assert os.pread(handle, 4 * PAGE_BYTES, 0).rstrip(b"\0") == WHOLE[:PAGE_BYTES].rstrip(b"\0")
        os.close(handle)
        handle = os.open(files / "short", os.O_RDWR)
        replace_lost(handle, 0, 4 * PAGE_BYTES)
        assert os.fstat(handle).st_size == 4 * PAGE_BYTES - 100
        assert os.pread(handle, 1, 4 * PAGE_BYTES - 101) == bytes([FILL])
        os.close(handle)
        handle = os.open(files / "again", os.O_RDWR)
        with pytest.raises(OSError, match="Input/output error"):
            write_again(handle, 100, 3 * PAGE_BYTES)
        write_again(handle, 100, 3 * PAGE_BYTES, replaces=True)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        whole = os.pread(handle, 4 * PAGE_BYTES, 0)
        assert len(whole) == 4 * PAGE_BYTES and whole[:100] == WHOLE[:100]
        assert whole[2 * PAGE_BYTES : 3 * PAGE_BYTES] == bytes([FILL]) * PAGE_BYTES
        os.close(handle)
