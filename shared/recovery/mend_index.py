"""Start-up: mends an index that is not as it was left. recover_index.py says when that is."""

from __future__ import annotations

import os

from penstock.shared.errors import OffsetOutOfRange
from penstock.shared.files.bad_sectors import read_at
from penstock.shared.files.durable import opened, replace_lost, sync_directory
from penstock.shared.formats.index_layout import HEADER, Geometry, decode_header
from penstock.shared.formats.record_layout import SMALLEST_RECORD_BYTES, store_timestamp_ms
from penstock.shared.index.directory import index_files, index_geometry
from penstock.shared.index.index_file import IndexFile, IndexFiles, StoredMs
from penstock.shared.layout import StorePaths
from penstock.shared.next_steps import rebuild_index
from penstock.shared.recovery.build_index import index_log
from penstock.shared.recovery.recover_log import Recovered
from penstock.shared.store.checkpoint_file import load_checkpoint
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.survey import StoreSurvey

# A start reads at most this much of the log to complete an index, which takes seconds.
CATCH_UP_BYTES = 1 << 30


def repair_index(store: StoreSurvey, recovered: Recovered, *, known: bool, now_ms: int) -> str:
    """Make the index whole. Returns a remark, or "". `known` says that a run of Penstock has left
    this index.

    If `message_index_enable` is on, the index then has what the log has below `dispatch_from`,
    except what the remark says is missing, and nothing from there on, where the reput begins. All
    of it is durable on return. No reput may run. Raises StoreDamaged for a file of another
    geometry, and OSError.
    """
    paths, config = store.paths, store.config
    enabled, geometry = config.message_index_enable, index_geometry(config)
    stored_ms = _stored_ms(store)
    if recovered.mode == "unclean":
        # If the last run's memory is there, no power has failed: the page cache has every write,
        # and a cut is enough. Without it, headers and slots may be older or newer than the items.
        if known and not recovered.from_memory:
            _mend(paths, geometry, recovered.dispatch_from, stored_ms)
        elif not known and enabled:
            _drop_newer(paths, geometry)
    if paths.index.exists():
        sync_directory(paths.index)  # an earlier start, too, may have removed files
    files = IndexFiles(paths.index, paths.staging, geometry, lambda: now_ms)
    try:
        # What is cut from `dispatch_from` on, the reput puts again. With the index switched off it
        # would not, so then only items past the log's end are cut.
        files.cut(recovered.dispatch_from if enabled else recovered.log_end, stored_ms)
        files.clear()
        return _catch_up(store, files, recovered) if enabled and not known else ""
    finally:
        files.close()


def _mend(paths: StorePaths, geometry: Geometry, offset: int, stored_ms: StoredMs) -> None:
    """Make files again, from their items, that are not known to be whole on disk.

    A full file is known to be whole if its time is not later than the checkpoint's, and all of its
    records are below `offset`. The second condition is for a file that was full once, was cut by a
    start, and may be about to become full again.
    """
    full_ms = load_checkpoint(paths.checkpoint).index_timestamp_ms
    for path in index_files(paths.index):
        with opened(str(path), os.O_RDWR) as handle:
            header = decode_header(read_at(handle, HEADER.size, 0))
            is_whole = header.next_item >= geometry.items and header.end_timestamp_ms <= full_ms
            is_left = is_whole and header.end_offset < offset
            if not is_left:
                # before it is mapped: what is stored in a page that was lost there is lost, too
                replace_lost(handle, 0, geometry.file_bytes)
        file = IndexFile(path, geometry, writable=True)
        if not is_left:
            file.repair(offset, stored_ms)
        file.close()


def _drop_newer(paths: StorePaths, geometry: Geometry) -> None:
    """Apply RocketMQ's rule after a crash to an index of which nobody knows who wrote it last.

    `_catch_up` puts in again what the dropped files had. The removals are not durable on return:
    the caller syncs the directory.
    """
    full_ms = load_checkpoint(paths.checkpoint).index_timestamp_ms
    for path in index_files(paths.index):
        file = IndexFile(path, geometry)
        if file.header.end_timestamp_ms > full_ms:
            path.unlink()
        file.close()


def _catch_up(store: StoreDirectory, files: IndexFiles, recovered: Recovered) -> str:
    """Put in what the log has after the newest record of the index.

    Only for an index that no run of Penstock vouches for. If there are more than CATCH_UP_BYTES to
    read, the index is left as it is: a broker that answers most queries now is better than one that
    starts in minutes. The remark that is returned names the command that completes it.
    """
    start, stop = store.log_start, recovered.dispatch_from
    if files.end_offset is not None:
        # The index may have only a part of that record's keys. So the record is cut below, and put
        # again as a whole.
        start = max(start, files.end_offset)
    if stop - start > CATCH_UP_BYTES:
        return (
            f"{stop - start} bytes of the log, from offset {start} on, are not in the index: "
            f"queries by key find nothing there until: {rebuild_index(store.paths.root)}"
        )
    files.cut(start, _stored_ms(store))
    index_log(store, files, start, stop)
    # A put syncs nothing, and a file that became full is not open any more. So each is synced here.
    for path in index_files(store.paths.index):
        file = IndexFile(path, files.geometry)
        file.sync()
        file.close()
    return ""


def _stored_ms(store: StoreDirectory) -> StoredMs:
    """Returns a function: log offset -> store time in ms of the record there, from the log's files.

    It returns None where the log has expired: then the item's own time, in seconds, will do.
    """

    def stored_ms(offset: int) -> int | None:
        try:
            return store_timestamp_ms(store.read_log(offset, SMALLEST_RECORD_BYTES), 0)
        except OffsetOutOfRange:
            return None

    return stored_ms
