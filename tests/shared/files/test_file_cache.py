"""Files read at offsets: what the kernel is told of the page cache changes no byte."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.shared.files.file_cache import FileCache


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
