"""A store of any size that takes next to no disk: some records in each segment, the rest a blank.

It is a valid store: log, consume queues and index are whole, and `penstock store verify` reports
nothing. It stands for a store that was used for a long time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from penstock.shared.config import Config
from penstock.shared.files.durable import make_directory
from penstock.shared.formats.properties import UNIQ_KEY, encode_properties
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_layout import BLANK, MAGIC_BLANK
from penstock.shared.index.directory import index_geometry
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.loops.active import QueueNumbers
from penstock.shared.loops.forms import rows_of
from penstock.shared.names import MAX_QUEUES_PER_TOPIC
from penstock.shared.queue.windows import QueueWindows
from penstock.shared.recovery.build_index import rebuild_index
from penstock.shared.recovery.recover_index import index_is_rebuilt
from penstock.shared.store.directory import StoreDirectory

BODY = b"one of many"


def make_sparse_store(
    root: Path, config: Config, segments: int, queues: int, moved: Callable[[int, int], None]
) -> None:
    """Make a clean store of `segments` segments, in which each queue has at least one message."""
    paths = StorePaths(root)
    for directory in (paths.commit_log, paths.consume_queue, paths.staging):
        make_directory(directory)
    size = config.mapped_file_size_commit_log_bytes
    each = -(-max(queues, segments) // segments)
    began_ms = int(time.time() * 1000) - 1000 * (segments + 10)
    numbers = QueueNumbers()
    windows = QueueWindows(paths, config, numbers)
    for segment in range(segments):
        raw, rows, base = b"", b"", segment * size
        for number in range(segment * each, (segment + 1) * each):
            record = _record(number, queues, base + len(raw), began_ms + 1000 * segment)
            entry = ENTRY.pack(record.physical_offset, len(encode_record(record)), 0)
            queue = numbers.number(record.topic.encode(), record.queue_id)
            rows += rows_of(queue, record.queue_offset, entry)
            raw += encode_record(record)
        if segment < segments - 1:
            raw += BLANK.pack(size - len(raw), MAGIC_BLANK)
        with (paths.commit_log / segment_name(base)).open("wb") as file:
            file.write(raw)
            file.truncate(size)
        windows.put(rows)
        moved(segment + 1, segments)
    windows.close()
    with StoreDirectory(root) as store:
        rebuild_index(store, paths.index, paths.staging, index_geometry(config), lambda: began_ms)
    index_is_rebuilt(paths)


def named(number: int, queues: int) -> tuple[str, str]:
    """Topic and unique key of the store's message with this number, counted from 0."""
    return f"old-{number % queues // MAX_QUEUES_PER_TOPIC}", f"{number:032X}"


def _record(number: int, queues: int, position: int, stored_ms: int) -> Record:
    topic, key = named(number, queues)
    return Record(
        topic,
        BODY,
        encode_properties({UNIQ_KEY: key}),
        queue_id=number % queues % MAX_QUEUES_PER_TOPIC,
        queue_offset=number // queues,
        physical_offset=position,
        born_timestamp_ms=stored_ms,
        store_timestamp_ms=stored_ms,
    )
