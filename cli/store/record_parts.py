"""Rows of `store inspect`, of many records at a time: as lines of JSON, or as cells of a table.

A part is what any process can make rows of, without the store: bytes of whole records, one after
the other, that a walk of the log has examined. This file must not know where parts come from, or
where rows go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.cli.printing.output import json_line, shown_time
from penstock.cli.printing.records import row
from penstock.shared.formats.record import decode_examined

COLUMNS = ("topic", "queue", "offset", "log offset", "size", "stored", "tags", "keys")
_FIELDS = ("topic", "queue_id", "queue_offset", "physical_offset", "size")


class Part(msgspec.Struct, frozen=True):
    """Records and their sizes. `lines_in` is the encoding of what shows lines of JSON; without it
    rows become cells, of COLUMNS and, where it is asked for, the body."""

    records: memoryview
    sizes: list[int]
    with_body: bool
    lines_in: str | None


def rows_of(raw: bytes) -> bytes:
    """The rows of an encoded Part: UTF-8 lines, or what `cells` decodes."""
    part = msgspec.msgpack.decode(raw, type=Part)
    found = _rows(part)
    if part.lines_in is not None:
        return "".join(f"{json_line(each, part.lines_in)}\n" for each in found).encode()
    return msgspec.msgpack.encode([_cells(each, part.with_body) for each in found])


def cells(rows: bytes) -> list[list[Any]]:
    """Each row's cells."""
    return msgspec.msgpack.decode(rows, type=list[list[Any]])


def _rows(part: Part) -> Iterator[dict[str, Any]]:
    at = 0
    for size in part.sizes:
        yield row(decode_examined(part.records, at, size), with_body=part.with_body)
        at += size


def _cells(fields: dict[str, Any], with_body: bool) -> list[Any]:
    found = [fields[name] for name in _FIELDS]
    found += [shown_time(fields["store_timestamp_ms"]), fields["tags"], fields["keys"]]
    if with_body:
        text = fields["body"]
        found.append(f"{fields['body_size']} bytes" if text is None else text)
    return found
