"""What `store info` shows of a store directory, gathered without walking the whole log.

A running broker may delete files meanwhile. If the parts do not fit together, all are gathered
again.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path
from typing import Any

import msgspec

from penstock.shared.errors import FilterError, OffsetOutOfRange, StoreDamaged, StoreUnavailable
from penstock.shared.files.segments import Problem, shown
from penstock.shared.filters.message_filter import parse_filter
from penstock.shared.formats.index_layout import Geometry
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_crc import Checksum
from penstock.shared.formats.record_layout import BLANK
from penstock.shared.index.directory import index_files, read_index_header
from penstock.shared.store.consumer_filters import load_consumer_filters
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.geometry import Size, store_sizes
from penstock.shared.store.geometry_search import ITEMS, SLOTS
from penstock.shared.store.topics import load_topics

_FLOCK = struct.Struct("hhqqi4x")  # type, whence, start, length, pid: Linux's 64-bit struct flock


# How many times to list a store whose broker deletes files meanwhile, before giving up.
_LOOKS = 100


def gather(store: StoreDirectory) -> dict[str, Any]:
    """Everything as plain data, ready for JSON. Raises StoreUnavailable if it changes too fast."""
    for _ in range(_LOOKS):
        try:
            return _gather(store)
        except (FileNotFoundError, OffsetOutOfRange) as error:
            gone = error
            store.refresh()
    raise StoreUnavailable(
        "files of the store went away while it was looked at",
        gone,
        "the broker deletes what has expired; run the command again",
    )


def _gather(store: StoreDirectory) -> dict[str, Any]:
    paths = store.paths
    log_end = find_log_end(store)
    problems = [*store.problems]
    try:
        sizes = store_sizes(paths)
    except StoreDamaged:
        sizes = {}  # the damage is already listed among the problems
    queues = []
    for queue in store.queues():
        problems += queue.problems
        queues.append(
            {
                "topic": queue.topic,
                "queue_id": queue.queue_id,
                "min_offset": queue.min_offset,
                "max_offset": queue.max_offset,
            }
        )
    try:
        topics = load_topics(paths.topics).all() if paths.topics.exists() else {}
    except StoreDamaged as error:
        topics = {}
        problems.append(Problem("topics", shown(paths.topics), 0, None, str(error)))
    try:
        filters = load_consumer_filters(paths.consumer_filters).all()
    except StoreDamaged as error:
        filters = []
        problems.append(Problem("filters", shown(paths.consumer_filters), 0, None, str(error)))
    return {
        "directory": shown(paths.root),
        "clean": not store.is_unclean,
        "abort": store.is_unclean,
        "locked_by_pid": lock_holder(paths.lock),
        "log_start": store.log_start,
        "log_end": log_end,
        "sizes": [
            {"key": key, "value": size.value or None, "from": size.origin}
            for key, size in sizes.items()
        ],
        "segments": [
            {
                "file": segment.path.name,
                "size": segment.size,
                "used_bytes": min(max(log_end - segment.base, 0), segment.size),
            }
            for segment in store.segments
        ],
        "queues": queues,
        "topics": topics,
        "consumer_filters": [_filter(entry) for entry in filters],
        "checkpoint": msgspec.to_builtins(store.checkpoint())
        if paths.checkpoint.exists()
        else None,
        "index_files": [_index(path, _index_bytes(sizes)) for path in index_files(paths.index)],
        "problems": msgspec.to_builtins(problems),
    }


def _filter(entry: dict[str, Any]) -> dict[str, Any]:
    """A saved filter, and whether Penstock understands it."""
    try:
        parse_filter(entry["expressionType"], entry["expression"])
        problem = ""
    except FilterError as error:
        problem = str(error)
    return {
        "topic": entry.get("topic"),
        "group": entry.get("consumerGroup"),
        "type": entry["expressionType"],
        "expression": entry["expression"],
        "dead": entry["deadTime"] >= entry["bornTime"],
        "problem": problem,
    }


def find_log_end(store: StoreDirectory) -> int:
    """Where the last whole record ends. The newest queue entries are a shortcut to it."""
    newest = [
        int(queue.entries(queue.max_offset - 1, queue.max_offset)["offset"][0])
        for queue in store.queues()
        if queue.max_offset > queue.min_offset
    ]
    start = store.log_start
    for segment in store.segments:
        if any(store.read_log(segment.base, min(BLANK.size, segment.size))):
            start = segment.base
    inside = sorted((offset for offset in newest if offset > start), reverse=True)
    start = next((offset for offset in inside if _is_record(store, offset)), start)
    end = start
    for position, found, size, _, _ in store.scan_log(start, checksum=Checksum.NONE):
        if found in (Kind.RECORD, Kind.BLANK):
            end = position + size
    return end


def _is_record(store: StoreDirectory, position: int) -> bool:
    if position >= store.files_end:
        return False
    _, found, _, _, _ = next(store.scan_log(position, checksum=Checksum.NONE))
    return found is Kind.RECORD


def lock_holder(path: Path) -> int | None:
    """The process that holds the store's lock, if one of this machine does."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    finally:
        os.close(fd)
    return None if kind == fcntl.F_UNLCK else int(pid)


def _index_bytes(sizes: dict[str, Size]) -> int:
    """The size of an index file in bytes; 0 if the store does not say."""
    known = [sizes[key].value for key in (SLOTS, ITEMS) if key in sizes and sizes[key].value]
    return Geometry(*known).file_bytes if len(known) == 2 else 0


def _index(path: Path, whole_bytes: int) -> dict[str, Any]:
    size = path.stat().st_size
    header = read_index_header(path) or (0,) * 6
    return {
        "file": path.name,
        "size": size,
        "fits_geometry": size == whole_bytes if whole_bytes else None,
        "items": max(header[5] - 1, 0),
        "begin_timestamp_ms": header[0],
        "end_timestamp_ms": header[1],
        "begin_offset": header[2],
        "end_offset": header[3],
    }
