"""Narrows a query that filters on `keys` by the store's index, to the ranges that must be read.

    keys = 'k1'           -> the hash of topic#k1, for each topic
    keys = 'k1 k2'        -> that of topic#k1: a record is in the index under each word of its keys
    ranges, index files   -> the candidates, and what no file speaks of

What is left out certainly has other keys. What stays in may have other keys too, because hashes
collide, so tasks still apply the filter. Records that the index does not have are read: the newest
ones, those of files that are gone, or all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from penstock.shared.errors import ConfigError, StoreDamaged
from penstock.shared.formats.index_chains import key_hashes
from penstock.shared.index.directory import index_files
from penstock.shared.index.index_file import IndexFile
from penstock.shared.index.indexed_records import IndexedRecords, indexed_records
from penstock.shared.queue.snapshot import QueueFiles
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.geometry import index_sizes
from penstock.spark.ranges import QueueRange

ENTRIES_AT_ONCE = 1 << 18
# Messages that are this near to each other are read together. A plan has at most this many pieces,
# or one for each queue if there are more queues.
NEAR, MOST_PIECES = 64, 4096

Ints = npt.NDArray[np.int64]
# Spark puts what planners log into its table python_worker_logs, from the level that is set here
_log = logging.getLogger("penstock.spark")
_log.setLevel(logging.INFO)


def ranges_by_keys(
    store: StoreDirectory, planned: Sequence[QueueRange], keys: Collection[str]
) -> list[QueueRange]:
    """The ranges, without messages whose whole property `keys` is certainly none of these.

    The ranges as they are, if the index cannot tell.
    """
    words = [_a_word(text) for text in keys]
    wanted = [piece for piece in planned if piece.start < piece.stop]
    if not wanted:
        return []
    if "" in words:
        _log.info("keys %s: the index is not used, as one of them it cannot have", _shown(keys))
        return list(planned)
    topics = sorted({piece.topic for piece in wanted})
    hashes = key_hashes([f"{topic}#{word}".encode() for topic in topics for word in words])
    parts = [_Part(store, piece) for piece in wanted]
    used = 0
    for found in _files(store, hashes):
        used += 1
        for part in parts:
            part.take(found)
    most = max(MOST_PIECES // len(parts), 1)
    kept = [piece for part in parts for piece in part.pieces(most)]
    _log.info(
        "keys %s: %d index files leave %d of %d messages to read",
        _shown(keys),
        used,
        sum(piece.stop - piece.start for piece in kept),
        sum(piece.stop - piece.start for piece in wanted),
    )
    return kept


def _shown(keys: Collection[str]) -> str:
    """Some of the keys, for a log line."""
    few = ", ".join(map(repr, sorted(keys)[:3]))
    return few if len(keys) <= 3 else f"{few}, and {len(keys) - 3} more"


def _a_word(text: str) -> str:
    """One of the keys in a whole property; "" if the index may not have them."""
    # invalid UTF-8 is read as this character, and the index may have the bytes under another hash
    return "" if "\ufffd" in text else next(filter(None, text.split(" ")), "")


def _files(store: StoreDirectory, hashes: Ints) -> Iterator[IndexedRecords]:
    """What each readable index file has; for the others the reason is logged."""
    try:
        geometry = index_sizes(store.paths)
    except (ConfigError, StoreDamaged) as error:
        _log.info("the index is not used: %s", error)
        return
    log_end = store.files_end
    for path in index_files(store.paths.index):
        try:
            file = IndexFile(path, geometry)
        except (FileNotFoundError, StoreDamaged) as error:  # expired since, or in the making
            _log.info("an index file is not used: %s", error)
            continue
        try:
            found = indexed_records(file, hashes, log_end)
        finally:
            file.close()
        yield found


class _Part:
    """A range of a queue, about which the index files tell more and more."""

    def __init__(self, store: StoreDirectory, piece: QueueRange) -> None:
        self._queue: QueueFiles = store.queue_at(store.paths.queue(piece.topic, piece.queue_id))
        self._piece = piece
        # queue offsets [first, stop) that a file covers, and those of them that must be read
        self._known: list[tuple[int, int, Ints]] = []

    def take(self, found: IndexedRecords) -> None:
        """Take what an index file has about this range."""
        if not len(found.offsets):
            return
        first = max(self._queue.end_before(int(found.offsets[0])), self._piece.start)
        stop = min(self._queue.end_before(int(found.offsets[-1]) + 1), self._piece.stop)
        for start in range(first, stop, ENTRIES_AT_ONCE):
            end = min(start + ENTRIES_AT_ONCE, stop)
            records = self._queue.entries(start, end)["offset"].astype(np.int64)
            self._known.append((start, end, start + np.flatnonzero(found.may_match(records))))

    def pieces(self, most: int) -> list[QueueRange]:
        """What must be read, in order, in at most this many pieces."""
        found, near = _joined(self._runs(), NEAR), NEAR
        while len(found) > most:
            near *= 4
            found = _joined(found, near)
        return [self._piece._replace(start=start, stop=stop) for start, stop in found]

    def _runs(self) -> Iterator[tuple[int, int]]:
        at = self._piece.start
        for first, stop, slots in sorted(self._known, key=lambda each: each[:2]):
            if at < first:
                yield at, first
            # cut by NumPy, because there may be millions of slots
            for run in np.split(slots, np.flatnonzero(np.diff(slots) > NEAR) + 1):
                if len(run):
                    yield int(run[0]), int(run[-1]) + 1
            at = max(at, stop)
        if at < self._piece.stop:
            yield at, self._piece.stop


def _joined(runs: Iterable[tuple[int, int]], near: int) -> list[tuple[int, int]]:
    """The runs in order; those that are at most `near` apart are joined."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(runs):
        if joined and start - joined[-1][1] <= near:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((start, stop))
    return joined
