"""Two tables out of a store: the orders as they arrived, and how many there are in each queue.

`spark-pipelines run` reads what is new since the last run. Which store it reads, spark-pipeline.yml
says.
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
STORE = spark.conf.get("orders.store")


@dp.table
def orders() -> DataFrame:
    """Each message once, however often a run is killed: a streaming table."""
    stream = spark.readStream.format("penstock").option("path", STORE)
    return stream.option("subscribe", "orders").load().drop("properties")


@dp.materialized_view
def orders_by_queue() -> DataFrame:
    """Computed from the table in each run."""
    return spark.read.table("orders").groupBy("queue_id").count()
