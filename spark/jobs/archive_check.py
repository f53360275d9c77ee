"""Checks whether an archive holds what its runs say, and whether it agrees with what a store has.

    lists    each queue's stretches in all files -> offsets that are missing, or there twice
    tasks    some files each -> size, digest, rows, offsets; each row compared with the store's

Nothing is written. A store is compared only if one is named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.shared.errors import OffsetOutOfRange, StoreDamaged
from penstock.shared.formats.properties import is_tombstone
from penstock.shared.store.directory import StoreDirectory
from penstock.spark.jobs.archive import holes_in
from penstock.spark.jobs.archive_files import SCHEMA, stretches_of
from penstock.spark.jobs.manifest import ArchiveFile, Manifest, digest_of
from penstock.spark.jobs.parts import Progress, run_parts
from penstock.spark.ranges import QueueRange
from penstock.spark.scan import read_range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The approximate size of the files in one task.
PART_BYTES = 128 << 20
# The most findings of one task that are listed.
MOST_FOUND = 1000


class Finding(msgspec.Struct, frozen=True):
    """A problem: its kind, and in which file it is, or in which queue as TOPIC/QUEUE."""

    kind: str
    place: str
    detail: str


class ArchiveReport(msgspec.Struct, frozen=True):
    """`compared` counts messages that are the same in the store. The others are no longer there,
    because they expired or a repair found them lost, or no store was named. `lost` counts offsets
    for which the store had no message, `expired` those that had expired before a run."""

    archive: str
    ok: bool
    runs: int
    files: int
    messages: int
    bytes: int
    compared: int
    lost: int
    expired: int
    findings: list[Finding]


class _Task(msgspec.Struct, frozen=True):
    archive: str
    store: str
    files: list[ArchiveFile]


class _Checked(msgspec.Struct):
    compared: int = 0
    findings: list[Finding] = []

    def find(self, kind: str, place: str, detail: str) -> None:
        if len(self.findings) < MOST_FOUND:
            self.findings.append(Finding(kind, place, detail))


def verify_archive(
    spark: SparkSession | None,
    archive: Path | str,
    directory: Path | str | None = None,
    *,
    progress: Progress | None = None,
) -> ArchiveReport:
    """Check an archive, and compare it with the store in `directory`. Raises ConfigError if there
    is no archive or no store, and StoreDamaged if a list cannot be read."""
    manifest = Manifest(Path(archive).absolute())
    store = "" if directory is None else str(Path(directory).absolute())
    if store:
        StoreDirectory(store).close()  # raises if there is no store
    tasks = [_Task(str(manifest.root), store, files) for files in _shared_out(manifest.files)]
    costs = [sum(file.size_bytes for file in task.files) for task in tasks]
    encoded = [msgspec.msgpack.encode(task) for task in tasks]
    results = [
        msgspec.msgpack.decode(raw, type=_Checked)
        for raw in run_parts(spark, _check_part, encoded, costs, progress)
    ]
    listed, lost, expired = _check_lists(manifest)
    findings = [*listed.findings, *(each for result in results for each in result.findings)]
    return ArchiveReport(
        str(manifest.root),
        not findings,
        len(manifest.runs),
        len(manifest.files),
        sum(file.rows for file in manifest.files),
        sum(file.size_bytes for file in manifest.files),
        sum(result.compared for result in results),
        lost,
        expired,
        findings,
    )


def _shared_out(files: Sequence[ArchiveFile]) -> Iterator[list[ArchiveFile]]:
    held: list[ArchiveFile] = []
    for file in files:
        if held and sum(each.size_bytes for each in held) + file.size_bytes > PART_BYTES:
            yield held
            held = []
        held.append(file)
    if held:
        yield held


def _check_lists(manifest: Manifest) -> tuple[_Checked, int, int]:
    """Check the files of each run against its queues, and the runs against each other. Also returns
    how many messages were lost, and how many had expired."""
    checked, lost, expired = _Checked(), 0, 0
    ends: dict[tuple[str, int], int] = {}
    for run in manifest.runs:
        stretches: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        for file in run.files:
            for queue_id, start, stop in file.stretches:
                stretches[file.topic, queue_id].append((start, stop))
        for queue in run.queues:
            key = queue.topic, queue.queue_id
            place = f"{queue.topic}/{queue.queue_id}"
            found = stretches.pop(key, [])
            rows = sum(stop - start for start, stop in found)
            holes = sum(stop - start for start, stop in queue.holes)
            if holes_in(found, queue.start, queue.stop) != queue.holes:
                checked.find("offsets-missing", place, f"run {run.number} has not all that it says")
            elif rows + holes != queue.stop - queue.start:
                checked.find("offsets-twice", place, f"run {run.number} has some more than once")
            before = ends.get(key, queue.start)
            if queue.start < before:
                checked.find("offsets-twice", place, f"run {run.number} begins at {queue.start}")
            lost += holes
            expired += max(queue.start - before, 0)
            ends[key] = queue.stop
        for topic, queue_id in stretches:
            checked.find("queue-unknown", f"{topic}/{queue_id}", f"run {run.number} has only files")
    return checked, lost, expired


def _check_part(raw: bytes) -> bytes:
    """One task, in a worker."""
    task = msgspec.msgpack.decode(raw, type=_Task)
    checked = _Checked(findings=[])
    for file in task.files:
        table = _check_file(Path(task.archive) / file.path, file, checked)
        if table is not None and task.store:
            with StoreDirectory(task.store) as store:
                _compare(store, file, table, checked)
    return msgspec.msgpack.encode(checked)


def _check_file(path: Path, file: ArchiveFile, checked: _Checked) -> pa.Table | None:
    """The file's rows, or None if they are not those that its run has written."""
    if not path.exists():
        checked.find("file-missing", str(path), f"{file.rows} messages were in it")
        return None
    if path.stat().st_size != file.size_bytes or digest_of(path) != file.digest:
        checked.find("file-differs", str(path), "its bytes are not those that were written")
        return None
    table = pq.ParquetFile(path).read()
    ids, offsets = table["queue_id"].to_numpy(), table["queue_offset"].to_numpy()
    joined: list[tuple[int, int, int]] = stretches_of(ids, offsets)
    if joined != file.stretches or table.num_rows != file.rows:
        checked.find("rows-differ", str(path), "it has other messages than its run says")
        return None
    return table


