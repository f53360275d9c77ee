"""Writes rows to a file: Parquet, Arrow's IPC, JSON lines, CSV.

The file gets its name only when it is whole, so a crash leaves nothing that looks like one. One
thread reads the rows, one digests them and one writes; all spend their time outside of Python's
lock. The checksum of the bodies does not depend on the file's form, so that an export and its
import can be compared. Written pages are dropped from the page cache, where they would displace
what is still to be read; besides, pages that were just freed are cheaper than fresh ones.
"""

from __future__ import annotations

import base64
import os
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from penstock.dataframes.digest import Digest
from penstock.shared.errors import ConfigError
from penstock.shared.files.durable import sync_directory
from penstock.shared.next_steps import quoted

# The size of a row group: a smaller one is not worth its entry in the file's footer.
ROW_GROUP_BYTES = 32 << 20
# How many batches, each of a few MiB, may wait to be digested, and how many to be written: while a
# row group is encoded, the next one is collected.
_TO_COUNT, _TO_WRITE = 2, 6
# How much of the file is written out at a time, so that the disk is busy meanwhile
_WRITE_OUT_BYTES = 8 << 20
# No dictionaries where values rarely repeat, and no minimum and maximum where nobody compares
_DICTIONARIES = ("topic", "queue_id", "tags")
_NO_STATISTICS = ("body", "properties")


class Exported(NamedTuple):
    """What was written."""

    rows: int
    file_bytes: int
    body_sha256: str  # Digest's; "" without bodies


class _Sink(Protocol):
    def write_batch(self, batch: pa.RecordBatch, /) -> object: ...


def write_file(
    path: Path,
    form: str,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    progress: Callable[[int], None] = lambda rows: None,
    *,
    checksum: bool = True,
) -> Exported:
    """Write all batches; durable on return. `progress` gets the number of rows written so far.

    Raises ConfigError if the file exists or its directory does not, OSError, and what the batches
    raise.
    """
    if path.exists():
        raise ConfigError("there is a file of this name", path, "remove it, or name another")
    if not path.parent.is_dir():
        raise ConfigError(
            "there is no such directory", path.parent, f"make it: mkdir -p {quoted(path.parent)}"
        )
    staging = path.with_name(f".{path.name}.{os.getpid()}.part")
    digest = Digest() if checksum and "body" in schema.names else None
    rows = written_out = 0
    try:
        # Arrow's own file, because writing to a Python file copies everything first
        with open(staging, "xb") as file, pa.OSFile(str(staging), "wb") as target:
            with FORMS[form](target, schema) as sink:
                if digest:
                    batches = _ahead(batches, _TO_COUNT)
                seen = digest.add if digest else None
                with closing(_ahead(batches, _TO_WRITE, seen)) as ready:
                    for batch in ready:
                        sink.write_batch(batch)
                        rows += batch.num_rows
                        progress(rows)
                        written_out = _write_out(file.fileno(), written_out, target.tell())
            os.fsync(file.fileno())
        staging.rename(path)
        sync_directory(path.parent)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise
    return Exported(rows, path.stat().st_size, digest.hexdigest() if digest else "")


def _write_out(handle: int, start: int, end: int) -> int:
    """Have the kernel write out what is new since `start`, and drop what is on disk from the page
    cache. Returns the next `start`."""
    if end - start < _WRITE_OUT_BYTES:
        return start
    # pages that are still being written stay cached, so earlier ones are named again
    again = max(0, start - 4 * _WRITE_OUT_BYTES)
    os.posix_fadvise(handle, again, end - again, os.POSIX_FADV_DONTNEED)
    return end


def _ahead(
    batches: Iterator[pa.RecordBatch],
    most: int,
    seen: Callable[[pa.RecordBatch], None] | None = None,
) -> Generator[pa.RecordBatch]:
    """The same batches, made by a thread that runs up to `most` of them ahead and shows each to
    `seen`. Raises what either raises."""
    made: queue.Queue[pa.RecordBatch | BaseException | None] = queue.Queue(most)
    over = threading.Event()

    def read() -> None:
        try:
            for batch in batches:
                if seen:
                    seen(batch)
                made.put(batch)
                if over.is_set():
                    break
            # closed here and now, by the thread that has read it: another thread may feed it
            if isinstance(batches, Generator):
                batches.close()
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
                made.get(timeout=0.1)  # the thread may be waiting for room
            except queue.Empty:
                thread.join(0)


@contextmanager
def _parquet(file: Any, schema: pa.Schema) -> Iterator[_Sink]:
    names = schema.names
    with pa.parquet.ParquetWriter(
        file,
        schema,
        compression="zstd",
        use_dictionary=[name for name in _DICTIONARIES if name in names],
        write_statistics=[name for name in names if name not in _NO_STATISTICS],
    ) as writer:
        groups = _RowGroups(writer)
        yield groups
        groups.flush()


class _RowGroups:
    """Collects batches until they are worth a row group."""

    def __init__(self, writer: pa.parquet.ParquetWriter) -> None:
        self._writer = writer
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held))
        self._held, self._held_bytes = [], 0


@contextmanager
def _arrow(file: Any, schema: pa.Schema) -> Iterator[_Sink]:
    with pa.ipc.new_file(file, schema) as writer:
        yield writer


@contextmanager
def _csv(file: Any, schema: pa.Schema) -> Iterator[_Sink]:
    """Bodies in base64, because they may be any bytes; properties as JSON."""
    flat = pa.schema([(each.name, _flat_type(each.type)) for each in schema])
    with pa.csv.CSVWriter(file, flat) as writer:

        class Flat:
            def write_batch(self, batch: pa.RecordBatch) -> None:
                columns = [_flat(batch.column(each.name)) for each in schema]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=flat))

        yield Flat()


@contextmanager
def _jsonl(file: Any, schema: pa.Schema) -> Iterator[_Sink]:
    """One object per row, with the body as `penstock consume -o json` prints it."""

    class Lines:
        def write_batch(self, batch: pa.RecordBatch) -> None:
            lines = []
            for row in batch.to_pylist(maps_as_pydicts="lossy"):
                if "body" in row:
                    row |= _shown_body(row.pop("body"))
                lines.append(msgspec.json.encode(row))
            file.write(b"".join(line + b"\n" for line in lines))

    yield Lines()


def _shown_body(body: bytes) -> dict[str, str | None]:
    """`body`, which is null unless it is text, and always `body_base64`."""
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
