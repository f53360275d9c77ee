"""The client of test_connect.py: `python` this SERVER STORE."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from penstock.spark.jobs.audit import audit_store


def main(server: str, store: str) -> None:
    builder = SparkSession.builder.remote(server)
    spark = builder.config("spark.sql.python.filterPushdown.enabled", "true").getOrCreate()
    frame = spark.read.format("penstock").option("path", store)
    rows = frame.option("pushFilters", "true").load().where("queue_id = 1").collect()
    audit = audit_store(spark, store, part_bytes=1000)
    found = {
        "rows": [[row.queue_offset, row.body.decode()] for row in rows],
        "messages": audit.report.messages,
        "kinds": sorted({row.kind for row in audit.findings.collect()}),
    }
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
