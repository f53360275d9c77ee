"""Whether the store takes messages, by the positions page, and the errors if it does not."""

from __future__ import annotations

import os

from penstock.actors.writer.send_queue import BUSY_RETRY_MS
from penstock.shared.errors import BrokerBusy, PenstockError, SegmentUnavailable, StoreUnavailable
from penstock.shared.files.disk_space import describe_disk
from penstock.shared.files.durable import NO_ROOM
from penstock.shared.layout import StorePaths
from penstock.shared.log.damage import read_only_error
from penstock.shared.memory.positions import Positions
from penstock.shared.next_steps import look_at, quoted

# How long a frame waits for a segment, or for room in the pool.
ALLOCATE_TIMEOUT_MS = 5000


def check_writable(positions: Positions, paths: StorePaths) -> None:
    """Raise StoreUnavailable if nothing may be written any more in this run."""
    if positions["flush_error"]:
        raise flush_failed(positions)
    if positions["read_only"]:
        raise read_only_error(paths)


def flush_failed(positions: Positions) -> StoreUnavailable:
    return StoreUnavailable(
        "the store is read-only",
        f"a flush failed: {os.strerror(positions['flush_error'])}",
        "look at the disk, then restart the broker: penstock up",
    )


def commit_failed(positions: Positions, paths: StorePaths) -> StoreUnavailable:
    error, used = os.strerror(positions["commit_error"]), describe_disk(paths.commit_log)
    return StoreUnavailable(
        "the log cannot be written",
        f"{error}; {used}",
        "the message is not stored; send it again once the disk takes it",
    )


def segment_missing(why: OSError | str, paths: StorePaths) -> SegmentUnavailable:
    """`why` is a text if the segment is late and there is no OSError to explain it."""
    is_full = isinstance(why, str) or why.errno in NO_ROOM
    todo = "free disk space" if is_full else look_at(paths.commit_log)
    return SegmentUnavailable(
        "the next commit log segment cannot be made or opened",
        f"{why}; {describe_disk(paths.commit_log)}",
        f"the message is not stored; {todo}; then send it again",
    )


def no_room(
    positions: Positions, paths: StorePaths, end: int, waited_ms: int, *, fast: bool
) -> PenstockError | None:
    """Why a frame that needs the log up to `end` finds no room: there is no segment, the disk does
    not take the log, or either takes too long. None while the frame may wait; with `fast` it does
    not wait for room in the pool."""
    # the allocator tries again every second, and says so when it succeeds
    no_segment = end > positions["allocated"]
    refused = positions["allocate_error" if no_segment else "commit_error"]
    fast = fast and not no_segment
    if not (refused or fast) and waited_ms <= ALLOCATE_TIMEOUT_MS:
        return None
    why = "it is full" if fast else f"none within {ALLOCATE_TIMEOUT_MS} ms"
    if no_segment:
        number = positions["allocate_error"]
        return segment_missing(OSError(number, os.strerror(number)) if number else why, paths)
    if positions["commit_error"]:
        return commit_failed(positions, paths)
    return BrokerBusy(
        "the frame found no room in the pool",
        why,
        "the disk is too slow for what comes; the message is not stored, send it later",
        retry_after_ms=BUSY_RETRY_MS,
    )


def check_disk(positions: Positions, paths: StorePaths) -> None:
    """Raise StoreUnavailable while the disk is too full for new messages, or refuses the log."""
    if positions["commit_error"]:
        raise commit_failed(positions, paths)
    if percent := positions["disk_full"]:
        raise StoreUnavailable(
            "the disk is full",
            f"{percent}% of it are used",
            "the message is not stored. Free disk space, or delete what has had its time: penstock "
            f"clean --store {quoted(paths.root)}; then send it again",
        )
