"""Opening a store for a broker run, and closing it in good order. The supervisor's, and nobody's
else: whoever calls this holds the store's lock and runs no actors yet, or no more.

Order of a start: directories, lock, sizes of files, recovery, shared memory, run.json, abort. From
`abort` on the store counts as unclean; the finish removes it last, when everything is on disk.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import NamedTuple

from penstock.shared import faults
from penstock.shared.clock import Clock
from penstock.shared.config import Config
from penstock.shared.errors import SegmentUnavailable, StoreUnavailable
from penstock.shared.faults import crash_point
from penstock.shared.files.disk_space import lacking_room
from penstock.shared.files.durable import make_directory, replace_file, sync_directory
from penstock.shared.files.segments import segment_bases
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.log.damage import QUARANTINE, save_quarantine
from penstock.shared.memory.positions import PAGE_SIZE, Positions, create_positions
from penstock.shared.memory.queue_table import QueueTable, create_queue_table
from penstock.shared.memory.run_directory import (
    Endpoints,
    Run,
    await_actors_gone,
    boot_id,
    new_run_directory,
    read_last_run,
    remove_directory,
    remove_run_directory,
    remove_strays,
    write_run,
)
from penstock.shared.memory.transient_store_pool import create_pool
from penstock.shared.next_steps import look_at, quoted
from penstock.shared.process.listeners import Listeners, listen_ipc, listen_tcp
from penstock.shared.queue.known_queues import make_known_queues
from penstock.shared.recovery.check_files import check_files
from penstock.shared.recovery.cut_queues import recover_queues
from penstock.shared.recovery.recover_index import keep_index_state, recover_index
from penstock.shared.recovery.recover_log import Recovered, recover_store
from penstock.shared.recovery.start_marker import note_end, note_start
from penstock.shared.store.checkpoint_file import make_checkpoint
from penstock.shared.store.geometry import check_sizes, keep_sizes
from penstock.shared.store.lock import check_place, lock_store
from penstock.shared.store.watermark import Watermark, make_watermark

_SPARE_BYTES = 4 << 20
# What a start that has no room for a larger one proposes.
SMALL_SEGMENT_BYTES = 16 << 20


class OpenStore(NamedTuple):
    """A store that is ready for its actors."""

    paths: StorePaths
    lock: int
    run: Run
    positions: Positions
    recovered: Recovered
    remarks: list[str]
    listeners: Listeners


def open_store(config: Config, clock: Clock) -> OpenStore:
    """Lock, recover, and set up shared memory. Raises PenstockError, having changed nothing that
    counts: the next try begins from the same state."""
    paths = StorePaths(config.store)
    check_place(paths.root)
    with ExitStack() as undo:
        try:
            for directory in (
                paths.root,
                paths.commit_log,
                paths.consume_queue,
                paths.topics.parent,
                paths.staging,
            ):
                make_directory(directory)
            lock = lock_store(paths)
            undo.callback(os.close, lock)
            store = _open_locked(config, clock, paths, lock)
        except OSError as error:
            raise StoreUnavailable(
                "the store or its shared memory cannot be written",
                error,
                look_at(paths.root),
            ) from error
        undo.pop_all()
        return store


def _open_locked(config: Config, clock: Clock, paths: StorePaths, lock: int) -> OpenStore:
    last_run = read_last_run(paths)
    if last_run is not None:
        await_actors_gone(last_run)
    remove_strays(paths.root, last_run)
    with ExitStack() as sockets, ExitStack() as undo:
        produce = listen_tcp(config.bind_host, config.produce_port, "producers")
        sockets.callback(produce.socket.close)
        consume = listen_tcp(config.bind_host, config.consume_port, "consumers")
        sockets.callback(consume.socket.close)
        check_sizes(paths, config)
        check_files(paths, config)
        keep_sizes(paths, config)
        recovered = recover_store(paths, config, last_run)
        remarks = [faults.remark(), *recovered.restored_queues]
        _check_first_segment(paths, config)
        note_start(paths.starting)
        save_quarantine(paths, recovered.quarantined, clock.now_ms())
        remarks.append(recover_index(paths, config, recovered, last_run, clock.now_ms()))
        crash_point("recover.after_index")
        # what actors only open, so that on a full disk it is the start that fails
        make_checkpoint(paths.checkpoint, recovered.checkpoint)
        make_known_queues(paths.known_queues)
        if last_run is not None:
            # all of it is on disk now, and a small /dev/shm has no room for two
            remove_run_directory(last_run)
        pool_bytes = config.transient_store_pool_bytes if config.transient_store_pool_enable else 0
        need_bytes = pool_bytes + PAGE_SIZE + _SPARE_BYTES
        run_id, directory, remark = new_run_directory(paths.root, need_bytes)
        undo.callback(remove_directory, directory)
        crash_point("start.new_run")
        remarks.append(remark)
        listeners = {"produce": produce, "consume": consume}
        for name in ("produce", "consume"):
            listeners[f"{name}_ipc"] = listen_ipc(directory / f"{name}.ipc")
            sockets.callback(listeners[f"{name}_ipc"].socket.close)
        run = Run(
            run_id,
            boot_id(),
            str(directory),
            os.getpid(),
            clock.now_ms(),
            Endpoints(**{name: each.endpoint for name, each in listeners.items()}),
            config.transient_store_pool_enable,
        )
        positions = _shared_memory(config, paths, run, pool_bytes, recovered)
        write_run(paths, run)
        crash_point("start.after_run")
        keep_index_state(paths, config, run, recovered.dispatch_from)
        make_watermark(paths.watermark, _watermark(config, run, recovered))
        undo.pop_all()  # from here on the next start finds the directory, and removes it
        crash_point("start.before_abort")
        # the next start takes what is in shared memory only if this run was the last one here
        replace_file(paths.abort, str(os.getpid()).encode())
        note_end(paths.starting)
        sockets.pop_all()
    remarks = [remark for remark in remarks if remark]
    return OpenStore(paths, lock, run, positions, recovered, remarks, Listeners(listeners))


def _check_first_segment(paths: StorePaths, config: Config) -> None:
    """Raise SegmentUnavailable for a store without a message on a disk without room for one: there
    is nothing that such a broker could serve."""
    size = config.mapped_file_size_commit_log_bytes
    if segment_bases(paths.commit_log, size):
        return
    if lacking := lacking_room(paths.commit_log, config):
        smaller = f"--set mapped_file_size_commit_log_bytes={SMALL_SEGMENT_BYTES}"
        less = f", or have smaller segments: penstock up --store {quoted(paths.root)} {smaller}"
        raise SegmentUnavailable(
            "the store's first segment has no room",
            lacking,
            "free disk space, or choose another --store"
            + (less if size > SMALL_SEGMENT_BYTES else ""),
        )


def _shared_memory(
    config: Config, paths: StorePaths, run: Run, pool_bytes: int, recovered: Recovered
) -> Positions:
    """Make and fill what the actors share."""
    create_positions(run.positions)
    create_queue_table(run.queues, config.max_queues)
    if pool_bytes:
        create_pool(run.pool, pool_bytes)
    table = QueueTable(run.queues, writable=True)
    queues = recover_queues(
        paths, config, recovered.queues_good_to, table, again=recovered.start_failed
    )
    table.close()
    crash_point("recover.after_cq_fix")
    positions = Positions(run.positions, owner="supervisor")
    _initialise(positions, recovered, queues)
    size = config.mapped_file_size_commit_log_bytes
    # recovery has made their names durable
    ends = [base + size for base in segment_bases(paths.commit_log, size)]
    positions.initialise("allocated", max([recovered.log_end // size * size, *ends]))
    return positions


def _watermark(config: Config, run: Run, recovered: Recovered) -> Watermark:
    """All of the log is on disk now."""
    return Watermark(run.run_id, config.sync_flush, recovered.log_end, recovered.checkpoint)


def _initialise(positions: Positions, recovered: Recovered, queues: int) -> None:
    for name in ("wrote", "committed", "flushed", "flush_wanted", "append_wanted"):
        positions.initialise(name, recovered.log_end)
    positions.initialise("wrote_timestamp", recovered.last_timestamp_ms)
    for name in ("queued", "dispatched"):
        positions.initialise(name, recovered.dispatch_from)
    last = min(recovered.last_record, recovered.dispatch_from)
    positions.initialise("dispatched_record", last)
    positions.initialise("queue_count", queues)
    positions.initialise("log_start", recovered.log_start)
    positions.initialise("read_only", QUARANTINE if recovered.quarantined else 0)


def finish_store(store: OpenStore, config: Config) -> bool:
    """Leave a store that RocketMQ calls clean; whether it is. The actors have stopped.

    When something is not on disk or not dispatched, `abort` stays, and with it the shared memory,
    and the next start recovers.
    """
    positions = store.positions
    if positions["read_only"]:
        _leave_read_only(store)
        return False
    wrote = positions["wrote"]
    whole = all(positions[name] == wrote for name in ("committed", "flushed", "dispatched"))
    if not whole or positions["flush_error"]:
        return False
    # An empty store keeps its first segment; behind the log's end nothing stays. The last one goes
    # first, and for certain before the next: a log with a hole is none.
    bases = segment_bases(store.paths.commit_log, config.mapped_file_size_commit_log_bytes)
    for base in reversed([base for base in bases if base >= max(wrote, 1)]):
        (store.paths.commit_log / segment_name(base)).unlink()
        crash_point("shutdown.mid_unlink")
        sync_directory(store.paths.commit_log)
    keep_index_state(store.paths, config, store.run, wrote)
    crash_point("shutdown.before_abort_removed")
    store.paths.abort.unlink()
    crash_point("shutdown.after_abort_removed")
    sync_directory(store.paths.root)
    remove_run_directory(store.run)
    return True


def _leave_read_only(store: OpenStore) -> None:
    """Leave a damaged store as it was found; a clean one looks clean to RocketMQ again."""
    if store.recovered.mode == "clean":
        store.paths.abort.unlink()
        sync_directory(store.paths.root)
    remove_run_directory(store.run)
