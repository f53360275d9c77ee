"""Fixtures for the whole suite. Helpers are fixtures, because test modules import nothing here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest

from penstock.shared.checkpoint import Checkpoint, encode_checkpoint
from penstock.shared.consume_queue import ENTRY
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.record import BLANK, MAGIC_BLANK, Record, encode_record
from penstock.shared.record_outline import entry_tags_code, outline

STORED_MS = 1700000001456
StoreBuilder = Callable[..., Path]
RecordMaker = Callable[..., Record]


@pytest.fixture
def make_record() -> RecordMaker:
    """A record with the fields of the golden vectors, changed by keyword."""

    def make(**changes: object) -> Record:
        golden = Record(
            topic="orders",
            body=b"hello world",
            born_timestamp_ms=1700000000123,
            born_host=bytes([10, 1, 2, 3]) + (54321).to_bytes(4, "big"),
            store_host=bytes([192, 168, 7, 9]) + (10911).to_bytes(4, "big"),
        )
        return msgspec.structs.replace(golden, **changes)

    return make


@pytest.fixture
def store_builder(tmp_path: Path) -> StoreBuilder:
    """Write a store directory as RocketMQ would for these records; returns its root.

    Each record gets its queue's next offset, its place in the log and, where it has none, a store
    time. `first_offsets` lets queues begin later than at 0, `base` the log.
    """

    def build(
        records: Iterable[Record],
        *,
        segment_bytes: int = 4096,
        queue_segment_bytes: int = 1000,
        base: int = 0,
        first_offsets: dict[tuple[str, int], int] | None = None,
        queues: bool = True,
        checkpoint: bool = True,
        unclean: bool = False,
    ) -> Path:
        paths = StorePaths(tmp_path / "store")
        for directory in (paths.commit_log, paths.consume_queue):
            directory.mkdir(parents=True)
        log, entries, newest_ms = _lay_out(records, segment_bytes, base, first_offsets or {})
        _write_segments(paths.commit_log, log, base, segment_bytes)
        for (topic, queue_id), (first, rows) in entries.items() if queues else ():
            at = first * ENTRY.size
            lead = at - at % queue_segment_bytes
            blanks = ENTRY.pack(0, 0x7FFFFFFF, 0) * ((at - lead) // ENTRY.size)
            raw = bytearray(blanks + b"".join(rows))
            _write_segments(paths.queue(topic, queue_id), raw, lead, queue_segment_bytes)
        if checkpoint:
            page = encode_checkpoint(Checkpoint(newest_ms, newest_ms, newest_ms))
            paths.checkpoint.write_bytes(page)
        paths.lock.write_bytes(b"lock")
        if unclean:
            paths.abort.write_bytes(b"4711")
        return paths.root

    return build


def _lay_out(
    records: Iterable[Record],
    segment_bytes: int,
    base: int,
    first_offsets: dict[tuple[str, int], int],
) -> tuple[bytearray, dict[tuple[str, int], tuple[int, list[bytes]]], int]:
    """The log's bytes, each queue's first offset and entries, and the newest store time."""
    log = bytearray()
    entries: dict[tuple[str, int], tuple[int, list[bytes]]] = {}
    newest_ms = 0
    for number, record in enumerate(records):
        key = (record.topic, record.queue_id)
        left = segment_bytes - len(log) % segment_bytes
        if len(encode_record(record)) + BLANK.size > left:
            log += BLANK.pack(left, MAGIC_BLANK).ljust(left, b"\0")
        first = first_offsets.get(key, 0)
        stored = record.store_timestamp_ms or STORED_MS + number
        raw = encode_record(
            msgspec.structs.replace(
                record,
                queue_offset=first + len(entries[key][1]) if key in entries else first,
                physical_offset=base + len(log),
                store_timestamp_ms=stored,
            )
        )
        fields = outline(memoryview(raw))
        if fields.is_queued:
            entry = ENTRY.pack(base + len(log), len(raw), entry_tags_code(fields))
            entries.setdefault(key, (first, []))[1].append(entry)
        log += raw
        newest_ms = max(newest_ms, stored)
    return log, entries, newest_ms


def _write_segments(directory: Path, raw: bytearray, base: int, size: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for at in range(0, len(raw), size):
        whole = bytes(raw[at : at + size]).ljust(size, b"\0")
        (directory / segment_name(base + at)).write_bytes(whole)
