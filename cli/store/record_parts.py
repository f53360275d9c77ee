"""Makes rows of `store inspect` from many records at a time: lines of text, or cells of a table.

Records come as bytes, one after the other, whole and examined. This file must not know where they
come from, or where rows go. Compiled loops make nearly all rows. Those of unusual records, and all
rows without a compiler, are made here one by one, which is the reference for the loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from penstock.cli.printing.output import json_line, rows_text, shown_time
from penstock.cli.printing.records import row
from penstock.shared.formats.record import decode_record
from penstock.shared.loops import active

COLUMNS = ("topic", "queue", "offset", "log offset", "size", "stored", "tags", "keys")
_FIELDS = ("topic", "queue_id", "queue_offset", "physical_offset", "size")
_Some = TypeVar("_Some")
# cached, because adjacent records were mostly stored in the same or in a recent millisecond
_shown_time = lru_cache(4096)(shown_time)


class Form(msgspec.Struct, frozen=True):
    """The form of rows: json, csv, plain, or a table's cells, with the body if requested.
    `encoding` is that of the output, for JSON lines; csv differs on a terminal and elsewhere."""

    name: str
    with_body: bool
    encoding: str
    to_terminal: bool


def rows_of(pieces: Iterable[memoryview], form: Form) -> bytes:
    """The rows of pieces that each have whole records: UTF-8 lines, or what `cells` decodes."""
    if form.name == "json":
        return b"".join(line for records in pieces for line in _lines(form, records))
    found = [each for records in pieces for some in _cells(form, records) for each in some]
    if form.name == "table":
        return msgspec.msgpack.encode(found)
    return rows_text(found, form.name, to_terminal=form.to_terminal).encode()


def cells(rows: bytes | memoryview) -> list[list[Any]]:
    """Each row's cells."""
    return msgspec.msgpack.decode(rows, type=list[list[Any]])


def _lines(form: Form, records: memoryview) -> Iterator[bytes]:
    def usual(at: int) -> tuple[bytes, int]:
        ascii_only = form.encoding.lower() != "utf-8"
        return active.json_lines(records, at, form.with_body, ascii_only)

    def unusual(fields: dict[str, Any]) -> bytes:
        return f"{json_line(fields, form.encoding)}\n".encode()

    return _rows(form, records, usual, unusual)


def _cells(form: Form, records: memoryview) -> Iterator[list[list[Any]]]:
    def usual(at: int) -> tuple[list[list[Any]], int]:
        return active.cells(records, at, form.with_body, _shown_time)

    def unusual(fields: dict[str, Any]) -> list[list[Any]]:
        return [_cells_of(fields, form.with_body)]

    return _rows(form, records, usual, unusual)


def _rows(
    form: Form,
    records: memoryview,
    usual: Callable[[int], tuple[_Some, int]],
    unusual: Callable[[dict[str, Any]], _Some],
) -> Iterator[_Some]:
    """Rows of all records. `usual` makes rows from a place on, and says where it stopped; the
    record there is `unusual`."""
    at = 0
    while True:
        some, at = usual(at)
        yield some
        if at == len(records):
            return
        record = decode_record(records, at)
        yield unusual(row(record, with_body=form.with_body))
        at += record.total_size


def _cells_of(fields: dict[str, Any], with_body: bool) -> list[Any]:
    found = [fields[name] for name in _FIELDS]
    found += [shown_time(fields["store_timestamp_ms"]), fields["tags"], fields["keys"]]
    if with_body:
        text = fields["body"]
        found.append(f"{fields['body_size']} bytes" if text is None else text)
    return found
