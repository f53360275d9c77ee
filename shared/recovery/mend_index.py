"""Start-up of the index, where it is not as it was left: recover_index.py says when that is."""

from __future__ import annotations

from penstock.shared.errors import OffsetOutOfRange
from penstock.shared.files.durable import sync_directory
from penstock.shared.formats.index_layout import Geometry
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

# What a start reads of the log to complete an index: seconds.
CATCH_UP_BYTES = 1 << 30


def repair_index(store: StoreSurvey, recovered: Recovered, *, known: bool, now_ms: int) -> str:
    """Make the index whole; a remark, or "". `known` is one that a run of Penstock has left.

    Where `message_index_enable` is on, it then has what the log has below `dispatch_from`, unless
    the remark says what is missing, and nothing from there on, where the reput begins. All of it is
    durable on return. No reput may run. Raises StoreDamaged for a file of another geometry,
    and OSError.
    """
    paths, config = store.paths, store.config
    enabled, geometry = config.message_index_enable, index_geometry(config)
    stored_ms = _stored_ms(store)
    if recovered.mode == "unclean":
        # With the last run's memory no power has failed: the page cache has every write, and a cut
        # is enough. Without it headers and slots may be older or newer than the items.
        if known and not recovered.from_memory:
            _mend(paths, geometry, recovered.dispatch_from, stored_ms)
        elif not known and enabled:
            _drop_newer(paths, geometry)
    if paths.index.exists():
        sync_directory(paths.index)  # also of what a start before this one has removed
    files = IndexFiles(paths.index, paths.staging, geometry, lambda: now_ms)
    try:
        # The reput puts again what is cut from `dispatch_from` on. Where the index is switched off
        # nobody would, so only what the log does not have goes.
        files.cut(recovered.dispatch_from if enabled else recovered.log_end, stored_ms)
        files.clear()
        return _catch_up(store, files, recovered) if enabled and not known else ""
    finally:
        files.close()


def _mend(paths: StorePaths, geometry: Geometry, offset: int, stored_ms: StoredMs) -> None:
    """Make files again that are not known to be whole on disk.

    A full one of no later time than the checkpoint's is, if all of its records are below `offset`:
    one that was full once, and then cut by a start, may be about to become full again.
    """
    full_ms = load_checkpoint(paths.checkpoint).index_timestamp_ms
    for path in index_files(paths.index):
        file = IndexFile(path, geometry, writable=True)
        header = file.header
        is_whole = header.next_item >= geometry.items and header.end_timestamp_ms <= full_ms
        if not is_whole or header.end_offset >= offset:
            file.repair(offset, stored_ms)
        file.close()


def _drop_newer(paths: StorePaths, geometry: Geometry) -> None:
    """RocketMQ's rule after a crash, for an index of which nobody knows who wrote it last.

    What the dropped files had `_catch_up` puts in again. The removals are not durable on return:
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

    Only for an index that no run of Penstock vouches for. With more than CATCH_UP_BYTES to read it
    is left as it is: a broker that answers most queries now is better than one that starts in
    minutes, and the remark that is returned names the command.
    """
    start, stop = store.log_start, recovered.dispatch_from
    if files.end_offset is not None:
        # That record itself may be there with a part of its keys, so it is cut below, and put again
        # as a whole.
        start = max(start, files.end_offset)
    if stop - start > CATCH_UP_BYTES:
        return (
            f"{stop - start} bytes of the log, from offset {start} on, are not in the index: "
            f"queries by key find nothing there until: {rebuild_index(store.paths.root)}"
        )
    files.cut(start, _stored_ms(store))
    index_log(store, files, start, stop)
    # A put syncs nothing, and a file that became full is not open any more.
    for path in index_files(store.paths.index):
        file = IndexFile(path, files.geometry)
        file.sync()
        file.close()
    return ""


def _stored_ms(store: StoreDirectory) -> StoredMs:
    """The store time of the record at a log offset, from the files, in ms.

    None where the log has expired: then the item's own time will do, which is in seconds.
    """

    def stored_ms(offset: int) -> int | None:
        try:
            return store_timestamp_ms(store.read_log(offset, SMALLEST_RECORD_BYTES), 0)
        except OffsetOutOfRange:
            return None

    return stored_ms
