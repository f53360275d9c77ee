"""Checks a whole store in parallel: what `penstock store verify` checks, on many cores.

    log, cut where records begin -> a walk for each part      \\
    index files                  -> their chains, file by file >  joined in log order -> a report
    queues, checkpoint, groups   -> on the driver             /

Workers read the store's files, which must be under the same path wherever a worker runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.maintenance.cuts import PART_BYTES, between, cuts_of
from penstock.maintenance.verify.check import Verification
from penstock.maintenance.verify.parts import Task, work
from penstock.maintenance.verify.report import VerifyReport
from penstock.shared.formats.delay_levels import DELAY_LEVELS_MS
from penstock.shared.formats.index_layout import Geometry
from penstock.shared.formats.record_crc import Checksum
from penstock.shared.store.directory import StoreDirectory
from penstock.spark.jobs.parts import Progress, run_parts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FINDING = "kind string, file string, offset bigint, position bigint, detail string"


class Audit(NamedTuple):
    """`findings` has a row for each problem; `offset` is within the file, `position` in the log."""

    report: VerifyReport
    findings: DataFrame


def audit_store(
    spark: SparkSession,
    directory: Path | str,
    *,
    checksum: Checksum = Checksum.BOTH,
    index: Geometry | None = None,
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS,
    part_bytes: int = PART_BYTES,
    progress: Progress | None = None,
) -> Audit:
    """Check the store in `directory`. The arguments are those of `verify_store`, which says what is
    checked. Writes nothing. Raises ConfigError if there is no store."""
    root = str(Path(directory).absolute())
    with StoreDirectory(root) as store:
        check = Verification(store, checksum, index, delay_levels_ms)
        cuts = list(cuts_of(store, part_bytes))
        tasks = [Task(root, check.how, start, stop) for start, stop in between(cuts)]
        tasks += [Task(root, check.how, index_file=each) for each in range(check.index_files)]
        costs = [check.cost(task) for task in tasks]
        encoded = [msgspec.msgpack.encode(task) for task in tasks]
        check.join_all(tasks, run_parts(spark, work, encoded, costs, progress))
        report = check.finish()
    rows = [msgspec.structs.astuple(problem) for problem in report.problems]
    return Audit(report, spark.createDataFrame(rows, FINDING))
