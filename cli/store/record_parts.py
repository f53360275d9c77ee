"""Rows of `store inspect`, of many records at a time: as lines of text, or as cells of a table.

A part is what any process can make rows of: whole records, one after the other, that a walk of the
log has examined, as bytes or as places in files. This file must not know where parts come from, or
where rows go. Nearly all rows are made by compiled loops; those of unusual records, and all of them
without a compiler, are made here, one by one, and this says what is right.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from penstock.cli.printing.output import json_line, rows_text, shown_time
from penstock.cli.printing.records import row
from penstock.shared.files.durable import opened
from penstock.shared.formats.record import decode_record
from penstock.shared.loops import active

COLUMNS = ("topic", "queue", "offset", "log offset", "size", "stored", "tags", "keys")
_FIELDS = ("topic", "queue_id", "queue_offset", "physical_offset", "size")
_Some = TypeVar("_Some")
# neighbours in the log were mostly stored in the same millisecond, or in one of the last
_shown_time = lru_cache(4096)(shown_time)


class Place(msgspec.Struct, array_like=True, frozen=True):
    """Some bytes of a file."""

    file: str
    offset: int
    size: int


class Records(msgspec.Struct, array_like=True, frozen=True):
    """Whole records: copies of them, or where they stand."""

    copies: memoryview
    places: list[Place]

    def read(self) -> memoryview:
        """All of them. What has expired since it was seen is left out."""
        if not self.places:
            return self.copies
        found = []
        for place in self.places:
            with suppress(FileNotFoundError), opened(place.file, os.O_RDONLY) as handle:
                found.append(os.pread(handle, place.size, place.offset))
        return memoryview(b"".join(found))


class Part(msgspec.Struct, frozen=True):
    """Records, and the form of their rows: json, csv, plain, or a table's cells, with the body
    where it is asked for. `encoding` is that of what shows lines of JSON; the lines of csv on a
    terminal are other ones than elsewhere."""

    records: Records
    form: str
    with_body: bool
    encoding: str
    to_terminal: bool


def rows_of(raw: bytes) -> bytes:
    """The rows of an encoded Part: UTF-8 lines, or what `cells` decodes."""
    part = msgspec.msgpack.decode(raw, type=Part)
    records = part.records.read()
    if part.form == "json":
        return b"".join(_lines(part, records))
    found = [each for some in _cells(part, records) for each in some]
    if part.form == "table":
        return msgspec.msgpack.encode(found)
    return rows_text(found, part.form, to_terminal=part.to_terminal).encode()


def cells(rows: bytes) -> list[list[Any]]:
    """Each row's cells."""
    return msgspec.msgpack.decode(rows, type=list[list[Any]])


def _lines(part: Part, records: memoryview) -> Iterator[bytes]:
    def usual(at: int) -> tuple[bytes, int]:
        ascii_only = part.encoding.lower() != "utf-8"
        return active.json_lines(records, at, part.with_body, ascii_only)

    def unusual(fields: dict[str, Any]) -> bytes:
        return f"{json_line(fields, part.encoding)}\n".encode()

    return _rows(part, records, usual, unusual)


def _cells(part: Part, records: memoryview) -> Iterator[list[list[Any]]]:
    def usual(at: int) -> tuple[list[list[Any]], int]:
        return active.cells(records, at, part.with_body, _shown_time)

    def unusual(fields: dict[str, Any]) -> list[list[Any]]:
        return [_cells_of(fields, part.with_body)]

    return _rows(part, records, usual, unusual)


def _rows(
    part: Part,
    records: memoryview,
    usual: Callable[[int], tuple[_Some, int]],
    unusual: Callable[[dict[str, Any]], _Some],
) -> Iterator[_Some]:
    """Rows of all records: `usual` makes those from a place on, and says where it has stopped."""
    at = 0
    while True:
        some, at = usual(at)
        yield some
        if at == len(records):
            return
        record = decode_record(records, at)
        yield unusual(row(record, with_body=part.with_body))
        at += record.total_size


def _cells_of(fields: dict[str, Any], with_body: bool) -> list[Any]:
    found = [fields[name] for name in _FIELDS]
    found += [shown_time(fields["store_timestamp_ms"]), fields["tags"], fields["keys"]]
    if with_body:
        text = fields["body"]
        found.append(f"{fields['body_size']} bytes" if text is None else text)
    return found
