"""Reads the rows of a file for an import: Parquet, Arrow's IPC, JSON lines, CSV.

Whatever wrote the file, and with whatever types, each column comes out with one type, or an error
names the file and the row. It must not know what happens to the rows.
"""

from __future__ import annotations

import base64
import csv
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet

from penstock.shared.errors import ConfigError

Properties = dict[str, str]
# topic, queue_id, properties, body
Row = tuple[str | None, int | None, Properties | None, bytes | None]
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("body", pa.binary()),
    ]
)
_ROWS_AT_ONCE = 4096
# A batch has few large bodies or many small ones, so that little is read ahead of the sends.
_BYTES_AT_ONCE = 16 << 20
_NEXT = "mend it, or say with --to what form the file has"
_Raw = TypeVar("_Raw")


class _Line(msgspec.Struct):
    """A row of JSON lines, as `store export` and `consume -o json` write it, or less of it."""

    topic: str | None = None
    queue_id: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] | None = None
    properties: Properties | None = None
    body: str | None | msgspec.UnsetType = msgspec.UNSET
    body_base64: str | None = None

    def row(self) -> Row:
        if self.body_base64 is not None:
            body = base64.b64decode(self.body_base64, validate=True)
        elif self.body is msgspec.UNSET:
            raise ValueError("it has neither body nor body_base64")
        else:
            body = (self.body or "").encode()
        return self.topic, self.queue_id, self.properties, body


def read_file(path: Path, form: str) -> Iterator[pa.RecordBatch]:
    """All rows in SCHEMA. A column that the file lacks is null, except `body`, which is required.

    Raises ConfigError.
    """
    try:
        for batch in FORMS[form](path):
            yield _as_sent(path, batch)
    except FileNotFoundError:
        raise ConfigError("there is no such file", path, "name one that is there") from None
    except (UnicodeDecodeError, csv.Error, pa.ArrowException) as error:
        raise ConfigError(
            f"the file cannot be read as {form}", f"{path}: {str(error).rstrip('.')}", _NEXT
        ) from error


def _no_body(path: Path) -> ConfigError:
    return ConfigError("the file has no column `body`", path, "give it one: it is what is sent")


def _as_sent(path: Path, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with exactly the columns of SCHEMA. Raises ArrowException for other values."""
    if "body" not in batch.schema.names:
        raise _no_body(path)
    columns = []
    for field in SCHEMA:
        if field.name not in batch.schema.names:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(field.name)
        if pa.types.is_struct(column.type):  # as pandas writes a column of dicts
            pairs = [list(_given(row).items()) for row in column.to_pylist()]
            column = pa.array(pairs, field.type)
        columns.append(column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _given(row: dict[str, Any] | None) -> Properties:
    return {name: str(value) for name, value in (row or {}).items() if value is not None}


def _parquet(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.parquet.ParquetFile(path) as file:
        groups = map(file.metadata.row_group, range(file.num_row_groups))
        row_bytes = (each.total_byte_size // max(1, each.num_rows) for each in groups)
        rows = _BYTES_AT_ONCE // (1 + max(row_bytes, default=0))
        names = [name for name in SCHEMA.names if name in file.schema_arrow.names]
        yield from file.iter_batches(max(1, min(rows, _ROWS_AT_ONCE)), columns=names)


def _arrow(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as mapped, pa.ipc.open_file(mapped) as file:
        for number in range(file.num_record_batches):
            yield file.get_batch(number)


def _jsonl(path: Path) -> Iterator[pa.RecordBatch]:
    decoder = msgspec.json.Decoder(_Line)
    with open(path, "rb") as file:
        lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
        yield from _batched(path, lines, lambda line: decoder.decode(line).row())


def _csv(path: Path) -> Iterator[pa.RecordBatch]:
    """The first row has the names. Bodies are base64 and properties JSON, as in an export."""
    usual = csv.field_size_limit(sys.maxsize)  # the default is 128 KiB, which a body may exceed
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = enumerate(csv.reader(file, strict=True), 1)
            _, names = next(rows, (1, []))
            if "body" not in names:
                raise _no_body(path)
            yield from _batched(path, rows, lambda row: _of_csv(names, row))
    finally:
        csv.field_size_limit(usual)


_properties: msgspec.json.Decoder[Properties] = msgspec.json.Decoder(Properties)


def _of_csv(names: list[str], row: list[str]) -> Row:
    if len(row) != len(names):
        raise ValueError(f"it has {len(row)} fields, and there are {len(names)} names")
    fields = dict(zip(names, row, strict=True))
    return (
        fields.get("topic"),
        int(fields["queue_id"]) if fields.get("queue_id") else None,
        _properties.decode(fields.get("properties") or "{}"),
        base64.b64decode(fields["body"], validate=True),
    )


def _batched(
    path: Path, numbered: Iterable[tuple[int, _Raw]], parse: Callable[[_Raw], Row]
) -> Iterator[pa.RecordBatch]:
    """Rows in batches of bounded rows and bytes. Raises ConfigError with the row's number."""
    held: list[Row] = []
    held_bytes = 0
    for number, raw in numbered:
        try:
            row = parse(raw)
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                "a row of the file cannot be read", f"{path}, row {number}: {error}", _NEXT
            ) from error
        held.append(row)
        held_bytes += len(row[-1] or b"")
        if len(held) == _ROWS_AT_ONCE or held_bytes > _BYTES_AT_ONCE:
            yield _batch(held)
            held, held_bytes = [], 0
    if held:
        yield _batch(held)


def _batch(rows: list[Row]) -> pa.RecordBatch:
    topics, queue_ids, properties, bodies = zip(*rows, strict=True)
    pairs = [None if each is None else list(each.items()) for each in properties]
    columns = zip((topics, queue_ids, pairs, bodies), SCHEMA.types, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(*each) for each in columns], schema=SCHEMA)


FORMS = {"parquet": _parquet, "arrow": _arrow, "jsonl": _jsonl, "csv": _csv}
