"""A start as a whole: what a failed one leaves open, and how often one looks at a directory."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock.shared.clock import ManualClock
from penstock.shared.config import Config
from penstock.shared.errors import StoreDamaged, StoreUnavailable
from penstock.shared.formats.record import Record
from penstock.shared.layout import StorePaths
from penstock.shared.log.damage import load_quarantine
from penstock.shared.memory.run_directory import boot_id, read_run, remove_run_directory
from penstock.shared.queue.deleted_topics import DeletedTopics, save_deleted_topics
from penstock.shared.recovery import open_store as store_start
from penstock.shared.recovery.open_store import OpenStore, open_store
from penstock.shared.store.geometry import keep_sizes
from penstock.shared.store.watermark import Watermark, load_watermark

SEGMENT = 4096


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


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("state", ["new", "clean", "unclean", "damaged"])
def test_a_start_tells_each_actor_where_it_goes_on(
    stopped_store: Callable[..., Any], twelve: list[Record], state: str, pool: bool
) -> None:
    store = stopped_store([] if state == "new" else twelve, unclean=state == "unclean")
    starts = [0] if state == "new" else store.starts()
    if state == "damaged":
        log = store.log()
        log[starts[10] + 100] ^= 1
        store.write_log(log)
    config = msgspec.structs.replace(
        store.config, transient_store_pool_enable=pool, transient_store_pool_bytes=1 << 16
    )
    clock = ManualClock()
    begun = open_store(config, clock)
    found, end = begun.recovered, starts[-1]
    # the checkpoint vouches for nothing, so after a crash all is dispatched again; and where there
    # is damage, from where the scan began
    dispatch_from = {"unclean": 0, "damaged": SEGMENT}.get(state, end)
    last, stored_ms = (0, 0) if state == "new" else (starts[11], found.last_timestamp_ms)
    expected = {name: end for name in ("wrote", "committed", "flushed", "flush_wanted")}
    expected |= {
        "append_wanted": end,
        "wrote_timestamp": stored_ms,
        "queued": dispatch_from,
        "dispatched": dispatch_from,
        "dispatched_record": min(last, dispatch_from),
        "queue_count": 0 if state in ("new", "unclean") else 2,
        "run_began": end,
        "log_start": 0,
        "unsaved_offsets": 1,
        "read_only": 1 if state == "damaged" else 0,
        "allocated": 0 if state == "new" else 2 * SEGMENT,
        "deleted_topics": 0,
        "forgotten_topics": 0,
    }
    assert {name: begun.positions[name] for name in expected} == expected
    assert (stored_ms > 0) == (state != "new")
    run = begun.run
    assert (run.supervisor_pid, run.started_ms, run.boot_id) == (
        os.getpid(),
        clock.now_ms(),
        boot_id(),
    )
    assert run.pool_enabled == pool == run.pool.exists()
    if pool:
        assert run.pool.stat().st_size >= 1 << 16
    paths = store.paths
    assert paths.abort.read_text() == str(os.getpid())
    assert read_run(paths) == run
    assert load_watermark(paths.watermark) == Watermark(
        run.run_id, config.sync_flush, end, found.checkpoint
    )
    assert [each.position for each in load_quarantine(paths)] == (
        [starts[10]] if state == "damaged" else []
    )
    assert paths.checkpoint.stat().st_size == 4096 and paths.known_queues.exists()
    assert not paths.starting.exists(), "it has ended"
    _release(begun)
    remove_run_directory(run)


def test_a_start_on_a_store_in_two_file_systems_changes_nothing(
    make_config: Callable[..., Config],
) -> None:
    config = make_config()
    _release(open_store(config, ManualClock()))
    paths = StorePaths(config.store)
    paths.index.symlink_to("/proc")
    before = {file: file.read_bytes() for file in paths.own.rglob("*") if file.is_file()}
    with pytest.raises(StoreUnavailable, match=f"mounted by itself.*{paths.index}"):
        open_store(config, ManualClock())
    assert {file: file.read_bytes() for file in paths.own.rglob("*") if file.is_file()} == before
    paths.index.unlink()
    last = open_store(config, ManualClock())
    _release(last)
    remove_run_directory(last.run)
