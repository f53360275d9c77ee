"""A query's partitions, and what a task does with one: reads its ranges, hands batches to Spark.

It reads by the consume queues, by the commit log if a store has no queues, or from a broker.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.shared.store.directory import StoreDirectory
from penstock.spark.plan import plan
from penstock.spark.ranges import QueueRange
from penstock.spark.reading.log_scan import LogRange, plan_log, read_log
from penstock.spark.reading.options import Options
from penstock.spark.reading.predicates import Predicate
from penstock.spark.reading.rows import How, is_by_entries
from penstock.spark.reading.views import StoreView, open_view
from penstock.spark.scan import read_range

# the pause between two looks: a reader of files is not notified
_LOOK_AGAIN_S = 0.1


def plan_query(
    options: Options, predicates: Sequence[Predicate], columns: Collection[str]
) -> Sequence[tuple[QueueRange | LogRange, ...]]:
    """The partitions of a query of these columns; at least one. Raises ConnectError, and what
    `plan` and `plan_log` raise."""
    with open_view(options) as view:
        if isinstance(view, StoreView) and view.lacks_queues:
            return plan_log(view.store, options, int(time.time() * 1000), predicates)
        by_entries = is_by_entries(options, columns, predicates)
        return plan(view, options, predicates, by_entries=by_entries)


def read_partition(
    options: Options,
    ranges: Sequence[QueueRange | LogRange],
    schema: StructType,
    how: How,
    patience_ms: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Batches of exactly the schema that Spark expects, so that it need not convert them.

    If a queue is shorter than its range, this waits for it up to `patience_ms`: after a crash of
    the broker, a start rebuilds the queue's end.
    """
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    columns = schema.fieldNames()
    for arrays in (
        _from_broker(options.endpoint, ranges, columns, how)
        if options.endpoint
        else _from_files(options.path, ranges, columns, how, patience_ms)
    ):
        yield pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)


def _from_broker(
    endpoint: str, ranges: Sequence[QueueRange | LogRange], columns: Sequence[str], how: How
) -> Iterator[list[pa.Array]]:
    # see views.open_view
    from penstock.spark.reading.broker_scan import read_from_broker

    pieces = [piece for piece in ranges if isinstance(piece, QueueRange)]
    assert len(pieces) == len(ranges), "a broker is asked by queue"
    yield from read_from_broker(endpoint, pieces, columns, how)


def _from_files(
    path: str,
    ranges: Sequence[QueueRange | LogRange],
    columns: Sequence[str],
    how: How,
    patience_ms: int,
) -> Iterator[list[pa.Array]]:
    with StoreDirectory(path) as store:
        for piece in ranges:
            if isinstance(piece, LogRange):
                yield from read_log(store, piece, columns, how)
            else:
                yield from read_range(_whole(store, piece, patience_ms), piece, columns, how)


def _whole(store: StoreDirectory, piece: QueueRange, patience_ms: int) -> StoreDirectory:
    """The store, once the queue holds the range, or after `patience_ms`."""
    directory = store.paths.queue(piece.topic, piece.queue_id)
    deadline_ms = time.monotonic() * 1000 + patience_ms
    while patience_ms and time.monotonic() * 1000 < deadline_ms:
        if store.queue_at(directory).max_offset >= piece.stop:
            break
        time.sleep(_LOOK_AGAIN_S)
        store.refresh()
    return store
