"""Start-up of the index, and building it from the log: the part that is missing, or all of it.

A record is in the index under its UNIQ_KEY and under each word of its KEYS, unless it rolls a
transaction back. At a start, everything below `dispatch_from` has to be there, and nothing else:

    after our own orderly stop     it is there
    after a crash of our own       items below `dispatch_from` are on disk, whatever became of the
                                   rest: files are made anew from their items
    after anybody else             RocketMQ's rule: after a crash, files go that are newer than the
                                   checkpoint's index time. Then what the log has behind the last
                                   item is put in, where that is little; else a remark says so

Which of these it is stands in penstock/index.json: the run that kept the index, how far the index
was whole then, and the newest file's name. What an unknown hand did in between does not fit it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.shared.checkpoint_file import load_checkpoint
from penstock.shared.config import Config
from penstock.shared.durable_files import replace_file, sync_directory
from penstock.shared.errors import OffsetOutOfRange
from penstock.shared.index_file import Geometry, KeyBatch
from penstock.shared.index_files import (
    IndexFile,
    IndexFiles,
    StoredMs,
    index_files,
    index_geometry,
)
from penstock.shared.layout import StorePaths
from penstock.shared.properties import KEYS, UNIQ_KEY, find_property
from penstock.shared.record import (
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_ROLLBACK,
    Found,
    store_timestamp_ms,
)
from penstock.shared.record_crc import Checksum
from penstock.shared.record_outline import Outline, outline
from penstock.shared.recovery import Recovered
from penstock.shared.run_directory import Run
from penstock.shared.store_directory import StoreDirectory

# What a start reads of the log to complete an index: seconds.
CATCH_UP_BYTES = 1 << 30

_KEYS, _UNIQ_KEY = KEYS.encode(), UNIQ_KEY.encode()
_BATCH_KEYS = 1 << 16

Progress = Callable[[int, int], None]


class IndexState(msgspec.Struct, frozen=True):
    """penstock/index.json: what the last run that kept the index knew of it."""

    run_id: str  # "" when it was rebuilt since
    whole_to: int  # everything below this log offset is in the index
    newest: str  # the newest file's name, "" without files
    aborts: tuple[str, ...]  # what `abort` may say while no other broker has had the store


def recover_index(
    paths: StorePaths, config: Config, recovered: Recovered, last_run: Run | None, now_ms: int
) -> str:
    """Bring the index to hold what it has to; a remark, or "". Raises StoreDamaged, OSError.

    Doing it twice, or dying half way and doing it again, ends in the same state.
    """
    enabled = config.message_index_enable
    for path in index_files(paths.index):
        if path.stat().st_size == 0:  # a RocketMQ died making it
            path.unlink()
    if not enabled and not index_files(paths.index):
        return ""
    geometry = index_geometry(config)
    known = _is_known(paths, recovered, last_run)
    with StoreDirectory(paths.root) as store:
        stored_ms = _stored_ms(store)
        if recovered.mode == "unclean":
            if known:
                _mend(paths, geometry, recovered.dispatch_from, stored_ms)
            elif enabled:
                _drop_newer(paths, geometry)
        files = IndexFiles(paths.index, paths.half_made, geometry, lambda: now_ms)
        try:
            # with nobody to put it there again, only what the log does not have goes
            files.cut(recovered.dispatch_from if enabled else recovered.log_end, stored_ms)
            files.clear()
            return _catch_up(store, files, recovered) if enabled and not known else ""
        finally:
            files.close()


def keep_index_state(paths: StorePaths, config: Config, run: Run, whole_to: int) -> None:
    """Say that below `whole_to` the index is whole, and that `run` keeps it so from there.

    Called at a start before `abort` is ours, and at the end of a run before `abort` goes.
    """
    if config.message_index_enable:
        _write_state(paths, run.run_id, whole_to, (_abort(paths), str(run.supervisor_pid)))


def index_is_rebuilt(paths: StorePaths) -> None:
    """Say that the index on disk was just made from the log, while no broker had the store."""
    _write_state(paths, "", 0, (_abort(paths),))


def _write_state(paths: StorePaths, run_id: str, whole_to: int, aborts: tuple[str, ...]) -> None:
    files = index_files(paths.index)
    state = IndexState(run_id, whole_to, files[-1].name if files else "", aborts)
    replace_file(paths.index_state, msgspec.json.encode(state))


def _is_known(paths: StorePaths, recovered: Recovered, last_run: Run | None) -> bool:
    """Whether the index is as a run of ours left it, or a part of that."""
    try:
        state = msgspec.json.decode(paths.index_state.read_bytes(), type=IndexState)
    except (FileNotFoundError, UnicodeDecodeError, msgspec.MsgspecError):
        return False
    names = [path.name for path in index_files(paths.index)]
    if recovered.mode != "unclean":
        return state.whole_to == recovered.log_end and state.newest == (names or [""])[-1]
    run_id = "" if last_run is None else last_run.run_id
    if state.run_id not in ("", run_id) or _abort(paths) not in state.aborts:
        return False
    # a RocketMQ begins with dropping the file that was being filled
    return not state.newest or state.newest in names or names[:1] > [state.newest]


def _abort(paths: StorePaths) -> str:
    """The process that `abort` names; "" where there is none."""
    try:
        return paths.abort.read_text("ascii", "replace")
    except FileNotFoundError:
        return ""


def _mend(paths: StorePaths, geometry: Geometry, offset: int, stored_ms: StoredMs) -> None:
    """Make files anew that are not known to be whole on disk.

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
    full_ms = load_checkpoint(paths.checkpoint).index_timestamp_ms
    for path in index_files(paths.index):
        file = IndexFile(path, geometry)
        if file.header.end_timestamp_ms > full_ms:
            path.unlink()
        file.close()
    if paths.index.exists():
        sync_directory(paths.index)


