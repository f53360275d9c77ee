"""Apache Spark over a store directory: a data source called "penstock" and jobs that use it.

    spark.read.format("penstock").option("path", STORE).option("subscribe", "flights").load()

May import `shared`, `client` and `maintenance`. Nothing heavy is imported here: Spark's Python
workers import this package.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the format known. Spark finds it by itself if `pyspark_penstock` is importable."""
    if importlib.util.find_spec("pyspark_penstock") is None:
        from penstock.spark.source import PenstockSource

        spark.dataSource.register(PenstockSource)
