"""Files read at offsets: whole, whatever one call of the kernel gives or is told of its cache."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

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
