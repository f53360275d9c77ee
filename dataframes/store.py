"""`Store`: the messages of topics as Arrow, and through it in pandas, Polars or DuckDB.

It keeps nothing open: each read opens the store or connects to the broker, and closes it again. The
set of rows is fixed when it is asked for, as in a Spark query.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from penstock.client.arrow.columns import schema_of
from penstock.client.core.arguments import check_text
from penstock.shared.errors import PenstockError
from penstock.shared.names import check_topic
from penstock.shared.notebook import as_table
from penstock.shared.store.directory import StoreDirectory
from penstock.spark.merged import read_merged
from penstock.spark.plan import bounds, chosen
from penstock.spark.ranges import QueueRange
from penstock.spark.reading.broker_scan import read_from_broker
from penstock.spark.reading.log_scan import LogRange, plan_log, read_log
from penstock.spark.reading.offsets import parse_time
from penstock.spark.reading.options import Options, parse_options
from penstock.spark.reading.rows import How, how_of
from penstock.spark.reading.views import StoreView, open_view
from penstock.spark.scan import read_range

Range = QueueRange | LogRange


class Selection(NamedTuple):
    """What will be read. It is fixed, so that progress can be reported."""

    options: Options
    ranges: Sequence[Range]
    schema: pa.Schema
    how: How

    @property
    def rows(self) -> int:
        """The most rows that there can be; -1 if only reading the log can tell."""
        if any(isinstance(each, LogRange) for each in self.ranges):
            return -1
        return sum(each.stop - each.start for each in self.ranges if isinstance(each, QueueRange))


class Store:
    """A store directory, Penstock's or RocketMQ's, running or not; or a broker's endpoint.

        store = Store("./store")
        store.to_arrow("orders", columns=["queue_id", "body"], start="-1h").to_pandas()

    `start` and `end` are "earliest", "latest", "group:NAME", offsets as JSON by topic and queue, or
    a store time: ms since 1970, ISO text, or -15m. `tags` is TagA || TagB, `sql` an SQL92 condition
    on the properties.
    """

    def __init__(self, source: str | os.PathLike[str]) -> None:
        """`source` begins with tcp: or ipc: if it is an endpoint."""
        self.source = os.fspath(source)

    def select(
        self,
        *topics: str,
        columns: Sequence[str] | None = None,
        start: str | int = "earliest",
        end: str | int = "latest",
        tags: str = "",
        sql: str = "",
    ) -> Selection:
        """Decide what is read: from these topics or, if none is named, all but the broker's own.

        Raises InvalidArgument, ConfigError, TopicNotFound, FilterError, GroupNotFound and
        ConnectError.
        """
        now_ms = int(time.time() * 1000)
        given = {
            "endpoint" if self.source.startswith(("tcp:", "ipc:")) else "path": self.source,
            "subscribe": ",".join(check_topic(check_text("topic", each)) for each in topics),
            "tags": tags,
            "sql": sql,
            **_bound("start", str(start), now_ms),
            **_bound("end", str(end), now_ms),
        }
        options = parse_options({name: value for name, value in given.items() if value})
        schema = schema_of(columns)
        with open_view(options) as view:
            ranges: Sequence[Range]
            if isinstance(view, StoreView) and view.lacks_queues:
                parts = plan_log(view.store, options, now_ms)
                ranges = [each for part in parts for each in part]
            else:
                ranges = bounds(view, chosen(view, options), options)
        return Selection(options, ranges, schema, how_of(options))

    def to_arrow(
        self,
        *topics: str,
        columns: Sequence[str] | None = None,
        start: str | int = "earliest",
        end: str | int = "latest",
        tags: str = "",
        sql: str = "",
    ) -> pa.Table:
        """All rows as a table. Arguments and errors are those of `select`, and StoreDamaged."""
        selection = self.select(*topics, columns=columns, start=start, end=end, tags=tags, sql=sql)
        return pa.Table.from_batches(batches(selection), selection.schema)

    def reader(
        self,
        *topics: str,
        columns: Sequence[str] | None = None,
        start: str | int = "earliest",
        end: str | int = "latest",
        tags: str = "",
        sql: str = "",
    ) -> pa.RecordBatchReader:
        """All rows, a batch at a time, for more than fits into memory. DuckDB queries it directly;
        `polars.from_arrow`, pandas and Arrow's writers take it."""
        selection = self.select(*topics, columns=columns, start=start, end=end, tags=tags, sql=sql)
        return pa.RecordBatchReader.from_batches(selection.schema, batches(selection))

    def _repr_html_(self) -> str:
        """Its topics and the most messages that each may have, or the error if reading fails."""
        try:
            ranges = self.select().ranges
        except (OSError, PenstockError) as error:
            return as_table(f"Store {self.source}", [("error", error)])
        counts = Counter[str]()
        for each in ranges:
            if isinstance(each, QueueRange):
                counts[each.topic] += each.stop - each.start
        return as_table(f"Store {self.source}", [(t, f"{n:,}") for t, n in sorted(counts.items())])

    def __repr__(self) -> str:
        return f"<penstock store {self.source}>"


def batches(selection: Selection) -> Iterator[pa.RecordBatch]:
    """The rows, queue by queue, a few MiB at a time. Raises StoreDamaged, OffsetOutOfRange."""
    for arrays in _arrays(selection):
        yield pa.RecordBatch.from_arrays(arrays, schema=selection.schema)


def _arrays(selection: Selection) -> Iterator[list[pa.Array]]:
    columns, how = selection.schema.names, selection.how
    if selection.options.endpoint:
        for piece in selection.ranges:
            assert isinstance(piece, QueueRange), "a broker is asked by queue"
            yield from read_from_broker(selection.options.endpoint, [piece], columns, how)
        return
    with StoreDirectory(selection.options.path) as store:
        for piece in selection.ranges:
            if isinstance(piece, LogRange):
                yield from read_log(store, piece, columns, how)
            else:
                yield from read_range(store, piece, columns, how)


def in_log_order(selection: Selection) -> Iterator[pa.RecordBatch]:
    """The same rows; from a store they come in the order of storing, so that the log is read only
    once, however many queues there are. For more than fits into memory. Raises the same."""
    options, ranges = selection.options, selection.ranges
    pieces = [each for each in ranges if isinstance(each, QueueRange)]
    if options.endpoint or len(pieces) < max(2, len(ranges)):
        yield from batches(selection)
        return
    with StoreDirectory(options.path) as store:
        for arrays in read_merged(store, pieces, selection.schema.names, selection.how):
            yield pa.RecordBatch.from_arrays(arrays, schema=selection.schema)


def _bound(name: str, text: str, now_ms: int) -> dict[str, str]:
    """The source's option for `start` or `end`: an offset by name or as JSON, or a time.

    Raises ConfigError.
    """
    if text in ("earliest", "latest") or text.startswith(("{", "group:")):
        return {f"{name}ingOffsets": text}
    parse_time(name, text, now_ms)  # so that an error names the caller's argument, not the option
    return {f"{name}ingTimestamp": text}
