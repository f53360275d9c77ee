"""Warming: every page is there and written out, step by step, and the bytes are still zeros."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from penstock.actors.allocator import warm_segment
from penstock.actors.allocator.warm_segment import WarmSegment
from penstock.shared.files.durable import make_file

PAGE = mmap.PAGESIZE


def _resident(mapped: str) -> tuple[int, int]:
    """(resident, dirty) bytes of this process' mapping of a file."""
    rss = dirty = 0
    ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            ours = line.endswith(mapped)
        elif ours and words[0] == "Rss:":
            rss += int(words[1]) << 10
        elif ours and words[0] in ("Private_Dirty:", "Shared_Dirty:"):
            dirty += int(words[1]) << 10
    return rss, dirty


@pytest.mark.parametrize("sync_pages", [0, 8])
def test_each_step_touches_some_pages_and_syncs_them_where_that_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync_pages: int
) -> None:
    monkeypatch.setattr(warm_segment, "STEP_PAGES", 4)
    size = 18 * PAGE
    path = tmp_path / ("0" * 20)
    make_file(tmp_path, path, size, sparse=False)
    segment = WarmSegment(path, 0, size, sync_pages)
    assert _resident(str(path))[0] == 0
    dirty = []
    for step in range(1, 5):
        assert not segment.step()
        resident, now_dirty = _resident(str(path))
        assert resident >= 4 * step * PAGE
        dirty.append(now_dirty // PAGE)
    assert segment.step()
    resident, now_dirty = _resident(str(path))
    assert resident == size
    if sync_pages:
        assert dirty == [4, 0, 4, 0] and now_dirty == 0
    else:
        assert dirty[-1] == 16 and now_dirty == size
    assert segment.lock() == 0
    segment.close()
    assert path.read_bytes() == bytes(size)
