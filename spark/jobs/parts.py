"""One Spark task for each part of a job's work, and their progress.

Parts and results are bytes, so that a worker needs to know nothing but the function.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Progress = Callable[[int, int], None]
LOOK_S = 0.2


def run_parts(
    spark: SparkSession | None,
    work: Callable[[bytes], bytes],
    parts: Sequence[bytes],
    costs: Sequence[int],
    progress: Progress | None = None,
) -> list[bytes]:
    """The result of each part, in their order. `work` is a function that workers can import.

    `progress` gets approximate (done, total) in the unit of `costs`: Spark tells how many tasks are
    done, but not which. Ctrl-C cancels the tasks. Errors of `work` are raised as Spark wraps them.
    Without Spark the parts are done here, one after the other.
    """
    if not parts:
        return []
    if spark is None:
        return list(_here(work, parts, costs, progress or (lambda done, total: None)))
    with watched(spark, costs, progress):
        if (context := _context(spark)) is not None:
            # Not as a query, because Java needs time to prepare SQL for a session's first one.
            return context.parallelize(parts, len(parts)).map(work).collect()
        return _collected(spark, work, parts)


def _context(spark: SparkSession) -> SparkContext | None:
    """None over Spark Connect, which only has queries, and no information about tasks."""
    return getattr(spark, "sparkContext", None)


def _collected(
    spark: SparkSession, work: Callable[[bytes], bytes], parts: Sequence[bytes]
) -> list[bytes]:
    """The results, computed by a query."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                columns = {"number": [number], "result": [work(parts[number])]}
                yield pa.RecordBatch.from_pydict(columns)

    frame = spark.range(0, len(parts), 1, len(parts)).mapInArrow(
        run, "number bigint, result binary"
    )
    results = {row.number: bytes(row.result) for row in frame.collect()}
    return [results[number] for number in range(len(parts))]


@contextmanager
def watched(spark: SparkSession, costs: Sequence[int], progress: Progress | None) -> Iterator[None]:
    """Report the progress of Spark's work in the block, stage by stage: each begins at 0 again, and
    (0, 0) is reported while none runs. The first stage has a task for each of `costs`. Ctrl-C
    cancels what runs."""
    with _cancelled_by_ctrl_c(spark):
        if progress is None:
            yield
            return
        over = threading.Event()
        watch = threading.Thread(target=_watch, args=(spark, costs, progress, over), daemon=True)
        watch.start()
        try:
            yield
        finally:
            over.set()
            watch.join()
        progress(sum(costs), sum(costs))


@contextmanager
def _cancelled_by_ctrl_c(spark: SparkSession) -> Iterator[None]:
    group = f"penstock-{uuid.uuid4().hex}"
    cancel: Callable[[str], object]
    # a session's tags apply only to its queries, the context's to all jobs
    if (context := _context(spark)) is None:
        add, cancel, remove = spark.addTag, spark.interruptTag, spark.removeTag
    else:
        add, cancel, remove = context.addJobTag, context.cancelJobsWithTag, context.removeJobTag
    add(group)
    try:
        yield
    except KeyboardInterrupt:
        cancel(group)
        raise
    finally:
        remove(group)


def _here(
    work: Callable[[bytes], bytes],
    parts: Sequence[bytes],
    costs: Sequence[int],
    progress: Progress,
) -> Iterator[bytes]:
    for number, part in enumerate(parts):
        yield work(part)
        progress(sum(costs[: number + 1]), sum(costs))


def _watch(
    spark: SparkSession, costs: Sequence[int], progress: Progress, over: threading.Event
) -> None:
    """Report the progress of the last running stage, until all is over."""
    if (context := _context(spark)) is None:
        return
    tracker = context.statusTracker()
    known: tuple[int, int] | None = None
    while not over.wait(LOOK_S):
        now = 0, 0
        for stage in sorted(tracker.getActiveStageIds()):
            if (found := tracker.getStageInfo(stage)) is not None and found.numTasks:
                now = _done(costs, found.numCompletedTasks, found.numTasks), sum(costs)
        if now != known:
            known = now
            progress(*now)


def _done(costs: Sequence[int], done: int, tasks: int) -> int:
    """How much of the costs a stage has done: Spark tells how many tasks, but not which."""
    return sum(costs[:done]) if tasks == len(costs) else sum(costs) * done // tasks
