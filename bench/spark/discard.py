"""A sink in Python that throws rows away: the least that a sink of a Python data source costs.

Spark passes rows to a worker as batches of Arrow, and starts processes to make a writer, to write,
and to commit. So no other sink is faster, wherever it stores the rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType


class Discard(DataSource):
    """`df.write.format("discard")`, once it is registered."""

    @classmethod
    def name(cls) -> str:
        return "discard"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _Discarder()


class _Discarder(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
