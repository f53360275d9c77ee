"""A start as a whole: what one leaves open that fails, and how often it looks at a directory."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock.shared.clock import ManualClock
from penstock.shared.config import Config
from penstock.shared.errors import StoreDamaged
from penstock.shared.formats.record import Record
from penstock.shared.layout import StorePaths
from penstock.shared.memory.run_directory import remove_run_directory
from penstock.shared.queue.deleted_topics import DeletedTopics, save_deleted_topics
from penstock.shared.recovery import open_store as store_start
from penstock.shared.recovery.open_store import OpenStore, open_store
from penstock.shared.store.geometry import keep_sizes


class Killed(Exception):
    """In the place of a kill: nothing after it is done."""


def _release(store: OpenStore) -> None:
    """What the kernel does for a process that is gone."""
    store.listeners.close()
    store.positions.close()
    os.close(store.lock)


def test_a_start_that_fails_at_its_last_step_holds_nothing_open(
    make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config()
    _release(open_store(config, ManualClock()))  # what is opened once and kept

    def die(point: str) -> None:
        if point == "start.before_abort":
            raise Killed

    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(store_start, "crash_point", die)
        open_store(config, ManualClock())
    assert set(os.listdir("/proc/self/fd")) == before
    last = open_store(config, ManualClock())
    _release(last)
    remove_run_directory(last.run)


@pytest.mark.parametrize("page", ["shorter", "of other words"])
def test_a_start_leaves_what_a_killed_broker_of_another_version_had_in_memory_to_that_version(
    make_config: Callable[..., Config], page: str
) -> None:
    config = make_config()
    killed = open_store(config, ManualClock())
    _release(killed)
    path = killed.run.positions
    theirs = path.read_bytes()
    path.write_bytes(theirs[:4096] if page == "shorter" else b"\x7f" + theirs[1:])
    with pytest.raises(StoreDamaged, match="start it once more and stop it, and this one goes on"):
        open_store(config, ManualClock())
    path.write_bytes(theirs)
    last = open_store(config, ManualClock())
    assert last.recovered.from_memory
    _release(last)
    remove_run_directory(last.run)


def test_a_start_counts_deletions_on_from_those_of_before(
    make_config: Callable[..., Config],
) -> None:
    """Else the coordinator takes them for new ones, and forgets topics that were created again."""
    config = make_config()
    first = open_store(config, ManualClock())
    assert first.positions["deleted_topics"] == 0
    _release(first)
    save_deleted_topics(StorePaths(config.store).deleted_topics, DeletedTopics(7))
    last = open_store(config, ManualClock())
    assert [last.positions[f"{name}_topics"] for name in ("deleted", "forgotten")] == [7, 7]
    _release(last)
    remove_run_directory(last.run)


@pytest.mark.parametrize("crashed", [False, True])
def test_a_start_lists_each_queue_once_and_again_only_what_it_has_cut(
    stopped_store: Callable[..., Any],
    make_record: Callable[..., Record],
    monkeypatch: pytest.MonkeyPatch,
    crashed: bool,
) -> None:
    queues = 30
    records = [make_record(queue_id=number % queues) for number in range(3 * queues)]
    store = stopped_store(records, unclean=crashed)
    keep_sizes(store.paths, store.config)  # or the first start looks for them in the files
    listed: Counter[str] = Counter()

    def count(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(place: Any = ".") -> Any:
            listed[os.fspath(place)] += 1
            return call(place)

        return counted

    with monkeypatch.context() as patched:
        for name in ("listdir", "scandir"):
            patched.setattr(os, name, count(getattr(os, name)))
        begun = open_store(store.config, ManualClock())
    _release(begun)
    shutil.rmtree(begun.run.path)
    ends = [listed[str(store.paths.queue("orders", number))] for number in range(queues)]
    assert begun.recovered.queues_good_to == (0 if crashed else None)
    # after a crash the queues are cut, and are looked at again to tell where they end now
    assert set(ends) == {2 if crashed else 1}
    # and each of these is looked at for whether it is empty, and so perhaps not durable yet
    for directory in (store.paths.consume_queue, store.paths.commit_log):
        assert listed[str(directory)] == 2
