"""The data source "penstock" for PySpark: names, schema, partitions, batches.

Reads a store directory as files, running or stopped. Which messages a frame holds is fixed when its
first query is planned; load again to see what came later. Owns the columns' names and types; the
work is done by `plan` and `scan`, which are imported where they are used, because Spark's workers
import this module to look the source up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
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

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.plan import Options

COLUMNS: dict[str, DataType] = {
    "topic": StringType(),
    "queue_id": IntegerType(),
    "queue_offset": LongType(),
    "physical_offset": LongType(),
    "key": StringType(),  # the property KEYS
    "tags": StringType(),  # the property TAGS
    "body": BinaryType(),
    "born_timestamp": TimestampType(),
    "store_timestamp": TimestampType(),
    "properties": MapType(StringType(), StringType()),
}


class PenstockSource(DataSource):
    """`spark.read.format("penstock").option("path", STORE).option("subscribe", "flights")`."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        from penstock.spark.plan import parse_options

        columns = parse_options(self.options).columns
        names = [name.strip() for name in columns.split(",") if name.strip()] or list(COLUMNS)
        return StructType([StructField(name, _type_of(name)) for name in names])

    def reader(self, schema: StructType) -> StoreReader:
        from penstock.shared.errors import ConfigError
        from penstock.spark.plan import parse_options

        for field in schema.fields:
            if field.dataType != _type_of(field.name):
                raise ConfigError(
                    f"column {field.name} is not of this type",
                    f"{field.dataType.simpleString()} for {_type_of(field.name).simpleString()}",
                    "cast it after the load",
                )
        return StoreReader(parse_options(self.options), schema)


class StoreReader(DataSourceReader):
    """Plans on the driver's side, reads in the workers."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        from penstock.shared.store.directory import StoreDirectory
        from penstock.spark.plan import plan

        with StoreDirectory(self.options.path) as store:
            return [InputPartition(ranges) for ranges in plan(store, self.options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        from penstock.shared.store.directory import StoreDirectory
        from penstock.spark.scan import read_range

        arrow_schema = to_arrow_schema(self.schema, timezone="UTC")
        with StoreDirectory(self.options.path) as store:
            for piece in partition.value:
                for arrays in read_range(store, piece, self.schema.fieldNames()):
                    yield pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)


def _type_of(name: str) -> DataType:
    """Raises ConfigError for a column that there is not."""
    from penstock.shared.errors import ConfigError

    if name not in COLUMNS:
        raise ConfigError("the source has no such column", name, did_you_mean(name, COLUMNS))
    return COLUMNS[name]
