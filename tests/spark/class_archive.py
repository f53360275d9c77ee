"""The classes that every start of Spark loads, laid out once so that it maps them: `make test`.

A start takes 5 s of processor time with this archive and 9 s without it, and the tests start Spark
some thirty times. A JVM that cannot use it, as one of another version, starts without it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from penstock.spark.session import local_session


def main(target: Path) -> None:
    # beside its place, as it is moved there when it is whole
    with tempfile.TemporaryDirectory(dir=target.parent) as place:
        made = Path(place) / "classes"
        os.environ["SPARK_SUBMIT_OPTS"] = f"-Xlog:disable -XX:ArchiveClassesAtExit={made}"
        session = local_session()
        rows = session.range(100).selectExpr("id", "id % 7 AS rest")
        rows.write.parquet(f"{place}/rows")
        session.read.parquet(f"{place}/rows").groupBy("rest").count().collect()
        counted = session.readStream.schema(rows.schema).parquet(f"{place}/rows").writeStream
        stream = counted.option("checkpointLocation", f"{place}/seen").format("noop").start()
        stream.processAllAvailable()
        stream.stop()
        java = session.sparkContext._gateway.proc
        session.stop()
        java.stdin.close()  # by which it ends
        java.wait()
        if made.exists():  # not every Java can
            made.rename(target)


main(Path(sys.argv[1]))
