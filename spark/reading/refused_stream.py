"""A stream that cannot be: whatever Spark asks of it is answered with the reason.

Where the making of a reader fails, Spark 4.3 stops a reader that there is not, and its error for
that covers ours.
"""

from __future__ import annotations

from typing import NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from penstock.shared.errors import PenstockError
from penstock.spark.plainly import plainly


class RefusedStream(DataSourceStreamReader):
    """Of wrong options, or of a wrong schema."""

    def __init__(self, error: PenstockError) -> None:
        self._error = error

    @plainly
    def initialOffset(self) -> NoReturn:
        raise self._error

    @plainly
    def latestOffset(self, start: object, limit: ReadLimit) -> NoReturn:
        raise self._error

    @plainly
    def partitions(self, start: object, end: object) -> NoReturn:
        raise self._error

    @plainly
    def read(self, partition: InputPartition) -> NoReturn:
        raise self._error
