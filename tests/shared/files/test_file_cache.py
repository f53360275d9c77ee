"""Files read at offsets: whole, whatever one call of the kernel gives or is told of its cache."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.files.file_cache import FileCache


def test_a_read_that_the_kernel_cuts_short_goes_on_where_it_was_cut() -> None:
    """Of a segment it does so from 2 GiB on; of this file it gives a page at a time."""
    size, path = 12_000, Path(f"/proc/{os.getpid()}/smaps")
    with closing(FileCache()) as files:
        assert len(os.pread(files.descriptor(path), size, 0)) < size
        assert len(files.read(path, 0, size)) == files.bytes_read == size


def test_a_read_beyond_the_end_gives_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    with closing(FileCache()) as files:
        assert files.read(tmp_path / "file", 4, 100) == b"456789"
        assert files.read(tmp_path / "file", 10, 100) == b""
        assert files.bytes_read == 6


def test_what_is_expected_and_forgotten_is_read_all_the_same(tmp_path: Path) -> None:
    raw = os.urandom(3 << 20)
    file = tmp_path / "file"
    file.write_bytes(raw)
    cache = FileCache()
    try:
        for start, size in ((0, len(raw)), (4097, 1 << 20), (len(raw) - 1, 1)):
            cache.expect(file, start, size)
            assert cache.read(file, start, size) == raw[start : start + size]
            cache.forget(file, start, size)
            assert cache.read(file, start, size) == raw[start : start + size]
            assert not cache.expect(file, start, 1), "it was read just now"
        with pytest.raises(FileNotFoundError):
            cache.expect(tmp_path / "gone", 0, 1)
    finally:
        cache.close()


def open_names(directory: Path) -> list[str]:
    """The files of a directory that this process has open, one for each descriptor."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            target = Path(os.readlink(each))
        except FileNotFoundError:  # the one that the list was read by
            continue
        if target.parent == directory:
            found.append(target.name)
    return sorted(found)


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["read", "into", "exists", "data", "close"]))
    )
)
def test_the_files_that_were_used_last_stay_open_and_no_others(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str]]
) -> None:
    directory, most = tmp_path_factory.mktemp("files"), 3
    for number in range(5):  # the sixth is not there
        (directory / str(number)).write_bytes(b"0123456789"[: 2 * number])
    used: list[str] = []
    counted, read = 0, set[str]()
    with closing(FileCache(most)) as files:
        for number, what in steps:
            path = directory / str(number)
            if what == "close":
                files.close()
                used = []
            elif number == 5:
                assert not files.exists(path)
                with pytest.raises(FileNotFoundError):
                    files.read(path, 0, 1)
            else:
                used = [each for each in used if each != path.name] + [path.name]
                used = used[-most:]
                content = b"0123456789"[1 : 2 * number]
                if what == "read":
                    assert files.read(path, 1, 9) == content
                elif what == "into":
                    target = bytearray(9)
                    assert files.read_into(path, 1, memoryview(target)) == len(content)
                    assert target == content.ljust(9, b"\0")
                elif what == "data":
                    assert files.next_data(path, 0) == (0 if number else None)
                else:
                    assert files.exists(path)
                if what in ("read", "into"):
                    counted += len(content)
                    read.add(path.name)
            assert open_names(directory) == sorted(used)
            assert (files.bytes_read, files.files_read) == (counted, len(read))
    assert open_names(directory) == []


def test_a_link_is_refused_and_an_error_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with closing(FileCache()) as files:
        with pytest.raises(OSError, match="link"):
            files.read(tmp_path / "link", 0, 1)
        for read in (
            lambda: files.read(tmp_path, 0, 1),
            lambda: files.read_into(tmp_path, 0, memoryview(bytearray(1))),
        ):
            with pytest.raises(IsADirectoryError) as raised:
                read()
            assert raised.value.filename == str(tmp_path)


def test_an_error_that_is_not_that_of_a_hole_is_told(tmp_path: Path) -> None:
    """A pipe has no places."""
    os.mkfifo(tmp_path / "pipe")
    end = os.open(tmp_path / "pipe", os.O_RDWR)  # so that nobody waits for another one
    try:
        with closing(FileCache()) as files, pytest.raises(OSError, match="Illegal seek"):
            files.next_data(tmp_path / "pipe", 0)
    finally:
        os.close(end)
