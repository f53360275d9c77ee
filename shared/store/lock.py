"""The store's lock, RocketMQ's own: one process at a time changes a store.

It is a POSIX record lock, as Java takes it, so a RocketMQ and a Penstock keep each other out. Such
a lock belongs to one process: it goes when the process dies, however that happens, and a fork does
not inherit it. So a broker's actors do not hold it, and they may live on when it is free.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.shared.errors import ConfigError, StoreLocked, StoreUnavailable
from penstock.shared.files.durable import OWN_FILE
from penstock.shared.files.mounts import is_apart
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
    """Raise ConfigError for a file where a store's directory should be.

    Otherwise opening anything below it would fail with ENOTDIR, and the error would name a file of
    the store and not the mistake.
    """
    if root.exists() and not root.is_dir():
        raise ConfigError("this is a file, and no place for a store", root, move_away(root))


def check_mounts(paths: StorePaths) -> None:
    """Raise StoreUnavailable for a directory of the store that is mounted by itself, or is a link
    to another file system. Raises OSError.

    Files get their names by moving between the store's directories, and move at once only within
    one mount. Otherwise messages would be taken, and queues could not be made for them.
    """
    for each in (paths.commit_log, paths.consume_queue, paths.index, paths.own, paths.staging):
        if each.exists() and is_apart(paths.root, each):
            raise StoreUnavailable(
                "a directory of the store is mounted by itself, and files move between all of them",
                each,
                f"mount the disk at {quoted(paths.root)}, or copy the store to one disk: cp -a",
            )


def lock_store(paths: StorePaths) -> int:
    """Take RocketMQ's lock: byte 0 of the file `lock`, for as long as the handle is open.

    Returns the handle. POSIX drops the lock when its process closes any descriptor of the file, so
    the holder must not open `lock` a second time. Raises StoreLocked at once where another process
    has it; OSError where the file cannot be made.
    """
    handle = os.open(paths.lock, os.O_RDWR | os.O_CREAT, OWN_FILE)
    try:
        # lockf and not flock: the two ignore each other, and Java's FileLock uses lockf
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError:
        os.close(handle)
        raise _held(paths) from None
    # RocketMQ writes this, too; only the lock matters
    os.pwrite(handle, b"lock", 0)
    return handle


def _held(paths: StorePaths) -> StoreLocked:
    """The error that says who has the lock, as far as the store can tell."""
    # run.json may be of an ended run, while a RocketMQ or a command has the lock
    run = read_run(paths)
    if run is None or not running(run):
        hint = f"see which: penstock store info {quoted(paths.root)}"
        return StoreLocked("another process holds the store's lock", paths.lock, hint)
    see = f"see what it does: penstock status --store {quoted(paths.root)}"
    return StoreLocked(
        "a broker runs on this store",
        f"{paths.root}, process {run.supervisor_pid}",
        f"{see}; to stop it: penstock down --store {quoted(paths.root)}",
    )


@contextmanager
def stopped_store(root: Path) -> Iterator[tuple[StorePaths, Run | None]]:
    """The paths of a store on which nothing runs inside the block, and its last run.

    Raises StoreLocked, ConfigError where there is no store, and StoreUnavailable for an OSError,
    also for one inside the block.
    """
    paths = StorePaths(root)
    if not paths.commit_log.is_dir():
        raise ConfigError(
            "this is no store: it holds no commitlog/", root, "name the directory that holds it"
        )
    try:
        lock = lock_store(paths)
        try:
            check_mounts(paths)
            # under the lock, so that no start replaces run.json meanwhile
            last_run = read_last_run(paths)
            if last_run is not None:
                # a killed supervisor has lost the lock, while one of its actors may still write
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