def _compare(store: StoreDirectory, file: ArchiveFile, table: pa.Table, checked: _Checked) -> None:
    """Compare each row with the message at its offset in the store, if it is still there."""
    at = 0
    for queue_id, start, stop in file.stretches:
        mine = table.slice(at, stop - start)
        at += stop - start
        place = f"{file.topic}/{queue_id}"
        queue = store.queue_at(store.paths.queue(file.topic, queue_id))
        if not queue.segments:
            continue  # its topic was deleted
        first = max(start, queue.min_offset)
        if queue.max_offset < stop:
            checked.find("store-differs", place, f"the store's queue ends at {queue.max_offset}")
            continue
        try:
            piece = QueueRange(file.topic, queue_id, first, stop)
            read = [
                pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
                for arrays in read_range(store, piece, SCHEMA.names)
            ]
        except OffsetOutOfRange:
            continue  # the messages have expired meanwhile
        except StoreDamaged as error:
            checked.find("store-damaged", place, str(error))
            continue
        theirs = pa.Table.from_batches(read, SCHEMA)
        mine, theirs = _both_sound(mine.slice(max(first - start, 0)).cast(SCHEMA), theirs)
        if not mine.equals(theirs):
            where = f"{file.path}: not the messages that the store has from {first} to {stop}"
            checked.find("store-differs", place, where)
            continue
        checked.compared += theirs.num_rows


def _both_sound(mine: pa.Table, theirs: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Both tables without the messages for which the store has a repair's tombstones by now."""
    if mine.equals(theirs) or mine.num_rows != theirs.num_rows:
        return mine, theirs
    sound = [not is_tombstone(dict(each)) for each in theirs["properties"].to_pylist()]
    return mine.filter(sound), theirs.filter(sound)