def _catch_up(store: StoreDirectory, files: IndexFiles, recovered: Recovered) -> str:
    """Put in what the log has behind the newest record of the index."""
    start, stop = store.log_start, recovered.dispatch_from
    if files.end_offset is not None:
        # that record itself may be there with a part of its keys
        start = max(start, files.end_offset)
    if stop - start > CATCH_UP_BYTES:
        return (
            f"{stop - start} bytes of the log, from offset {start} on, are not in the index: "
            f"queries by key find nothing there until: penstock store rebuild {store.paths.root}"
        )
    files.cut(start, _stored_ms(store))
    index_log(store, files, start, stop)
    for path in index_files(store.paths.index):
        file = IndexFile(path, files.geometry)
        file.sync()
        file.close()
    return ""


def _stored_ms(store: StoreDirectory) -> StoredMs:
    """The store time of the record at a log offset, from the files."""

    def stored_ms(offset: int) -> int | None:
        try:
            left = store.segment_of(offset).end - offset
            return store_timestamp_ms(store.read_log(offset, min(left, 128)), 0)
        except OffsetOutOfRange:
            return None

    return stored_ms


class RebuiltIndex(NamedTuple):
    """What a rebuild has written."""

    files: int
    keys: int


def record_keys(record: Outline) -> tuple[bytes, bytes]:
    """(unique key, keys) that a record is to be indexed under; empty where there are none."""
    if record.sys_flag & SYS_TRANSACTION_MASK == SYS_TRANSACTION_ROLLBACK:
        return b"", b""
    return (
        find_property(record.properties, _UNIQ_KEY),
        find_property(record.properties, _KEYS),
    )


def rebuild_index(
    store: StoreDirectory,
    directory: Path,
    half_made: Path,
    geometry: Geometry,
    now_ms: Callable[[], int],
    progress: Progress | None = None,
) -> RebuiltIndex:
    """Index the whole log of `store` into `directory`, which holds no index file yet.

    Files grow in `half_made`, on the same file system. Damaged parts of the log are passed over.
    `progress` is told (bytes done, bytes in all). All is durable on return. Raises OSError.
    """
    files = IndexFiles(directory, half_made, geometry, now_ms)
    try:
        keys = index_log(store, files, store.log_start, None, progress)
    finally:
        files.close()
    made = index_files(directory)
    for path in made:
        file = IndexFile(path, geometry)
        file.sync()
        file.close()
    if made:
        sync_directory(directory)
    return RebuiltIndex(len(made), keys)


def index_log(
    store: StoreDirectory,
    files: IndexFiles,
    start: int,
    stop: int | None,
    progress: Progress | None = None,
) -> int:
    """Index the records in [start, stop) of the log, None for all; how many keys. Not synced."""
    total = (store.segments[-1].end if stop is None else stop) - start if store.segments else 0
    batch, keys = KeyBatch(), 0
    for position, found, _, record, _ in store.scan_log(start, checksum=Checksum.NONE):
        if stop is not None and position >= stop:
            break
        if found is Found.RECORD:
            fields = outline(record)
            unique_key, words = record_keys(fields)
            batch.add(fields.topic, unique_key, words, position, fields.store_timestamp_ms)
        if len(batch) >= _BATCH_KEYS:
            keys += len(batch)
            files.put(batch.entries())
            batch = KeyBatch()
            if progress:
                progress(position - start, total)
    if len(batch):
        files.put(batch.entries())
    return keys + len(batch)
