"""What a stop leaves: a clean store, or one that the next start recovers, also if it is killed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from penstock.shared.clock import ManualClock
from penstock.shared.config import Config
from penstock.shared.files.durable import make_directory, make_file
from penstock.shared.files.segments import segment_bases
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.memory.run_directory import remove_run_directory
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


@pytest.mark.parametrize("late", ["", "committed", "flushed", "dispatched", "flush_error"])
def test_a_store_is_clean_where_all_is_on_disk_and_dispatched_and_no_sync_has_failed(
    make_config: Callable[..., Config], late: str
) -> None:
    config = make_config()
    store = open_store(config, ManualClock())
    for name in ("wrote", "committed", "flushed", "dispatched"):
        store.positions.initialise(name, 1000)
    if late:
        store.positions.initialise(late, 1 if late == "flush_error" else 999)
    assert close_store(store, config) == (not late)
    assert store.paths.abort.exists() == store.run.path.exists() == bool(late)
    _release(store)
    if late:
        remove_run_directory(store.run)


@pytest.mark.parametrize("mode", ["clean", "unclean"])
def test_a_damaged_store_is_left_as_it_was_found(
    make_config: Callable[..., Config], mode: str
) -> None:
    config = make_config()
    store = open_store(config, ManualClock())
    store.positions.initialise("read_only", 1)
    found = msgspec.structs.replace(store.recovered, mode=mode)
    assert not close_store(store._replace(recovered=found), config)
    assert store.paths.abort.exists() == (mode == "unclean")
    assert not store.run.path.exists()
    _release(store)
