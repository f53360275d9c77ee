"""How much of its disk a store takes, what retention has deleted, and when the disk will be full.

Files that are allocated whole are only counted: no request walks thousands of directories.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from penstock.actors.monitor.history import History
from penstock.actors.monitor.reading import Reading
from penstock.shared.errors import PenstockError
from penstock.shared.layout import CQ_ENTRY_BYTES
from penstock.shared.process.disk_full import used_percent
from penstock.shared.store.deletions import load_deletions
from penstock.shared.store.retention_clock import held_ms

SHOWN_DELETIONS = 20
_NEVER_S = 10 * 365 * 86_400


class Room(NamedTuple):
    """Bytes of a disk, as an ordinary user may use them."""

    size: int
    free: int


def disk(reading: Reading, history: History) -> dict[str, Any]:
    positions, config = reading.positions, reading.config
    return {
        "files": {
            "commitlog": _directory(reading.paths.commit_log),
            "consumequeue": _queues(reading),
            "index": _directory(reading.paths.index),
        },
        "log": {"start": positions["log_start"], "end": positions["wrote"]},
        "disk_full_percent": positions["disk_full"] or None,
        "refuses_above_percent": config.disk_space_warning_level_ratio_percent,
        **filling(reading, history),
        "retention": {
            "file_reserved_time_h": config.file_reserved_time_h,
            "delete_when": config.delete_when,
            "clean_file_forcibly_enable": config.clean_file_forcibly_enable,
            "expire_archived_only": config.expire_archived_only,
            "clock_held_ms": held_ms(reading.paths.retention, reading.clock),
            "deleted_segments": positions["deleted_segments"],
        },
        "deletions": _deletions(reading),
    }


def filling(reading: Reading, history: History) -> dict[str, Any]:
    """How full the disk is, and when it will be full: the part of `disk` that costs nothing."""
    room = room_of(reading.paths.commit_log)
    return {
        "disk": None if room is None else room._asdict(),
        "disk_used_percent": used_percent(reading.positions["disk_used"]),
        "bytes_per_s": history.bytes_per_s(),
        "full_in_s": full_in_s(reading, history),
    }


def full_in_s(reading: Reading, history: History) -> float | None:
    """In how many s the disk will refuse messages, if the log grows as in the last 15 minutes and
    nothing expires; None if that is unknown, or years away."""
    room, rate = room_of(reading.paths.commit_log), history.bytes_per_s()
    if room is None or not rate:
        return None
    limit = reading.config.disk_space_warning_level_ratio_percent
    # allocated ahead of the messages: used on the disk, but still room for them
    ahead = max(0, reading.positions["allocated"] - reading.positions["wrote"])
    left = room.free + ahead - room.size * (100 - limit) // 100
    found = max(0, left) / rate
    return found if found < _NEVER_S else None


def room_of(path: Path) -> Room | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    used = found.f_blocks - found.f_bfree
    return Room((used + found.f_bavail) * found.f_frsize, found.f_bavail * found.f_frsize)


def _directory(path: Path) -> dict[str, int] | None:
    """Its files, counted one by one, because there are few."""
    try:
        with os.scandir(path) as entries:
            files = [each for each in entries if each.is_file()]
    except FileNotFoundError:
        return {"files": 0, "bytes": 0}
    except OSError:
        return None
    sizes = []
    for each in files:
        with suppress(FileNotFoundError):  # just deleted
            sizes.append(each.stat().st_size)
    return {"files": len(sizes), "bytes": sum(sizes)}


def _queues(reading: Reading) -> dict[str, int]:
    """Counted by the queue table, because a queue's files are allocated whole."""
    size = reading.config.mapped_file_size_consume_queue_bytes
    entries, files = size // CQ_ENTRY_BYTES, 0
    for topic in reading.topics_with_queues():
        for slot in reading.queues.queues(topic).values():
            low, high = reading.queues.range(slot)
            files += -(-high // entries) - low // entries
    return {"files": files, "bytes": files * size}


def _deletions(reading: Reading) -> list[Any] | None:
    try:
        rows: list[Any] = msgspec.to_builtins(load_deletions(reading.paths))
    except (PenstockError, OSError):
        return None
    return rows[: -SHOWN_DELETIONS - 1 : -1]
