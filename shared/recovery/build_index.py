"""Builds the index from the log: all of it, or a part that is missing.

A record is in the index under its UNIQ_KEY and under each word of its KEYS, unless it rolls a
transaction back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.shared.files.durable import sync_directory
from penstock.shared.formats.index_chains import Entries, KeyBatch
from penstock.shared.formats.index_layout import Geometry
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_crc import Checksum
from penstock.shared.formats.record_outline import outline, record_keys
from penstock.shared.index.directory import index_files
from penstock.shared.index.index_file import IndexFile, IndexFiles
from penstock.shared.store.directory import StoreDirectory

# This many keys are hashed and put at once: numpy has a fixed cost for each call. The limit keeps
# a batch from growing with the log.
_BATCH_KEYS = 1 << 16

Progress = Callable[[int, int], None]


class RebuiltIndex(NamedTuple):
    """What a rebuild has written."""

    files: int
    keys: int  # items: a record with several keys has several


def rebuild_index(
    store: StoreDirectory,
    directory: Path,
    staging: Path,
    geometry: Geometry,
    now_ms: Callable[[], int],
    progress: Progress | None = None,
    walked: Iterable[Entries] | None = None,
) -> RebuiltIndex:
    """Index the whole log of `store` into `directory`, which holds no index file yet.

    `walked` has the log's entries if the caller has read the log already. Files grow in `staging`,
    on the same file system. Damaged parts of the log are passed over.
    `progress` is told (bytes done, bytes in all). All is durable on return. Raises OSError.
    """
    files = IndexFiles(directory, staging, geometry, now_ms)
    try:
        start = store.log_start
        entries = index_entries(store, start, None) if walked is None else walked
        keys = _put_all(files, entries, start, _length(store, start, None), progress)
    finally:
        files.close()
    # A put syncs nothing, and only the newest file was open. So all are synced here, once each.
    made = index_files(directory)
    for path in made:
        file = IndexFile(path, geometry)
        file.sync()
        file.close()
    if made:
        sync_directory(directory)
    return RebuiltIndex(len(made), keys)


def _length(store: StoreDirectory, start: int, stop: int | None) -> int:
    return (store.files_end if stop is None else stop) - start


def _put_all(
    files: IndexFiles,
    walked: Iterable[Entries],
    start: int,
    total: int,
    progress: Progress | None,
) -> int:
    """Put keys in log order; `progress` is told how far past `start` they are. Returns how many."""
    keys = 0
    for entries in walked:
        for first in range(0, len(entries.hashes), _BATCH_KEYS):
            files.put(entries.part(first, first + _BATCH_KEYS))
        keys += len(entries.hashes)
        if progress and len(entries.offsets):
            progress(int(entries.offsets[-1]) - start, total)
    return keys


def index_entries(store: StoreDirectory, start: int, stop: int | None) -> Iterator[Entries]:
    """The keys of the records that begin in [start, stop) of the log, in log order."""
    batch = KeyBatch()
    # A body's checksum does not cover the keys, which are properties. Comparing it would vouch for
    # nothing that is put here.
    for position, found, _, record, _ in store.scan_log(start, checksum=Checksum.NONE):
        if stop is not None and position >= stop:
            break
        if found is Kind.RECORD:
            fields = outline(record)
            unique_key, words = record_keys(fields)
            batch.add(fields.topic, unique_key, words, position, fields.store_timestamp_ms)
        if len(batch) >= _BATCH_KEYS:
            yield batch.entries()
            batch = KeyBatch()
    if len(batch):
        yield batch.entries()


def index_log(
    store: StoreDirectory,
    files: IndexFiles,
    start: int,
    stop: int | None,
    progress: Progress | None = None,
) -> int:
    """Index the records in [start, stop) of the log. Returns how many keys. Not synced.

    Both are log offsets at which a record begins; None is the log's end. `files` must hold no item
    of a record that begins at `start` or later: entries are added in log order, without a check
    whether they are there already. Raises OSError; then only a part of the keys may be there.
    """
    # The reput puts what begins at `stop`. A key that both put would be there twice.
    entries = index_entries(store, start, stop)
    return _put_all(files, entries, start, _length(store, start, stop), progress)
