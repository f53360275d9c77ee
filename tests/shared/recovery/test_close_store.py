"""A stop that is killed half way: what it leaves is a store that the next start takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.shared.clock import ManualClock
from penstock.shared.config import Config
from penstock.shared.files.durable import make_directory, make_file
from penstock.shared.files.segments import segment_bases
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.recovery import close_store as store_stop
from penstock.shared.recovery.close_store import close_store
from penstock.shared.recovery.open_store import OpenStore, open_store


class Killed(Exception):
    """In the place of a kill: nothing after it is done."""


def _release(store: OpenStore) -> None:
    """What the kernel does for a process that is gone."""
    store.listeners.close()
    store.positions.close()
    os.close(store.lock)


def test_a_stop_killed_among_empty_segments_leaves_a_log_without_a_hole(
    make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ and the next start refuse one."""
    config = make_config()
    paths, size = StorePaths(config.store), config.mapped_file_size_commit_log_bytes
    for directory in (paths.commit_log, paths.staging):
        make_directory(directory)
    for number in range(4):
        name = paths.commit_log / segment_name(number * size)
        make_file(paths.staging, name, size, sparse=False)
    store = open_store(config, ManualClock())
    synced: list[list[int]] = []
    sync = store_stop.sync_directory

    def note(directory: Path) -> None:
        sync(directory)
        if directory == paths.commit_log:
            synced.append(segment_bases(directory, size))

    def die(point: str) -> None:
        if point == "shutdown.mid_unlink" and len(segment_bases(paths.commit_log, size)) == 2:
            raise Killed

    monkeypatch.setattr(store_stop, "sync_directory", note)
    monkeypatch.setattr(store_stop, "crash_point", die)
    with pytest.raises(Killed):
        close_store(store, config)
    assert synced == [[0, size, 2 * size]], "each is durable before the next goes"
    _release(store)
    again = open_store(config, ManualClock())
    assert close_store(again, config)
    assert segment_bases(paths.commit_log, size) == [0]
    _release(again)
