"""The data source "penstock" for PySpark: names, schema, partitions, batches.

Reads a store directory as files, whether its broker runs or not, or from a broker. The messages of
a frame are fixed when its first query is planned; load again to see later ones, or read it as a
stream. Owns the columns' names and types. The work is done in `reading`, which is imported late,
because Spark's workers import this module to look the source up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.shared.next_steps import did_you_mean
from penstock.spark.plainly import plainly, rows_plainly

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.reading.options import Options
    from penstock.spark.reading.predicates import Predicate
    from penstock.spark.sink.writers import BatchWriter, StreamWriter

COLUMNS: dict[str, DataType] = {
    "topic": StringType(),
    "queue_id": IntegerType(),
    "queue_offset": LongType(),
    "physical_offset": LongType(),
    "keys": StringType(),  # the property KEYS
    "tags": StringType(),  # the property TAGS
    "body": BinaryType(),
    "born_timestamp": TimestampType(),
    "store_timestamp": TimestampType(),
    "properties": MapType(StringType(), StringType()),
}
# in mode PERMISSIVE: what is wrong with a damaged record; null for all others
CORRUPT = "_corrupt_record"


class PenstockSource(DataSource):
    """`spark.read.format("penstock").option("path", STORE).option("subscribe", "flights")`."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    @plainly
    def schema(self) -> StructType:
        from penstock.shared.names import listed
        from penstock.spark.reading.options import Mode, parse_options

        options = parse_options(self.options)
        names = listed(options.columns)
        fields = [StructField(name, type_of(name)) for name in names or COLUMNS]
        if options.mode is Mode.PERMISSIVE and CORRUPT not in names:
            fields.append(StructField(CORRUPT, type_of(CORRUPT)))
        return StructType(fields)

    @plainly
    def reader(self, schema: StructType) -> StoreReader:
        from penstock.spark.reading.options import parse_options

        check_schema(schema)
        options = parse_options(self.options)
        return (PushingReader if options.push_filters else StoreReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from penstock.shared.errors import PenstockError
        from penstock.spark.reading.options import parse_options
        from penstock.spark.reading.stream import RefusedStream, StoreStreamReader

        try:
            check_schema(schema)
            return StoreStreamReader(parse_options(self.options), schema)
        except PenstockError as error:
            return RefusedStream(error)

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from penstock.spark.sink.writers import batch_writer

        return batch_writer(self.options, schema, overwrite)

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        from penstock.spark.sink.writers import stream_writer

        return stream_writer(self.options, schema, overwrite)


class StoreReader(DataSourceReader):
    """Plans on the driver, reads in the workers."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.predicates: list[Predicate] = []

    @plainly
    def partitions(self) -> list[InputPartition]:
        from penstock.spark.reading.task import plan_query

        planned = plan_query(self.options, self.predicates, self.schema.fieldNames())
        return [InputPartition(ranges) for ranges in planned]

    @rows_plainly
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from penstock.spark.reading.rows import how_of
        from penstock.spark.reading.task import read_partition

        how = how_of(self.options, self.predicates)
        return read_partition(self.options, partition.value, self.schema, how)


class PushingReader(StoreReader):
    """Like StoreReader, for a query whose filters the tasks apply.

    It is a class of its own because Spark refuses a reader with this method unless
    spark.sql.python.filterPushdown.enabled is set. An option chooses it because a frame must then
    have only one query: Spark 4.3 keeps the partitions that it planned with filters, and reuses
    them for a later query of the same frame that has no filters to push.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Keep what the tasks will apply, and give the others back to Spark."""
        from penstock.spark.reading.pushed_filters import accept

        self.predicates, left = accept(filters, COLUMNS)
        return left


def check_schema(schema: StructType) -> None:
    """Raise ConfigError for a column that does not exist, has another type, or forbids nulls."""
    from penstock.shared.errors import ConfigError

    for field in schema.fields:
        wanted = type_of(field.name)
        kind = field.dataType.simpleString()
        if kind != wanted.simpleString():
            raise ConfigError(
                f"column {field.name} is not of this type",
                f"{kind} for {wanted.simpleString()}",
                "cast it after the load",
            )
        # Java would meet nulls that it does not check for. Past the check above, types can differ
        # only in whether they allow nulls.
        if not field.nullable or field.dataType != wanted:
            raise ConfigError(
                f"column {field.name} is to have no nulls, and all columns are nullable",
                f"{field.name} {kind}",
                "leave out NOT NULL, and valueContainsNull=False of a MapType",
            )


def type_of(name: str) -> DataType:
    """Raises ConfigError for a column that does not exist."""
    from penstock.shared.errors import ConfigError

    if name == CORRUPT:
        return StringType()
    if name not in COLUMNS:
        raise ConfigError("the source has no such column", name, did_you_mean(name, COLUMNS))
    return COLUMNS[name]
