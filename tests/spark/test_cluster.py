"""A master and two workers, processes of their own, run every source, the sink and every job, while
workers are killed and others come."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock.chaos.machine.spark_cluster import EXECUTORS, Cluster, running_cluster
from penstock.cli.spark import script as spark_script
from penstock.client import Consumer, MessageQuery, Producer
from penstock.maintenance.verify.check import verify_store
from penstock.spark.java import java_home

from .cluster_driver import SLOW_START

pytestmark = [pytest.mark.takes(180), pytest.mark.timeout(900)]

HERE = Path(__file__).parent
MESSAGES, QUEUES, KEYS = 3000, 4, 40


class Driver:
    """cluster_driver.py, which does a step at a time."""

    def __init__(self, cluster: Cluster, broker: Any, place: Path) -> None:
        self.place = place
        script = str(HERE / "cluster_driver.py")
        arguments = [cluster.url, str(broker.store), broker.produce, broker.consume, str(place)]
        with (place / "said").open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, script, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                env={**os.environ, "TMPDIR": str(place)},
            )

    def run(self, step: str) -> dict[str, Any]:
        self.begin(step)
        return self.finish()

    def begin(self, step: str) -> None:
        assert self._process.stdin is not None
        print(step, file=self._process.stdin, flush=True)

    def finish(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, (self.place / "said").read_text()[-3000:]
        found: dict[str, Any] = json.loads(line)
        return found

    def wait_for(self, pattern: str) -> None:
        """Until there is a file of this name; the step takes some seconds longer."""
        until = time.monotonic() + 300
        while not any(self.place.glob(pattern)):
            assert time.monotonic() < until and self._process.poll() is None
            time.sleep(0.02)

    def stop(self) -> None:
        """Its executors go, too: they hold every core of the cluster."""
        try:
            self._process.communicate(timeout=120)
        finally:
            self._process.kill()
            self._process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Its virtual machines start as tests/conftest.py has those of sessions start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", os.environ.get("SPARK_SUBMIT_OPTS", ""))
        with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
            yield running


@pytest.fixture(scope="module")
def broker(start_shared_broker: Callable[..., Any]) -> Any:
    """Its topic `flights` has 3,000 messages of 40 keys, each of which is in one queue."""
    running = start_shared_broker()
    with Producer(store=running.store) as producer:
        for topic in ("flights", "copy", "twice", "mirror"):
            producer.create_topic(topic, QUEUES)
        for n in range(MESSAGES):
            producer.send("flights", b"%d" % n, queue=n % QUEUES, keys=f"k{n % KEYS}")
    return running


@pytest.fixture(scope="module")
def driver(
    cluster: Cluster, broker: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Driver]:
    running = Driver(cluster, broker, tmp_path_factory.mktemp("driver"))
    yield running
    running.stop()


def test_spark_submit_runs_the_example_on_the_cluster(
    cluster: Cluster, broker: Any, tmp_path: Path
) -> None:
    script = HERE.parent.parent / "docs" / "examples" / "mirror.py"
    ends = (broker.consume, "flights", broker.produce, "mirror")
    submit(cluster, tmp_path, script, *ends, str(tmp_path / "checkpoint"), "once")
    assert Counter(bodies(broker, "mirror")) == Counter(numbers())


def test_every_row_comes_once_from_a_cluster_that_loses_a_worker(
    cluster: Cluster, driver: Driver
) -> None:
    assert driver.run("count") == {"count": MESSAGES, "parts": 24}
    driver.begin("batch_by_path")
    driver.wait_for("path-batch/_temporary/0/task_*")  # the first task has ended
    assert not (driver.place / "path-batch" / "_SUCCESS").exists(), "the job is under way"
    cluster.kill_worker(0)
    cluster.start_worker(2)
    driver.finish()
    assert driver.run("stream_by_path")["batches"] >= 3
    driver.run("batch_by_endpoint")
    wanted = Counter((n % QUEUES, n // QUEUES, b"%d" % n) for n in range(MESSAGES))
    for name in ("path-batch", "path-stream", "endpoint-batch"):
        assert rows(driver.place / name) == wanted, name


def test_a_task_that_is_run_twice_at_once_stores_its_rows_once(broker: Any, driver: Driver) -> None:
    assert driver.run("write_a_partition_twice") == {"second": True}
    assert sorted(int(body.rstrip(b".")) for body in bodies(broker, "twice")) == [*range(4000)]


def test_a_stream_into_a_topic_stores_each_row_once_though_a_worker_is_lost(
    cluster: Cluster, broker: Any, driver: Driver
) -> None:
    driver.begin("stream_into_a_topic")
    driver.wait_for("endpoint-checkpoint/commits/0")
    cluster.kill_worker(1)
    cluster.start_worker(3)
    assert driver.finish()["batches"] >= 3
    assert Counter(bodies(broker, "copy")) == Counter(numbers())


def test_jobs_on_a_running_store_go_on_though_a_worker_is_lost(
    cluster: Cluster, broker: Any, driver: Driver
) -> None:
    audited = driver.run("audit")
    assert audited["ok"] and audited["messages"] > 2 * MESSAGES
    driver.begin("archive")
    cluster.kill_worker(2)
    archived = driver.finish()
    assert archived["ok"] and archived["messages"] == archived["compared"] > 2 * MESSAGES
    assert driver.run("restore") == {"messages": MESSAGES}
    assert Counter(bodies(broker, "restored")) == Counter(numbers())
    assert driver.run("stats") == {"messages": MESSAGES, "gaps": []}
    assert driver.run("compact") == {"messages": MESSAGES, "kept": KEYS}
    assert sorted(bodies(broker, "last")) == sorted(numbers()[-KEYS:])
    driver.stop()


def test_spark_submit_rebuilds_a_stopped_store_on_the_cluster(
    cluster: Cluster, broker: Any, tmp_path: Path
) -> None:
    assert broker.stop() == 0
    queues = broker.store / "consumequeue"
    before = contents(queues)
    shutil.rmtree(queues)
    submit(cluster, tmp_path, Path(spark_script.__file__), "rebuild", str(broker.store))
    assert contents(queues) == before and len(before) >= QUEUES
    assert verify_store(broker.store).ok


def submit(cluster: Cluster, place: Path, script: Path, *arguments: str) -> None:
    settings = {
        **EXECUTORS,
        "spark.cores.max": "1",  # an executor less to start
        "spark.driver.extraJavaOptions": EXECUTORS["spark.executor.extraJavaOptions"],
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(place / "local"),
        "spark.executorEnv.TMPDIR": str(place),
    }
    command = [str(Path(sys.executable).with_name("spark-submit")), "--master", cluster.url]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    loopback = {"SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": str(place)}
    python = {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable}
    while True:
        ran = subprocess.run(
            [*command, str(script), *arguments],
            env={**os.environ, **loopback, **python},
            capture_output=True,
            text=True,
            cwd=place,
        )
        if ran.returncode == 0:
            return
        assert SLOW_START in ran.stderr, ran.stderr[-3000:]


def numbers() -> list[bytes]:
    return [b"%d" % n for n in range(MESSAGES)]


def bodies(broker: Any, topic: str) -> list[bytes]:
    """What is in a topic, once the queues have it: a question finds what was stored before it."""
    with Producer(store=broker.store) as producer:
        producer.send("mark", b"").result(60)
    with MessageQuery(store=broker.store) as query:
        query.by_key("mark", "none")
    with Consumer(store=broker.store, topic=topic, follow=False) as consumer:
        return [bytes(message.body) for message in consumer]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(at.relative_to(folder)): at.read_bytes()
        for at in folder.rglob("*/[0-9]*[0-9]")
        if at.is_file()
    }


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
