"""The ranges that a start sets aside are kept, and forgotten, for good."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.shared.layout import StorePaths
from penstock.shared.log.damage import damage_between, load_quarantine, save_quarantine


def test_ranges_that_are_whole_again_do_not_come_back_with_the_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next start would take as damage what producers have been told is stored."""
    paths = StorePaths(tmp_path)
    save_quarantine(paths, damage_between(paths, 4096, 0, 100, "bad"), 77)
    synced, sync = [], os.fsync

    def note(handle: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{handle}")), paths.quarantined.exists()))
        sync(handle)

    monkeypatch.setattr(os, "fsync", note)
    save_quarantine(paths, [], 99)
    assert load_quarantine(paths) == []
    assert synced == [(paths.own, False)]
