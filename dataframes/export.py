"""Writes rows to a file: Parquet, Arrow's IPC, JSON lines, CSV.

The file appears under its name when it is whole, so a crash leaves nothing that looks like one.
Rows are read by one thread and written by another, since both spend their time outside of Python's
lock. Bodies are counted into a checksum that does not depend on the file's form, so that an export
and an import of it can be compared.
"""

from __future__ import annotations

import base64
import hashlib
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from penstock.shared.errors import ConfigError
from penstock.shared.files.durable import sync_directory

# Batches that were read and are not written yet; each is a few MiB.
_AHEAD = 4


class Exported(NamedTuple):
    """What was written."""

    rows: int
    file_bytes: int
    body_sha256: str  # Digest's, of all bodies in the order of the file; "" without them


class _Sink(Protocol):
    def write_batch(self, batch: pa.RecordBatch, /) -> object: ...


class Digest:
    """A checksum of bodies in their order: SHA-256 over the SHA-256 of their lengths (8 bytes each,
    big endian) and that of their bytes. So no body is touched by itself."""

    def __init__(self) -> None:
        self._lengths, self._bytes = hashlib.sha256(), hashlib.sha256()

    def add(self, bodies: pa.BinaryArray) -> None:
        """Of a column."""
        _, ends, data = bodies.buffers()
        offsets = np.frombuffer(ends, np.int32)[bodies.offset :][: len(bodies) + 1]
        self._lengths.update(np.diff(offsets).astype(">i8").tobytes())
        if data is not None:
            self._bytes.update(memoryview(data)[offsets[0] : offsets[-1]])

    def hexdigest(self) -> str:
        return hashlib.sha256(self._lengths.digest() + self._bytes.digest()).hexdigest()


def write_file(
    path: Path,
    form: str,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    progress: Callable[[int], None] = lambda rows: None,
    *,
    checksum: bool = True,
) -> Exported:
    """Write all batches; durable on return. `progress` is told the rows that are written.

    Raises ConfigError where the file is there already, OSError, and what the batches raise.
    """
    if path.exists():
        raise ConfigError("there is a file of this name", path, "remove it, or name another")
    staging = path.with_name(f".{path.name}.{os.getpid()}.part")
    digest = Digest() if checksum and "body" in schema.names else None
    rows = 0
    try:
        with open(staging, "xb") as file:
            with FORMS[form](file, schema) as sink:
                # the reader counts bodies: to write takes longer than to read
                for batch in _read_ahead(_counted(batches, digest)):
                    sink.write_batch(batch)
                    rows += batch.num_rows
                    progress(rows)
            file.flush()
            os.fsync(file.fileno())
        staging.rename(path)
        sync_directory(path.parent)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise
    return Exported(rows, path.stat().st_size, digest.hexdigest() if digest else "")


def _counted(batches: Iterator[pa.RecordBatch], digest: Digest | None) -> Iterator[pa.RecordBatch]:
    """The same batches; their bodies are in the digest."""
    for batch in batches:
        if digest:
            digest.add(batch.column("body"))
        yield batch


def _read_ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches, made by a thread of its own. Raises what it raises."""
    made: queue.Queue[pa.RecordBatch | BaseException | None] = queue.Queue(_AHEAD)
    over = threading.Event()

    def read() -> None:
        try:
            for batch in batches:
                made.put(batch)
                if over.is_set():
                    return
            made.put(None)
        except BaseException as error:
            made.put(error)

    thread = threading.Thread(target=read, name="export", daemon=True)
    thread.start()
    try:
        while (batch := made.get()) is not None:
            if isinstance(batch, BaseException):
                raise batch
            yield batch
    finally:
        over.set()
        while thread.is_alive():
            try:
                made.get(timeout=0.1)  # it may wait for room
            except queue.Empty:
                thread.join(0)


@contextmanager
def _parquet(file: Any, schema: pa.Schema) -> Iterator[_Sink]:
    with pa.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        yield writer


@contextmanager
def _arrow(file: Any, schema: pa.Schema) -> Iterator[_Sink]:
    with pa.ipc.new_file(file, schema) as writer:
        yield writer


@contextmanager
def _csv(file: Any, schema: pa.Schema) -> Iterator[_Sink]:
    """Bodies in base64, since they may be any bytes; properties as JSON."""
    flat = pa.schema([(each.name, _flat_type(each.type)) for each in schema])
    with pa.csv.CSVWriter(file, flat) as writer:

        class Flat:
            def write_batch(self, batch: pa.RecordBatch) -> None:
                columns = [_flat(batch.column(each.name)) for each in schema]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=flat))

        yield Flat()


@contextmanager
def _jsonl(file: Any, schema: pa.Schema) -> Iterator[_Sink]:
    """An object a row, with the body as `penstock consume -o json` has it."""

    class Lines:
        def write_batch(self, batch: pa.RecordBatch) -> None:
            for row in batch.to_pylist(maps_as_pydicts="lossy"):
                if "body" in row:
                    row |= _shown_body(row.pop("body"))
                file.write(msgspec.json.encode(row) + b"\n")

    yield Lines()


def _shown_body(body: bytes) -> dict[str, str | None]:
    """`body` where it is text, and always `body_base64`."""
    try:
        text: str | None = body.decode()
    except UnicodeDecodeError:
        text = None
    return {"body": text, "body_base64": base64.b64encode(body).decode()}


def _flat_type(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_binary(kind) or pa.types.is_map(kind) else kind


def _flat(column: pa.Array) -> pa.Array:
    if pa.types.is_binary(column.type):
        return pa.array([base64.b64encode(each.as_buffer()).decode() for each in column])
    if pa.types.is_map(column.type):
        rows = column.to_pylist(maps_as_pydicts="lossy")
        return pa.array([msgspec.json.encode(row).decode() for row in rows], pa.string())
    return column


FORMS = {"parquet": _parquet, "arrow": _arrow, "jsonl": _jsonl, "csv": _csv}
