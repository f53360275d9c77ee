"""What `penstock trace` finds in a store's files, and what these say of a record.

It is imported only if there is a store, because it needs Linux, and a user who asks a broker by its
endpoint may be on another system.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from penstock.cli.trace.forms import MOST, Place
from penstock.maintenance.store_query import StoreQuery
from penstock.shared.errors import MessageNotFound
from penstock.shared.formats.index_layout import HEADER, decode_header
from penstock.shared.formats.properties import KEYS, UNIQ_KEY, decode_properties
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record import Record, decode_record
from penstock.shared.formats.record_check import Kind
from penstock.shared.index.directory import index_files
from penstock.shared.messaging.system_topics import OP_TOPIC, SCHEDULE_TOPIC
from penstock.shared.store.directory import StoreDirectory

_ALWAYS = 1 << 62
# How many bytes of the log past the index are searched for a key.
MOST_TAIL_BYTES = 256 << 20


class FileFinder:
    """Searches a store's files: the index, and the log past what the index has."""

    def __init__(self, store: StoreDirectory, slots: int | None, items: int | None) -> None:
        self._store = store
        self._query = StoreQuery(store, slots, items)
        self._tail: dict[str, list[Record]] | None = None

    def by_key(self, topic: str, key: str) -> list[Record]:
        found = [] if not index_files(self._store.paths.index) else self._indexed(topic, key)
        known = {record.physical_offset for record in found}
        return found + [
            record
            for record in self._beyond_index().get(topic, ())
            if record.physical_offset not in known and key in _keys(record)
        ]

    def _indexed(self, topic: str, key: str) -> list[Record]:
        found = self._query.by_key(topic, key, MOST, 0, _ALWAYS, False)
        return [decode_record(record) for record in found]

    def _beyond_index(self) -> dict[str, list[Record]]:
        """By topic, records that a kill has left undispatched; all records if there is no index."""
        if self._tail is None:
            self._tail = {}
            start = max(self._indexed_to(), self._store.log_start)
            for at, kind, _, view, _ in self._store.scan_log(start):
                if at - start > MOST_TAIL_BYTES:
                    break
                if kind is Kind.RECORD:
                    record = decode_record(bytes(view))
                    self._tail.setdefault(record.topic, []).append(record)
        return self._tail

    def _indexed_to(self) -> int:
        """Where the last record in the index begins."""
        for file in reversed(index_files(self._store.paths.index)):
            with file.open("rb") as opened:
                raw = opened.read(HEADER.size)
            if len(raw) == HEADER.size and (header := decode_header(raw)).next_item > 1:
                return header.end_offset
        return 0

    def by_id(self, message_id: str) -> Record | None:
        with suppress(MessageNotFound):
            return decode_record(self._query.by_id(message_id))
        return None

    def topics(self) -> set[str]:
        return {queue.topic for queue in self._store.queues()} | self._beyond_index().keys()

    def marks_after(self, half: Record) -> Iterator[Record]:
        directory = self._store.paths.consume_queue / OP_TOPIC / "0"
        if directory.is_dir():
            queue = self._store.queue_at(directory)
            first = max(queue.min_offset, queue.end_before(half.physical_offset))
            for slot in range(first, queue.max_offset):
                yield self._store.record_at(queue.log_offset(slot))
        yield from self._beyond_index().get(OP_TOPIC, ())

    def close(self) -> None:
        self._query.__exit__(None, None, None)


def _keys(record: Record) -> set[str]:
    properties = decode_properties(record.properties)
    return {properties.get(UNIQ_KEY, ""), *properties.get(KEYS, "").split(" ")} - {""}


class Files:
    """What a store's files, and a run's positions, say of a record that was found."""

    def __init__(self, store: StoreDirectory, positions: dict[str, int] | None) -> None:
        self._store, self._positions = store, positions

    def place(self, record: Record) -> Place:
        """Where a record is, and how far it has got."""
        at = record.physical_offset
        segment = self._store.segment_of(at)
        readable, due_ms = self._entry(record)
        file = str(segment.path.relative_to(self._store.paths.root))
        return Place(file, at - segment.base, self._disk(at + record.total_size), readable, due_ms)

    def _disk(self, end: int) -> str | None:
        if self._positions is None:
            # an orderly stop flushes all; after any other, files do not say what reached the disk
            return None if self._store.is_unclean else "flushed"
        for name, word in (
            ("flushed", "flushed"),
            ("committed", "committed"),
            ("wrote", "written"),
        ):
            if end <= self._positions[name]:
                return word
        return None

    def _entry(self, record: Record) -> tuple[bool, int | None]:
        """Whether its queue has an entry for it, and when it is due by that entry."""
        directory = self._store.paths.consume_queue / record.topic / str(record.queue_id)
        if not directory.is_dir():
            return False, None
        queue = self._store.queue_at(directory)
        at = record.queue_offset
        if not queue.min_offset <= at < queue.max_offset:
            return False, None
        offset, _, code = ENTRY.unpack(queue.entries(at, at + 1).tobytes())
        if offset != record.physical_offset:
            return False, None
        return True, code if record.topic == SCHEDULE_TOPIC else None
