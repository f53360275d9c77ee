"""Finds messages by key or id in a store directory, without a broker. Reads only."""

from __future__ import annotations

from types import TracebackType

from penstock.shared.index.lookup import IndexView, KeyQuery, find_by_id, look_up
from penstock.shared.names import check_topic
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.geometry import index_sizes


class StoreQuery:
    """Queries of an open store. Use it as a context manager.

    `slots` and `items` are those of its index files, if the user says them; otherwise the store
    does. The store may be running: index files are listed again for each query, and the log's
    segments are those of the last refresh. Leaving the context closes the index files, not the
    store.
    """

    def __init__(
        self, store: StoreDirectory, slots: int | None = None, items: int | None = None
    ) -> None:
        self._store = store
        self._asked = slots, items
        # Opened by the first query that needs it: finding a message by id also works in a store
        # without an index, or if the sizes of its index are not known.
        self._view: IndexView | None = None

    def __enter__(self) -> StoreQuery:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._view is not None:
            self._view.close()

    def by_key(
        self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int, unique: bool
    ) -> list[bytes]:
        """The newest records with this key, in log order: `max_num` of them at most.

        Times are store times in ms, both inclusive; with `unique` only the UNIQ_KEY counts, not
        KEYS. Only records that really have the key are found, although the index has just its hash.

        Raises InvalidArgument, StoreDamaged, ConfigError where the index's sizes are not known.
        """
        wanted = KeyQuery(check_topic(topic), key, max_num, begin_ms, end_ms, unique).check()
        if self._view is None:
            geometry = index_sizes(self._store.paths, *self._asked)
            self._view = IndexView(self._store.paths.index, geometry)
        work = look_up(self._view.files(), wanted, self._log_at)
        # A look-up pauses for a broker that serves others in between. Here nobody else waits.
        while True:
            try:
                next(work)
            except StopIteration as end:
                found: list[bytes] = end.value
                return found

    def by_id(self, message_id: str) -> bytes:
        """The record that an offsetMsgId names. Raises InvalidArgument, MessageNotFound.

        The id is a place in the log, so the index is not used, and may be damaged or missing.
        """
        return bytes(find_by_id(message_id, self._log_at))

    def _log_at(self, offset: int, size: int) -> bytes:
        """At most `size` bytes of the log; fewer at a segment's end, which no record crosses.

        Raises OffsetOutOfRange if no file has the offset, for example for an item that has expired.
        """
        left = self._store.segment_of(offset).end - offset
        return self._store.read_log(offset, min(size, left))
