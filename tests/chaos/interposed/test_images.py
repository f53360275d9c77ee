"""Disks after a power failure: what is durable is always there, and nothing that nobody wrote."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.chaos.interposed.images import SECTOR_BYTES, Disk, FileState, mixed, read_disk
from penstock.chaos.interposed.recorder import PAGE_BYTES, Flush

ROOT = Path("/nowhere")
PAGES = st.dictionaries(
    st.integers(0, 3), st.integers(1, 255).map(lambda n: bytes([n]) * PAGE_BYTES), max_size=3
)


@given(durable=PAGES, written=PAGES, share=st.floats(0, 1), seed=st.integers(0, 1 << 32))
def test_each_sector_of_a_mixed_disk_is_the_durable_or_the_written_one(
    durable: dict[int, bytes], written: dict[int, bytes], share: float, seed: int
) -> None:
    size = 4 * PAGE_BYTES
    before, after = Disk(ROOT), Disk(ROOT)
    before.files[7] = FileState(size, durable)
    after.files[7] = FileState(size, {**durable, **written})
    got = mixed(before, after, share, random.Random(seed)).files[7].pages
    zero = bytes(PAGE_BYTES)
    for page in range(4):
        old, new = durable.get(page, zero), after.files[7].pages.get(page, zero)
        for at in range(0, PAGE_BYTES, SECTOR_BYTES):
            sector = got.get(page, zero)[at : at + SECTOR_BYTES]
            assert sector in (old[at : at + SECTOR_BYTES], new[at : at + SECTOR_BYTES])
            assert old != new or sector == old[at : at + SECTOR_BYTES]
    if share in (0, 1):
        assert share or got == durable


def test_a_name_is_there_when_its_directory_was_synced_and_a_file_s_content_when_it_was(
    tmp_path: Path,
) -> None:
    disk = Disk(ROOT)
    root, below = str(ROOT), str(ROOT / "below")
    page = b"x" * PAGE_BYTES
    disk.take(Flush(1, 11, PAGE_BYTES + 5, {0: page}, "", {}))
    disk.take(Flush(2, 0, 0, {}, root, {"named": 11, "empty": 12, "below": 0}))
    disk.write(tmp_path / "one")
    assert (tmp_path / "one" / "named").read_bytes() == page + bytes(5)
    assert (tmp_path / "one" / "empty").read_bytes() == b""
    assert list((tmp_path / "one" / "below").iterdir()) == []
    disk.take(Flush(3, 0, 0, {}, below, {"moved": 11}))
    disk.take(Flush(4, 0, 0, {}, root, {"below": 0}))
    disk.write(tmp_path / "two")
    found = sorted(str(p.relative_to(tmp_path / "two")) for p in (tmp_path / "two").rglob("*"))
    assert found == ["below", "below/moved"]


@pytest.mark.parametrize("hole", [0, 3])
def test_what_was_read_is_written_the_same(tmp_path: Path, hole: int) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    with (source / "sub" / "file").open("wb") as file:
        file.write(b"begin")
        file.seek(hole * PAGE_BYTES + 9)
        file.write(b"end")
    read_disk(source).write(tmp_path / "copy")
    assert (tmp_path / "copy/sub/file").read_bytes() == (source / "sub/file").read_bytes()
