"""A master and two workers, processes of their own, run batch and stream; one of them is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock.chaos.machine.spark_cluster import running_cluster

from .conftest import StoreBuilder


@pytest.mark.takes(60)
@pytest.mark.timeout(900)
def test_every_row_comes_once_from_a_cluster_that_loses_a_worker(
    store: StoreBuilder, tmp_path: Path
) -> None:
    for number in range(3000):
        store.put(queue_id=number % 4, body=b"%d" % number)
    place = tmp_path / "driver"
    place.mkdir()
    with running_cluster(tmp_path / "cluster") as cluster, (place / "said").open("wb") as said:
        script = Path(__file__).parent / "cluster_driver.py"
        driver = subprocess.Popen(
            [sys.executable, str(script), cluster.url, "path", store.root, str(place)],
            stdout=subprocess.PIPE,
            stderr=said,
            env={**os.environ, "TMPDIR": str(place)},
        )
        try:
            assert read_line(driver, place) == {"count": 3000, "parts": 24}
            # the next job takes some seconds, and its first task has ended
            until = time.monotonic() + 300
            while not any((place / "batch" / "_temporary").glob("0/task_*")):
                assert time.monotonic() < until and driver.poll() is None
                time.sleep(0.02)
            assert not (place / "batch" / "_SUCCESS").exists(), "the job is under way"
            cluster.kill_worker(0)
            assert read_line(driver, place)["batches"] >= 3
            assert driver.wait(120) == 0
        finally:
            driver.kill()
            driver.wait()
            assert driver.stdout is not None
            driver.stdout.close()
    wanted = Counter((n % 4, n // 4, b"%d" % n) for n in range(3000))
    assert rows(place / "batch") == wanted
    assert rows(place / "stream") == wanted


def read_line(driver: subprocess.Popen[bytes], place: Path) -> dict[str, Any]:
    assert driver.stdout is not None
    line = driver.stdout.readline()
    assert line, (place / "said").read_text()[-3000:]
    found: dict[str, Any] = json.loads(line)
    return found


def rows(place: Path) -> Counter[tuple[int, int, bytes]]:
    """What is in files that count; nothing failed in the stream's last attempt at a batch."""
    log = place / "_spark_metadata"
    if log.is_dir():
        entries = [
            json.loads(line)
            for file in log.iterdir()
            if file.name.isdigit()
            for line in file.read_text().splitlines()[1:]
        ]
        files = [Path(entry["path"].removeprefix("file://")) for entry in entries]
    else:
        files = list(place.glob("part-*"))
    found: Counter[tuple[int, int, bytes]] = Counter()
    for file in files:
        columns = pq.read_table(file).columns
        found.update(zip(*(column.to_pylist() for column in columns), strict=True))
    return found
