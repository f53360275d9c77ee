"""Opens a store for a broker run. Only the supervisor does this, before any actor runs.

Order of a start: directories, lock, ports, sizes of files, recovery, shared memory, run.json,
abort. From `abort` on the store counts as unclean; close_store.py removes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from penstock.shared import faults
from penstock.shared.clock import Clock
from penstock.shared.config import Config
from penstock.shared.errors import SegmentUnavailable, StoreUnavailable
from penstock.shared.faults import crash_point
from penstock.shared.files.disk_space import lacking_room
from penstock.shared.files.durable import make_directory, replace_file
from penstock.shared.files.mounts import is_overlay, move_up
from penstock.shared.index.directory import index_files
from penstock.shared.layout import StorePaths
from penstock.shared.log.damage import QUARANTINE, save_quarantine
from penstock.shared.memory.positions import PAGE_SIZE, Positions, create_positions
from penstock.shared.memory.queue_table import QueueTable, create_queue_table
from penstock.shared.memory.roster import ROSTER
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
from penstock.shared.memory.run_settings import keep_settings
from penstock.shared.memory.transient_store_pool import create_pool
from penstock.shared.messaging.system_topics import QUEUES
from penstock.shared.next_steps import look_at, quoted
from penstock.shared.process.listeners import (
    GATEWAY_CLIENTS,
    Listener,
    Listeners,
    listen_for_monitor,
    listen_ipc,
    listen_tcp,
)
from penstock.shared.queue.deleted_topics import keep_needed
from penstock.shared.queue.earlier_entries import EARLIER_ENTRIES
from penstock.shared.queue.known_queues import make_known_queues
from penstock.shared.recovery.check_files import check_files
from penstock.shared.recovery.cut_queues import forget_topics, recover_queues
from penstock.shared.recovery.history import recovery_lines
from penstock.shared.recovery.recover_index import keep_index_state, recover_index
from penstock.shared.recovery.recover_log import Recovered, recover_store
from penstock.shared.store.checkpoint_file import make_checkpoint
from penstock.shared.store.geometry import check_sizes, keep_sizes
from penstock.shared.store.lock import check_mounts, check_place, lock_store
from penstock.shared.store.start_marker import note_end, note_start
from penstock.shared.store.survey import StoreSurvey
from penstock.shared.store.watermark import Watermark, make_watermark
from penstock.shared.wire.introduction import ENDPOINT_OF

_SPARE_BYTES = 4 << 20
# The segment size that a start proposes if the disk has no room for a larger one.
SMALL_SEGMENT_BYTES = 16 << 20


class OpenStore(NamedTuple):
    """A store that is ready for its actors: locked, recovered, and named by `abort` as this run's.

    The end of the process releases the lock, whatever ends it; close_store.py releases the rest.
    """

    paths: StorePaths
    lock: int  # the descriptor that holds the lock; it must stay open for the whole run
    run: Run
    positions: Positions
    recovered: Recovered
    remarks: list[str]  # lines that the supervisor is to print on standard error
    listeners: Listeners  # the actors inherit them, so a replaced actor keeps its port


def open_store(config: Config, clock: Clock) -> OpenStore:
    """Lock, recover, and set up shared memory. Raises PenstockError, having changed nothing that
    counts: the next try begins from the same state.

    It raises StoreLocked if another broker has the store, StoreDamaged if a file has to be mended
    first, ConfigError for sizes other than the store's, SegmentUnavailable if a new store has no
    room, StoreUnavailable for whatever else the machine refuses. Ports and lock are then released.
    """
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
            check_mounts(paths)
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
    """Do the rest of a start, under the lock. If it fails, it closes the ports that it opened."""
    last_run = read_last_run(paths)
    if last_run is not None:
        # An actor that is still dying may write for as long as it lives.
        await_actors_gone(last_run)
    remove_strays(paths.root, last_run)
    with ExitStack() as sockets:
        # Ports first: a start that cannot listen has not touched the store.
        listeners: dict[str, Listener] = {}
        for clients, name in _endpoints():
            listeners[name] = listen_tcp(config.bind_host, config.ports[name], clients)
            sockets.callback(listeners[name].socket.close)
        for name, port in config.gateway_ports.items():
            listeners[name] = listen_tcp(config.bind_host, port, GATEWAY_CLIENTS)
            sockets.callback(listeners[name].socket.close)
        if config.gateway_enable and config.tls_server_cert_path:
            # checked here, too: the gateway alone would fail and be replaced again and again
            from penstock.shared.files.certificates import server_tls

            server_tls(config)
        listeners |= (monitor := listen_for_monitor(config)).listeners
        for each in monitor.listeners.values():
            sockets.callback(each.socket.close)
        check_sizes(paths, config)
        with StoreSurvey(paths, config) as survey:
            check_files(survey)
            # Sizes are written down once they are known to fit the files, and before a file is made
            # with them. A crash in between leaves sizes without files, and those bind nobody.
            keep_sizes(paths, config)
            recovered, deleted, remarks = _recover(survey, last_run, clock)
            remarks.append(monitor.remark)
            store = _begin_run(survey, clock, lock, recovered, remarks, listeners, sockets)
            # the queues of all deleted topics have been put aside by now
            for name in ("deleted_topics", "forgotten_topics"):
                store.positions.initialise(name, deleted)
        sockets.pop_all()
    return store


def _endpoints() -> list[tuple[str, str]]:
    """(its clients, its name) of each endpoint that some actor serves."""
    served = {name for row in ROSTER for name in row.serves}
    return [(clients, name) for clients, name in ENDPOINT_OF.items() if name in served]


def _recover(
    survey: StoreSurvey, last_run: Run | None, clock: Clock
) -> tuple[Recovered, int, list[str]]:
    """Bring the whole store to the state that the next run begins with. Returns what was recovered,
    the number of the last deletion of a topic, and remarks.

    The consume queues are the exception: they are cut when the queue table is filled, because one
    walk over the queues does both.
    """
    paths = survey.paths
    deleted = forget_topics(survey)
    recovered = recover_store(survey, last_run, deleted)
    deleted = keep_needed(paths.deleted_topics, deleted, recovered.log_start, recovered.log_end)
    _check_first_segment(survey)
    # If the start fails from here on, it has changed files, and the next one must not take for
    # durable what it reads.
    note_start(paths.starting)
    # The file bears witness for the next start, which must not take a log that has lost its end for
    # a shorter one.
    save_quarantine(paths, recovered.quarantined, clock.now_ms())
    remark = recover_index(survey, recovered, last_run, clock.now_ms())
    crash_point("recover.after_index")
    # Actors only open these files. They are made here, so that on a full disk the start fails.
    make_checkpoint(paths.checkpoint, recovered.checkpoint)
    make_known_queues(paths.known_queues)
    if last_run is not None:
        # all that it had is on disk now, and a small /dev/shm has no room for two runs
        remove_run_directory(last_run)
    return recovered, deleted.last, [faults.remark(), *recovered.restored_queues, remark]


def _begin_run(
    survey: StoreSurvey,
    clock: Clock,
    lock: int,
    recovered: Recovered,
    remarks: list[str],
    listeners: dict[str, Listener],
    sockets: ExitStack,
) -> OpenStore:
    """Make what the actors share, and say in the store whose run it is. `abort` comes last."""
    paths, config = survey.paths, survey.config
    with ExitStack() as undo:
        pool_bytes = config.transient_store_pool_bytes if config.transient_store_pool_enable else 0
        need_bytes = pool_bytes + PAGE_SIZE + _SPARE_BYTES
        run_id, directory, remark = new_run_directory(paths.root, need_bytes)
        undo.callback(remove_directory, directory)
        crash_point("start.new_run")
        # These sockets lie in the run directory, so they cannot be opened with the ports, before
        # recovery.
        for _, name in _endpoints():
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
        positions = _shared_memory(survey, run, pool_bytes, recovered)
        keep_settings(run, config)
        # From here on each file names this run, while `abort`, until it is replaced below, still
        # names the previous process, if any. After a crash in between, the next start believes none
        # of them, and rightly: nothing was written yet.
        write_run(paths, run)
        crash_point("start.after_run")
        keep_index_state(paths, config, run, recovered.dispatch_from)
        make_watermark(paths.watermark, _watermark(config, run, recovered))
        if is_overlay(paths.root):
            move_up(_written_in_place(survey, recovered.log_end))
        undo.pop_all()  # from here on the next start finds the directory, and removes it
    crash_point("start.before_abort")
    # the next start takes what is in shared memory only if `abort` names this run's process
    replace_file(paths.abort, str(os.getpid()).encode())
    note_end(paths.starting)
    found = recovery_lines(recovered, survey.paths)
    told = [each for each in (*remarks, remark, *found) if each]
    return OpenStore(paths, lock, run, positions, recovered, told, Listeners(listeners))


def _written_in_place(survey: StoreSurvey, log_end: int) -> Iterator[Path]:
    """The files to which actors will write what others read."""
    survey.refresh()  # queues have been cut
    yield from (each.path for each in survey.segments if each.end > log_end)
    # they are not mapped; but with a kernel before 4.19, and with FUSE, reads are like mappings
    yield from (each.segments[-1].path for each in survey.queues() if each.segments)
    yield from index_files(survey.paths.index)[-1:]


def _check_first_segment(survey: StoreSurvey) -> None:
    """Raise SegmentUnavailable if the store has no segment and the disk has no room for one: there
    is nothing that such a broker could serve."""
    if survey.segments:
        return
    paths, config = survey.paths, survey.config
    size = config.mapped_file_size_commit_log_bytes
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
    survey: StoreSurvey, run: Run, pool_bytes: int, recovered: Recovered
) -> Positions:
    """Make and fill what the actors share. The queues are cut on the way.

    The supervisor owns the positions page until the actors are forked; from then on each word has
    the owner that architecture.md names.
    """
    config = survey.config
    create_positions(run.positions)
    # The queues of RocketMQ's system topics do not use up max_queues, and any of them may get a
    # message.
    create_queue_table(run.queues, config.max_queues + sum(QUEUES.values()))
    if pool_bytes:
        create_pool(run.pool, pool_bytes)
    table = QueueTable(run.queues, writable=True)
    is_done = recovered.dispatch_from == recovered.log_end
    queues = recover_queues(
        survey,
        recovered.queues_good_to,
        table,
        again=recovered.start_failed,
        keep=None if is_done else run.path / EARLIER_ENTRIES,
        doubted=range(recovered.dispatch_from, recovered.log_end),
    )
    table.close()
    crash_point("recover.after_cq_fix")
    positions = Positions(run.positions, owner="supervisor")
    _initialise(positions, recovered, queues)
    size = config.mapped_file_size_commit_log_bytes
    # recovery has made the segments' names durable
    ends = [base + size for base in survey.log_bases()]
    positions.initialise("allocated", max([recovered.log_end // size * size, *ends]))
    return positions


def _watermark(config: Config, run: Run, recovered: Recovered) -> Watermark:
    """The run's first watermark. All of the log is on disk now, so `flushed` is the log's end.

    It repeats the words of the checkpoint that were believed, whatever the file itself says.
    """
    return Watermark(run.run_id, config.sync_flush, recovered.log_end, recovered.checkpoint)


def _initialise(positions: Positions, recovered: Recovered, queues: int) -> None:
    """Say in the positions page where each stage goes on. No actor runs, so any order will do.

    An actor has no recovery mode: it reads its position and goes on, whether after a start or after
    the death of its predecessor.
    """
    for name in ("wrote", "committed", "flushed", "flush_wanted", "append_wanted"):
        positions.initialise(name, recovered.log_end)
    # Store times never go back along the log, so the writer goes on with the newest record's,
    # whatever the clock says now.
    positions.initialise("wrote_timestamp", recovered.last_timestamp_ms)
    for name in ("queued", "dispatched"):
        positions.initialise(name, recovered.dispatch_from)
    # A checkpoint takes a record only when `dispatched` is past it, so this may not be past
    # `dispatched`.
    last = min(recovered.last_record, recovered.dispatch_from)
    positions.initialise("dispatched_record", last)
    positions.initialise("queue_count", queues)
    positions.initialise("run_began", recovered.log_end)
    positions.initialise("log_start", recovered.log_start)
    # 1 is before all of the log: nothing of it expires until the writer has stored its own value
    positions.initialise("unsaved_offsets", 1)
    positions.initialise("read_only", QUARANTINE if recovered.quarantined else 0)
