"""Sends what an export has written, or any file with such columns, through a producer.

Each message goes to its topic and queue, or where its sharding key leads, in the order of the file;
so the order in a queue is the old one. What the broker gives itself is new: offsets, store time,
unique key. The column `body` is all that is needed.
"""

from __future__ import annotations

import base64
import csv
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet

from penstock.client.producer import Producer, SendFuture
from penstock.dataframes.export import Digest
from penstock.shared.errors import ConfigError
from penstock.shared.formats.properties import KEYS, RESERVED, SHARDING_KEY, TAGS

_SENT = ("topic", "queue_id", "body", "properties")
# Sends whose outcome is not looked at yet.
_IN_FLIGHT = 4096
_ROWS_AT_ONCE = 4096


class Imported(NamedTuple):
    """What was sent and acknowledged."""

    rows: int
    body_sha256: str  # of all bodies in the order of the file; see export.Digest


def import_file(
    path: Path,
    form: str,
    producer: Producer,
    topic: str = "",
    progress: Callable[[int], None] = lambda rows: None,
) -> Imported:
    """Send every row, to `topic` instead of its own where that is named; all are acknowledged on
    return. Topics that lack a queue get it first.

    After an error or a crash some are stored: a second import sends all of them again. Raises
    ConfigError where rows have no body or no topic, and what a send raises.
    """
    for name, queues in _queues_needed(path, form, topic).items():
        if producer.topics().get(name, 0) < queues:
            producer.create_topic(name, queues)
    digest, rows = Digest(), 0
    waiting: deque[SendFuture] = deque()
    for batch in read_file(path, form, _SENT):
        digest.add(batch.column("body"))
        for row in batch.to_pylist(maps_as_pydicts="lossy"):
            waiting.append(_send(producer, topic, row))
            if len(waiting) > _IN_FLIGHT:
                waiting.popleft().result()
        rows += batch.num_rows
        progress(rows)
    while waiting:
        waiting.popleft().result()
    return Imported(rows, digest.hexdigest())


def _send(producer: Producer, topic: str, row: dict[str, Any]) -> SendFuture:
    properties = row.get("properties") or {}
    named = topic or row.get("topic")
    if not named:
        raise ConfigError("a row has no topic", None, "name one: --topic NAME")
    shard = properties.get(SHARDING_KEY)
    return producer.send(
        named,
        row["body"] or b"",
        tags=properties.get(TAGS),
        keys=properties[KEYS].split(" ") if KEYS in properties else None,
        shard=shard,
        # a sharding key chooses the queue itself: what comes later with that key goes there, too
        queue=None if shard is not None else row.get("queue_id"),
        properties={name: text for name, text in properties.items() if name not in RESERVED},
    )


def _queues_needed(path: Path, form: str, topic: str) -> dict[str, int]:
    """How many queues each topic must have, so that every row has its own."""
    needed: dict[str, int] = {}
    for batch in read_file(path, form, ("topic", "queue_id")):
        for named, queue_id in _pairs(batch):
            name = topic or named
            needed[name] = max(needed.get(name, 0), queue_id + 1)
    return needed


def _pairs(batch: pa.RecordBatch) -> set[tuple[str, int]]:
    if not {"topic", "queue_id"} <= {*batch.schema.names}:
        return set()
    table = pa.Table.from_batches([batch]).group_by(["topic", "queue_id"]).aggregate([])
    return {
        (row["topic"] or "", row["queue_id"])
        for row in table.to_pylist()
        if row["queue_id"] is not None
    }


def read_file(path: Path, form: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Those of the columns that the file has, batch after batch. Raises ConfigError."""
    try:
        yield from READERS[form](path, columns)
    except FileNotFoundError:
        raise ConfigError("there is no such file", path, "name one that is there") from None
    except (pa.ArrowInvalid, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"the file is no {form}", f"{path}: {error}", "see --help") from error


def _parquet(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with pa.parquet.ParquetFile(path) as file:
        names = [name for name in columns if name in file.schema_arrow.names]
        yield from file.iter_batches(_ROWS_AT_ONCE, columns=names)


def _arrow(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as mapped, pa.ipc.open_file(mapped) as file:
        names = [name for name in columns if name in file.schema.names]
        for number in range(file.num_record_batches):
            yield file.get_batch(number).select(names)


def _jsonl(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    def rows() -> Iterator[dict[str, Any]]:
        with open(path, encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                if row.get("body_base64") is not None:
                    row["body"] = base64.b64decode(row["body_base64"])
                elif isinstance(row.get("body"), str):
                    row["body"] = row["body"].encode()
                yield row

    yield from _batched(rows(), columns)


def _csv(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    def rows() -> Iterator[dict[str, Any]]:
        with open(path, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                found: dict[str, Any] = dict(row)
                if "body" in found:
                    found["body"] = base64.b64decode(found["body"])
                if found.get("queue_id"):
                    found["queue_id"] = int(found["queue_id"])
                if "properties" in found:
                    found["properties"] = json.loads(found["properties"] or "{}")
                yield found

    yield from _batched(rows(), columns)


def _batched(rows: Iterator[dict[str, Any]], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    held: list[dict[str, Any]] = []
    for row in rows:
        held.append(row)
        if len(held) == _ROWS_AT_ONCE:
            yield _batch(held, columns)
            held = []
    if held:
        yield _batch(held, columns)


_TYPES = {
    "topic": pa.string(),
    "queue_id": pa.int32(),
    "body": pa.binary(),
    "properties": pa.map_(pa.string(), pa.string()),
}


def _batch(rows: list[dict[str, Any]], columns: Sequence[str]) -> pa.RecordBatch:
    names = [name for name in columns if name in rows[0]]
    arrays = []
    for name in names:
        values = [row.get(name) for row in rows]
        if name == "properties":
            values = [list((each or {}).items()) for each in values]
        arrays.append(pa.array(values, _TYPES[name]))
    return pa.RecordBatch.from_arrays(arrays, names)


READERS = {"parquet": _parquet, "arrow": _arrow, "jsonl": _jsonl, "csv": _csv}
