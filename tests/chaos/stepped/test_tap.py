"""The tap sees every way in which a process changes files, and says so where it has not."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.chaos.stepped.seen_files import Killed
from penstock.chaos.stepped.tap import Tap
from penstock.chaos.stepped.uncertain_disk import BYTES
from penstock.shared.files.durable import (
    exchange,
    make_directory,
    make_file,
    replace_file,
    sync_directory,
    write_again,
)
from penstock.shared.formats.index_layout import Geometry
from penstock.shared.index.index_file import IndexFile

MAP_BYTES = 4096


def _buffered(root: Path) -> None:
    with (root / "buffered").open("wb") as file:
        file.write(b"x" * 700)


def _tree(root: Path) -> None:
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "f").write_bytes(b"1")
    shutil.rmtree(root / "a")


def _mapped(root: Path) -> None:
    make_file(root, root / "mapped", MAP_BYTES, sparse=False)
    handle = os.open(root / "mapped", os.O_RDWR)
    with mmap.mmap(handle, MAP_BYTES) as view:
        view[1000:1003] = b"new"
    os.close(handle)


def _cut(root: Path) -> None:
    (root / "whole").write_bytes(b"x" * 5000)
    os.truncate(root / "whole", 1500)
    shutil.copyfile(root / "whole", root / "copy")
    os.link(root / "copy", root / "linked")
    (root / "copy").unlink()


def _exchanged(root: Path) -> None:
    for name in ("one", "two"):
        make_directory(root / name)
        replace_file(root / name / name, name.encode())
    exchange(root / "one", root / "two")


@pytest.mark.parametrize("change", [_buffered, _tree, _mapped, _cut, _exchanged])
def test_every_change_is_an_event(tmp_path: Path, change: Callable[[Path], None]) -> None:
    tap = Tap(tmp_path)
    with tap.open():
        change(tmp_path)
    assert tap.events and tap.check() == []
    assert os.open.__module__ == "posix", "the calls are as they were"


def test_a_change_around_the_tap_is_noticed(tmp_path: Path) -> None:
    tap = Tap(tmp_path)
    with tap.open():
        replace_file(tmp_path / "f", b"1")
        subprocess.run(["sh", "-c", f"printf 2 > {tmp_path}/f; : > {tmp_path}/g"], check=True)
    assert tap.check() == ["f is not as it was seen", "g is not as it was seen"]


def test_a_file_s_sync_is_for_its_bytes_and_a_directory_s_for_its_names(tmp_path: Path) -> None:
    tap = Tap(tmp_path)
    with tap.open():
        handle = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
        os.pwrite(handle, b"x" * 1000, 0)
        assert tap.disk.count() == 2**4  # name, length, two sectors
        os.fdatasync(handle)
        assert tap.disk.count() == 2
        sync_directory(tmp_path)
        assert tap.disk.count() == 1
        os.pwrite(handle, b"y" * 1000, 0)
        os.pwritev(handle, [b"z"], 600, os.RWF_DSYNC)
        assert tap.disk.count() == 2, "the other sector"
        os.close(handle)


def test_each_store_of_the_index_into_its_mapping_is_an_event(tmp_path: Path) -> None:
    geometry = Geometry(50, 8)
    tap = Tap(tmp_path)
    with tap.open():
        make_file(tmp_path, tmp_path / "20260101000000000", geometry.file_bytes, sparse=True)
        file = IndexFile(tmp_path / "20260101000000000", geometry, writable=True)
        before = len(tap.events)
        file.slots[3] = 7
        file.link_again(1)
        stores = [each for each in tap.events[before:] if each.changes]
        file.close()
    assert [each.what.split()[0] for each in stores] == ["store", "store"]
    assert all(piece[0] == BYTES for each in stores for piece, _ in each.changes)


def test_a_kill_comes_behind_the_event_that_was_named(tmp_path: Path) -> None:
    tap = Tap(tmp_path)
    tap.kill_at = 2
    with tap.open(), pytest.raises(Killed):
        replace_file(tmp_path / "f", b"1")
    assert len(tap.events) == 2
    assert (tmp_path / "f.tmp").exists() and not (tmp_path / "f").exists()


def test_behind_a_sync_that_fails_only_what_is_written_again_gets_to_the_disk(
    tmp_path: Path,
) -> None:
    (tmp_path / "disk").mkdir()
    tap = Tap(tmp_path / "disk")
    page = 4096
    with tap.open():
        handle = os.open(tmp_path / "disk" / "f", os.O_RDWR | os.O_CREAT)
        os.pwrite(handle, b"x" * 3 * page, 0)
        tap.sync_fails = lambda path: path == "f"
        with pytest.raises(OSError, match="Input/output error"):
            os.fsync(handle)
        tap.sync_fails = lambda path: False
        os.fsync(handle)
        assert tap.disk.uncertain(2, BYTES) == [], "the kernel has nothing to write"
        assert len(tap.disk.missed(2, 0, 100)) == 3 * page // 512
        write_again(handle, page, page + 1)  # its page goes to the disk as a whole
        os.fsync(handle)
        assert [each[2] for each in tap.disk.missed(2, 0, 100)] == [*range(8), *range(16, 24)]
        tap.close_handles()
    assert tap.check() == []
