"""Whether another broker has delivered a message already, on a store that is taken over.

RocketMQ saves its progress every 10 s, and that of timers in files that are not read here. So for
messages that were due before the last message was stored, the index is asked: a copy has the same
UNIQ_KEY, and was stored in the topic after the message was due. Without an index nobody knows, and
the message is delivered.
"""

from __future__ import annotations

from penstock.shared.config import Config
from penstock.shared.formats.record_layout import TAIL_HEAD
from penstock.shared.index.directory import index_geometry
from penstock.shared.index.lookup import IndexView, KeyQuery, look_up
from penstock.shared.layout import StorePaths
from penstock.shared.log.reader import LogReader
from penstock.shared.memory.positions import Positions
from penstock.shared.messaging.delivered import Copy, Waiting, taken_apart

# RocketMQ delivers a timed message early by up to its precision.
_PRECISION_MS = 1000
# The index has whole seconds, rounded down: by these a copy may seem to be this much older.
_ROUNDED_MS = 1000
_MOST = 64
_EVER_MS = 1 << 62


class Deliveries:
    """What the store already has of messages that were due up to `until_ms`; -1: do not ask."""

    def __init__(self, config: Config, positions: Positions, log: LogReader, until_ms: int) -> None:
        self._positions, self._log = positions, log
        self.until_ms = until_ms
        self._index: IndexView | None = None
        if until_ms >= 0:
            self._index = IndexView(StorePaths(config.store).index, index_geometry(config))

    def has(self, waiting: Waiting, copy: Copy, due_ms: int) -> bool:
        """Whether a copy of this message is stored."""
        key = waiting.unique_key.decode("utf-8", "replace")
        if due_ms > self.until_ms or self._index is None or not key:
            return False
        topic = copy.topic.decode("utf-8", "replace")
        begin_ms = due_ms - _PRECISION_MS - _ROUNDED_MS
        query = KeyQuery(topic, key, _MOST, begin_ms, _EVER_MS, True)
        search = look_up(self._index.files(), query, self._log_at)
        try:
            while True:
                next(search)
        except StopIteration as end:
            found: list[bytes] = end.value
        return any(_is_copy(waiting, memoryview(each), due_ms) for each in found)

    def _log_at(self, offset: int, size: int) -> memoryview | bytes:
        dispatched = self._positions["dispatched"]
        if not self._positions["log_start"] <= offset < dispatched:
            return b""
        return self._log.view(offset, min(offset + size, dispatched))

    def release_deleted(self) -> None:
        if self._index is not None:
            self._index.release_deleted()

    def close(self) -> None:
        if self._index is not None:
            self._index.close()


def _is_copy(waiting: Waiting, record: memoryview, due_ms: int) -> bool:
    """Whether this is a copy of the message with the same number of deliveries to its group."""
    other = taken_apart(record)
    if other.stored_ms < due_ms - _PRECISION_MS:
        return False
    times, _, length = TAIL_HEAD.unpack_from(waiting.tail)
    other_times, _, other_length = TAIL_HEAD.unpack_from(other.tail)
    same = times == other_times and length == other_length
    return same and waiting.tail[TAIL_HEAD.size :] == other.tail[TAIL_HEAD.size :]
