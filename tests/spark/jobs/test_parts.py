"""The parts of a job, as tasks of Spark."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark import InheritableThread
from pyspark.sql import SparkSession

from penstock.spark.jobs.parts import run_parts, watched

WAIT_S = 60


def test_results_are_in_the_order_of_the_parts(spark: SparkSession) -> None:
    told: list[tuple[int, int]] = []
    found = run_parts(
        spark, bytes.upper, [b"a", b"b", b"c"], [1, 2, 3], lambda *done: told.append(done)
    )
    assert found == [b"A", b"B", b"C"]
    assert told[-1] == (6, 6)


def test_ctrl_c_cancels_the_tasks_that_run(spark: SparkSession, tmp_path: Path) -> None:
    begun, over = tmp_path / "begun", tmp_path / "over"

    def wait(part: bytes) -> bytes:
        begun.touch()
        while not over.exists():
            time.sleep(0.01)
        return part

    ended: list[Exception | None] = []

    def run() -> None:
        try:
            spark.sparkContext.parallelize([b""], 1).map(wait).collect()
            ended.append(None)
        except Exception as error:
            ended.append(error)

    until = time.monotonic() + WAIT_S
    try:
        with pytest.raises(KeyboardInterrupt), watched(spark, [1], None):
            running = InheritableThread(target=run)
            running.start()
            while not begun.exists():
                assert time.monotonic() < until
                time.sleep(0.01)
            raise KeyboardInterrupt
        running.join(WAIT_S)
        assert ended, "the task goes on"
        assert "cancelled" in str(ended[0])
        assert not spark.sparkContext.getJobTags(), "the next job is another one"
    finally:
        over.touch()
