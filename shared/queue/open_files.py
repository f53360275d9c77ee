"""Consume queue files of a running broker: the reader and the cleaner read, the flusher syncs.

Entries are put there through windows: see windows.py. The queue table says how far a queue is
valid, not this file. These files are read and not mapped: if somebody has cut one short, that is a
short read, and no SIGBUS.
"""

from __future__ import annotations

import os
import resource
from collections import OrderedDict
from pathlib import Path

from penstock.shared.config import Config
from penstock.shared.errors import StoreDamaged
from penstock.shared.files.bad_sectors import read_at
from penstock.shared.files.descriptors import take_descriptor
from penstock.shared.layout import CQ_ENTRY_BYTES, StorePaths, segment_name
from penstock.shared.memory.queue_table import QueueKey
from penstock.shared.next_steps import rebuild

# At most one in 16 of the files that the process may open, and never more than 200: most of the
# limit is for connections.
MOST_OPEN, SHARE = 200, 16


class ConsumeQueueFiles:
    """Opens queue segments on demand and keeps the latest used ones open."""

    def __init__(self, paths: StorePaths, config: Config, writable: bool = False) -> None:
        self._paths = paths
        self._segment_bytes = config.mapped_file_size_consume_queue_bytes
        # a link is not followed: it could lead out of the store
        self._flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_NOFOLLOW
        # the hard limit: a start raises the soft one to it
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        self._most = max(1, min(files // SHARE, MOST_OPEN))
        self._open: OrderedDict[tuple[int, QueueKey, int], int] = OrderedDict()
        self._directories: dict[str, str] = {}

    def read(self, key: QueueKey, start: int, stop: int, slot: int = 0) -> bytes:
        """The entries [start, stop) of a queue, 20 bytes each, or fewer where a segment ends.

        Its `slot` in the queue table tells it from a deleted queue of the same name. `stop` has to
        be bounded by the queue table, because after its last entry a file has zeros.
        Raises FileNotFoundError where there is no segment, StoreDamaged where it is too short.
        """
        at = start * CQ_ENTRY_BYTES
        base = at - at % self._segment_bytes
        length = min(stop * CQ_ENTRY_BYTES, base + self._segment_bytes) - at
        raw = read_at(self.handle(key, base, slot), length, at - base)
        if len(raw) != length:
            raise StoreDamaged(
                "a segment of a consume queue is not as long as configured",
                self.path(key, base),
                rebuild(self.path(key, base)),
            )
        return raw

    def begins_segment(self, offset: int) -> bool:
        """Whether the entry of this offset is the first of its segment."""
        return offset * CQ_ENTRY_BYTES % self._segment_bytes == 0

    def handle(self, key: QueueKey, base: int, slot: int = 0) -> int:
        """The open file of a segment. Raises FileNotFoundError where there is none.

        It stays open until enough others have been used more recently, or until it is deleted.
        """
        place = slot, key, base
        found = self._open.get(place)
        if found is None:
            path = f"{self._directory(key.topic)}/{key.queue_id}/{segment_name(base)}"
            found = take_descriptor(lambda: os.open(path, self._flags))
            self._open[place] = found
            if len(self._open) > self._most:
                os.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(place)
        return found

    def _directory(self, topic: str) -> str:
        """The directory of the topic's queues, as a string: with 100,000 files, making a `Path`
        takes longer than opening the file."""
        found = self._directories.get(topic)
        if found is None:
            found = self._directories[topic] = str(self._paths.queue(topic, 0).parent)
        return found

    def path(self, key: QueueKey, base: int) -> Path:
        """The file of the segment that begins at this byte of the queue, whether it is there or
        not."""
        return self._paths.queue(*key) / segment_name(base)

    def release_deleted(self) -> None:
        """Close files that have been deleted: closing the last handle frees their disk space."""
        for place, handle in list(self._open.items()):
            if not os.fstat(handle).st_nlink:
                os.close(self._open.pop(place))

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])
