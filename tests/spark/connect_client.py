"""The client of test_connect.py: `python` this STORE. Its server is started by PySpark itself."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(store: str) -> None:
    builder = SparkSession.builder.remote("local[2]")
    spark = builder.config("spark.sql.python.filterPushdown.enabled", "true").getOrCreate()
    frame = spark.read.format("penstock").option("path", store)
    rows = frame.option("pushFilters", "true").load().where("queue_id = 1").collect()
    print(json.dumps([[row.queue_offset, row.body.decode()] for row in rows]))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
