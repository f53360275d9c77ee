"""Where the files of tests are while they run, and after one has failed."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import memory_files
import pytest
from memory_files import PREFIX, MemoryFiles


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What makes directories for tests, as far as it is asked here."""
    for name in ("disk", "memory"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(memory_files, "MEMORY", tmp_path / "memory")
    monkeypatch.setattr(memory_files, "ROOM_BYTES", 0)
    return SimpleNamespace(getbasetemp=lambda: tmp_path / "disk", _basetemp=None)


@pytest.mark.parametrize("failed", [False, True])
def test_files_are_in_memory_while_that_is_wanted_and_kept_if_a_test_failed(
    factory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: bool
) -> None:
    left = tmp_path / "memory" / f"{PREFIX}0"  # no process has this number
    left.mkdir()
    files = MemoryFiles()
    files.use(factory, in_memory=False)
    assert factory._basetemp == tmp_path / "disk" and left.exists()
    files.use(factory, in_memory=True)
    place = factory._basetemp
    assert place == tmp_path / "memory" / f"{PREFIX}{os.getpid()}" and not left.exists()
    (place / "store").mkdir()
    (place / "store" / "log").write_bytes(b"torn")
    monkeypatch.chdir(place)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
    files.use(factory, in_memory=False)
    assert factory._basetemp == tmp_path / "disk"
    files.close(factory, failed)
    assert list((tmp_path / "memory").iterdir()) == []
    kept = [path.name for path in (tmp_path / "disk").rglob("*") if path.is_file()]
    assert kept == (["log"] if failed else [])


def test_where_memory_has_little_room_files_are_on_the_disk(
    factory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_files, "ROOM_BYTES", 1 << 62)
    files = MemoryFiles()
    files.use(factory, in_memory=True)
    assert factory._basetemp == tmp_path / "disk"
    files.close(factory, failed=True)
    assert list(tmp_path.rglob("*")) == [tmp_path / "disk", tmp_path / "memory"]
