"""Reads what matches a filter: turns queue entries into ranges of the log, and skips the rest.

The reader uses it for Penstock's consumers, and the gateway for RocketMQ's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.shared.formats.queue_entry import BLANK_SIZE
from penstock.shared.layout import CQ_ENTRY_BYTES
from penstock.shared.log.found_records import FoundRecords
from penstock.shared.queue.entry_arrays import entries
from penstock.shared.queue.reader import QueueReader

_MOST = 1 << 62


class Matcher(Protocol):
    """A filter: what a tags code can tell, and whether the record itself has to be looked at."""

    decided_by_broker: bool

    def may_match(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]: ...

    def matches(self, record: memoryview) -> bool: ...


def read_matching(
    queues: QueueReader,
    slot: int,
    start: int,
    stop: int,
    max_bytes: int,
    chosen: Matcher,
    has_time: Callable[[], bool] = lambda: True,
    most: int = _MOST,
) -> tuple[FoundRecords, int]:
    """Records that match, of the entries from `start` to below `stop`, and the offset to go on at.

    They are about `max_bytes`, but at least one if any matches, and no more than `most`. All are in
    one segment, and none comes after a lost one. Nothing is copied. A condition may be long, and so
    may the properties: when `has_time` says no, the read ends after a record, but not before the
    first.
    """
    window = queues.window(slot, start, stop)
    raw = window.raw
    found = entries(raw)
    sizes = found["size"]
    is_twice = (found["offset"][1:] == found["offset"][:-1]) & (sizes[:-1] != BLANK_SIZE)
    count = int(is_twice.argmax()) if is_twice.any() else len(found)
    found = found[: queues.before_lost(start, window, count)]
    sizes = found["size"]
    stop = start + len(found)  # a segment of the queue may end before
    may = chosen.may_match(found["tags_code"].astype(np.int64)) & (sizes != BLANK_SIZE)
    picked = np.flatnonzero(may)
    matching = bytearray()
    left = max_bytes
    base, looked = -1, False
    for number, at, size in zip(
        picked.tolist(), found["offset"][picked].tolist(), sizes[picked].tolist(), strict=True
    ):
        is_full = matching and (left < size or queues.base_of(at) != base)
        if is_full or queues.is_damaged(at, size) or looked and not has_time():
            stop = start + number
            break
        looked = chosen.decided_by_broker
        if chosen.decided_by_broker and not chosen.matches(queues.view(at, at + size)):
            continue
        base = queues.base_of(at)
        left, most = left - size, most - 1
        matching += raw[number * CQ_ENTRY_BYTES : (number + 1) * CQ_ENTRY_BYTES]
        if not most:
            stop = start + number + 1  # as in RocketMQ, not before the next one that matches
            break
    return queues.found_by(bytes(matching), max_bytes)[0], stop
