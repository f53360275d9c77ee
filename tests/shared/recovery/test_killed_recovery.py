"""A start that is killed while it recovers, again and again, ends where an undisturbed one does."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.shared.clock import SystemClock
from penstock.shared.config import Config
from penstock.shared.layout import StorePaths
from penstock.shared.log.damage import save_quarantine
from penstock.shared.memory.queue_table import QueueTable, create_queue_table

STEPS = ("os.remove", "os.rename", "os.mkdir", "os.truncate", "open", "os.listdir", "os.scandir")


def _contents(paths: StorePaths) -> dict[str, bytes]:
    """All files, apart from when damage was found."""
    return {
        str(path.relative_to(paths.root)): path.read_bytes()
        for path in sorted(paths.root.rglob("*"))
        if path.is_file() and path != paths.quarantined
    }


@pytest.mark.parametrize("damaged", [False, True])
def test_recovery_killed_five_times_in_a_row_ends_in_the_same_state(
    wreckable: Callable[[Path], Any],
    as_stopped: Callable[[StorePaths, Config], Any],
    tmp_path: Path,
    damaged: bool,
) -> None:
    store = wreckable(tmp_path / "once")
    *records, end = store.starts()
    log = store.log()
    log[end : end + 30] = b"a write that a crash cut off.."
    if damaged:
        log[records[5] + 120] ^= 1
    store.write_log(log)
    (store.paths.staging / "commitlog-1").write_bytes(b"x")
    again = StorePaths(shutil.copytree(store.paths.root, tmp_path / "again" / "store"))
    killed = as_stopped(again, _with_root(store.config, again.root))
    _recover(store, tmp_path / "table")
    expected = _contents(store.paths)
    deaths = 0
    for step in (1, 4, 9, 12, 15, 18, 22, 27, 33):
        child = os.fork()
        if child == 0:
            _die_behind(step)
            _recover(killed, tmp_path / f"table-{step}")
            os._exit(0)
        deaths += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert deaths >= 5
    _recover(killed, tmp_path / "table-last")
    assert _contents(again) == expected
    assert killed.recover().log_end == end


def _with_root(config: Config, root: Path) -> Config:
    return msgspec.structs.replace(config, store_path_root_dir=str(root))


def _recover(store: Any, table_path: Path) -> None:
    """What a start does to the files: log, quarantine, consume queues."""
    found = store.recover()
    save_quarantine(store.paths, found.quarantined, SystemClock().now_ms())
    table_path.unlink(missing_ok=True)
    create_queue_table(table_path, 64)
    table = QueueTable(table_path, writable=True)
    store.recover_queues(found.queues_good_to, table)
    table.close()


def _die_behind(steps: int) -> None:
    """Let this process die in front of a step that opens, lists or changes a file."""
    left = steps

    def count(event: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        left -= event in STEPS
        if left < 0:
            os._exit(9)

    sys.addaudithook(count)
