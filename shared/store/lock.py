"""The store's lock, RocketMQ's own: one process at a time changes a store."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.shared.errors import ConfigError, StoreLocked, StoreUnavailable
from penstock.shared.files.durable import OWN_FILE
from penstock.shared.layout import StorePaths
from penstock.shared.memory.run_directory import (
    Run,
    await_actors_gone,
    read_last_run,
    read_run,
    running,
)
from penstock.shared.next_steps import look_at, move_away, quoted


def check_place(root: Path) -> None:
    """Raise ConfigError for a file where a store's directory should be."""
    if root.exists() and not root.is_dir():
        raise ConfigError("this is a file, and no place for a store", root, move_away(root))


def lock_store(paths: StorePaths) -> int:
    """Take RocketMQ's lock: byte 0 of the file `lock`, for as long as the handle is open."""
    handle = os.open(paths.lock, os.O_RDWR | os.O_CREAT, OWN_FILE)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError:
        os.close(handle)
        raise _held(paths) from None
    os.pwrite(handle, b"lock", 0)
    return handle


def _held(paths: StorePaths) -> StoreLocked:
    run = read_run(paths)
    if run is None or not running(run):
        hint = f"see which: penstock store info {quoted(paths.root)}"
        return StoreLocked("another process holds the store's lock", paths.lock, hint)
    see = f"see what it does: penstock status --store {quoted(paths.root)}"
    return StoreLocked(
        "a broker runs on this store",
        f"{paths.root}, process {run.supervisor_pid}",
        f"{see}; to stop it: kill {run.supervisor_pid}",
    )


@contextmanager
def stopped_store(root: Path) -> Iterator[tuple[StorePaths, Run | None]]:
    """The paths of a store on which nothing runs while this lasts, and its last run.

    Raises StoreLocked, ConfigError where there is no store, StoreUnavailable for a disk's refusal.
    """
    paths = StorePaths(root)
    if not paths.commit_log.is_dir():
        raise ConfigError(
            "this is no store: it holds no commitlog/", root, "name the directory that holds it"
        )
    try:
        lock = lock_store(paths)
        try:
            last_run = read_last_run(paths)
            if last_run is not None:
                await_actors_gone(last_run)
            yield paths, last_run
        finally:
            os.close(lock)
    except OSError as error:
        raise StoreUnavailable(
            "the store cannot be changed",
            error,
            look_at(root),
        ) from error
