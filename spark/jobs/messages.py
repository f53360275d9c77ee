"""A store's messages without their bodies, as a frame, for jobs that count messages.

The bodies stay in the tasks, which pass on only their lengths: a store is mostly bodies, and moving
them into Java and back would be most of the work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.shared.store.directory import StoreDirectory
from penstock.spark.plan import bounds, chosen, split
from penstock.spark.ranges import QueueRange
from penstock.spark.reading.options import Options
from penstock.spark.reading.queues import Queue
from penstock.spark.reading.views import StoreView
from penstock.spark.scan import read_range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READ = (
    *("topic", "queue_id", "queue_offset", "physical_offset", "keys", "tags"),
    *("body", "born_timestamp", "store_timestamp"),
)
SCHEMA = (
    "topic string, queue_id int, queue_offset bigint, physical_offset bigint, keys string, "
    "tags string, body_bytes bigint, born_timestamp timestamp, store_timestamp timestamp"
)


class Messages(NamedTuple):
    """`ranges` are what there was when it was planned, and what the frame reads; `costs` are the
    approximate bytes of each partition."""

    frame: DataFrame
    ranges: list[QueueRange]
    costs: list[int]


def messages_of(
    spark: SparkSession, directory: Path | str, topics: Sequence[str] = (), split_bytes: int = 0
) -> Messages:
    """The messages of a store, running or stopped: of all topics but the broker's own, or of those
    named.

    Raises TopicNotFound, and ConfigError if there is no store, or one without queues.
    """
    root = str(Path(directory).absolute())
    options = Options(path=root, subscribe=",".join(topics), split_bytes=split_bytes)
    with StoreView(root) as view:
        view.check_queues("this job")
        queues = chosen(view, options)
        ranges = bounds(view, queues, options)
        parts = split(ranges, queues, options)
        costs = costs_of(parts, queues)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _read(root, parts[number])

    frame = spark.range(0, len(parts), 1, len(parts)).mapInArrow(read, SCHEMA)
    return Messages(frame, ranges, costs)


def costs_of(parts: Sequence[Sequence[QueueRange]], queues: Sequence[Queue]) -> list[int]:
    """The approximate bytes of each part."""
    sized = {(queue.topic, queue.queue_id): queue for queue in queues}
    return [
        sum(sized[p.topic, p.queue_id].estimate_bytes(p.start, p.stop) for p in part)
        for part in parts
    ]


def _read(root: str, ranges: Sequence[QueueRange]) -> Iterator[pa.RecordBatch]:
    with StoreDirectory(root) as store:
        for piece in ranges:
            for arrays in read_range(store, piece, _READ):
                columns = dict(zip(_READ, arrays, strict=True))
                bodies = columns.pop("body")
                columns["body_bytes"] = pc.binary_length(bodies).cast(pa.int64())
                names = [field.split()[0] for field in SCHEMA.split(", ")]
                yield pa.RecordBatch.from_arrays([columns[name] for name in names], names)
