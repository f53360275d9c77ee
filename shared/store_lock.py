"""The store's lock, RocketMQ's own: one process at a time changes a store."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.shared.durable_files import OWN_FILE
from penstock.shared.errors import ConfigError, StoreLocked, StoreUnavailable
from penstock.shared.layout import StorePaths
from penstock.shared.run_directory import Run, await_actors_gone, own_last_run


def lock_store(paths: StorePaths) -> int:
    """Take RocketMQ's lock: byte 0 of the file `lock`, for as long as the handle is open."""
    handle = os.open(paths.lock, os.O_RDWR | os.O_CREAT, OWN_FILE)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError:
        os.close(handle)
        raise StoreLocked(
            "one broker at a time runs on a store",
            paths.lock,
            "stop the other one (penstock status), or name another store",
        ) from None
    os.pwrite(handle, b"lock", 0)
    return handle


@contextmanager
def stopped_store(root: Path) -> Iterator[tuple[StorePaths, Run | None]]:
    """The paths of a store on which nothing runs while this lasts, and its last run.

    Raises StoreLocked, ConfigError where there is no store, StoreUnavailable for a disk's refusal.
    """
    paths = StorePaths(root)
    if not paths.commit_log.is_dir():
        raise ConfigError(
            "a store directory holds commitlog/", root, "name the directory that holds it"
        )
    try:
        lock = lock_store(paths)
        try:
            last_run = own_last_run(paths)
            if last_run is not None:
                await_actors_gone(last_run)
            yield paths, last_run
        finally:
            os.close(lock)
    except OSError as error:
        raise StoreUnavailable(
            "the store can be changed", error, "look at the disk and at who may write there"
        ) from error
