"""The sink as Spark calls it: `write` in the workers, `commit` and `abort` on the driver.

A batch of a streaming query is identified by the query's id, which is in its checkpoint, and by its
number. Spark tells both only to tasks, so the tasks return them with what they have staged.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.shared.errors import ConfigError
from penstock.spark.plainly import plainly
from penstock.spark.sink.blocks import StoredBlock
from penstock.spark.sink.columns import check_columns
from penstock.spark.sink.options import SinkOptions, parse_sink_options
from penstock.spark.sink.publish import Publisher
from penstock.spark.sink.tasks import write_rows

# Spark's names of local properties.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


class Batch(NamedTuple):
    """A micro-batch of a streaming query."""

    query: str
    number: int


class Answer(WriterCommitMessage):
    """What a task attempt has staged, in the order of its rows, and for which batch."""

    def __init__(self, blocks: list[StoredBlock], batch: Batch | None = None) -> None:
        self.blocks, self.batch = blocks, batch


class BatchWriter(DataSourceArrowWriter):
    """`df.write`: stored when the job commits."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._keep = bool(options.write_id)
        self._writer = options.write_id or uuid.uuid4().hex

    @plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Answer:
        return Answer(write_rows(self._options, iterator))

    @plainly
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        staged = [each for each in messages if isinstance(each, Answer)]
        if any(each.blocks for each in staged):
            number = self._options.batch_id or 0
            _publish(self._options, self._writer, number, staged, self._keep)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """There is nothing to undo: what is staged and not committed is never seen."""


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: each batch is stored once, however often Spark tries it."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    @plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Answer:
        batch = _running_batch()
        return Answer(write_rows(self._options, iterator), batch)

    @plainly
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        staged = [each for each in messages if isinstance(each, Answer)]
        # even without rows: an earlier attempt with rows may be decided on and not yet published
        if staged and staged[0].batch is not None:
            _publish(self._options, staged[0].batch.query, batchId, staged, True)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """There is nothing to undo: what is staged and not committed is never seen."""


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Raises ConfigError for invalid options and columns, before anything is written."""
    return BatchWriter(_checked(options, schema, overwrite))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Like `batch_writer`, for a streaming query, whose batches have their own names."""
    checked = _checked(options, schema, overwrite)
    if checked.write_id:
        raise ConfigError(
            "a streaming query has a writeId",
            checked.write_id,
            "leave it out: the query's checkpoint names its batches",
        )
    return StreamWriter(checked)


def _checked(options: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkOptions:
    found = parse_sink_options(options)
    if overwrite:
        raise ConfigError(
            "a topic cannot be overwritten",
            None,
            'append to it: .mode("append"), or .outputMode("append") of a streaming query',
        )
    check_columns(schema, found.topic)
    return found


def _running_batch() -> Batch:
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(_QUERY)
    number = None if context is None else context.getLocalProperty(_BATCH)
    if not query or number is None:
        raise ConfigError(
            "this Spark does not tell a task of which batch it is",
            f"{_QUERY}={query}, {_BATCH}={number}",
            "write micro-batches: a trigger of processingTime, or availableNow",
        )
    return Batch(query, int(number))


def _publish(
    options: SinkOptions, writer: str, number: int, staged: Sequence[Answer], keep: bool
) -> None:
    blocks = [block for each in staged for block in each.blocks]
    with Publisher(options, writer) as publisher:
        publisher.commit(number, blocks, keep)
