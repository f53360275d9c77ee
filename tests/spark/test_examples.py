"""The script, the notebook and the pipeline in docs/examples do what they say."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.client import Consumer, Producer
from penstock.spark.java import java_home

from .conftest import StoreBuilder

EXAMPLES = Path(__file__).parent.parent.parent / "docs" / "examples"
# Spark gives up after 10 s on the Python process of a stream's source. A busy machine takes longer
# to start one, and then the pipeline tries again: this often, and after this many seconds.
PATIENCE = {
    "spark.sql.pipelines.maxFlowRetryAttempts": 100,
    "spark.sql.pipelines.execution.watchdog.minRetryTime": 1,
    "spark.sql.pipelines.execution.watchdog.maxRetryTime": 1,
}


def test_the_script_copies_a_topic_and_goes_on_where_it_stood(
    spark: SparkSession,
    start_shared_broker: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = start_shared_broker()
    arguments = [broker.produce, "orders", str(broker.store), "copy", str(tmp_path / "checkpoint")]
    monkeypatch.setattr(sys, "argv", ["mirror.py", *arguments, "once"])
    with Producer(store=broker.store) as producer:
        producer.create_topic("orders", 2)
        producer.create_topic("copy", 2)
        for number in range(60):
            producer.send("orders", b"%d" % number, tags="t", keys=[f"k{number}"])
            if number in (29, 59):
                producer.flush()
                runpy.run_path(str(EXAMPLES / "mirror.py"), run_name="__main__")
    found: Counter[Any] = Counter()
    while found.total() < 60:
        # the queues follow an acknowledgement within a tick, and a run ends with what there is
        runpy.run_path(str(EXAMPLES / "mirror.py"), run_name="__main__")
        with Consumer(store=broker.store, topic="copy", follow=False) as consumer:
            found = Counter((bytes(each.body), each.tags, each.keys) for each in consumer)
    assert found == Counter((b"%d" % number, "t", f"k{number}") for number in range(60))


def test_the_cells_of_the_notebook_run_one_after_the_other(
    spark: SparkSession, store: StoreBuilder
) -> None:
    for number in range(12):
        body = json.dumps({"amount": number}).encode()
        store.put("orders", number % 3, body, {"TAGS": "ab"[number % 2]})
    names: dict[str, Any] = {}
    for cell in json.loads((EXAMPLES / "orders.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            code = "".join(cell["source"]).replace("./store", store.root)
            exec(compile(code, "orders.ipynb", "exec"), names)
    assert names["queues"]["count(1)"].tolist() == [4, 4, 4]
    assert names["amounts"]["sum(amount)"].tolist() == [30, 36]


@pytest.mark.timeout(900)
def test_a_run_of_the_pipeline_adds_what_is_new_since_the_last_one(
    spark: SparkSession, connect_server: str, store: StoreBuilder, tmp_path: Path
) -> None:
    pytest.importorskip("yaml", reason="the extra spark-connect is not installed: make setup")
    place = shutil.copytree(EXAMPLES / "pipeline", tmp_path / "pipeline")
    spec = place / "spark-pipeline.yml"
    text = spec.read_text().replace("/var/lib/penstock/store", store.root)
    text = text.replace("/var/lib/orders-pipeline", str(tmp_path / "storage"))
    text = text.replace("name: orders", "name: orders\ndatabase: pipeline")
    # the file ends with its configuration
    spec.write_text(text + "".join(f'  {name}: "{value}"\n' for name, value in PATIENCE.items()))
    spark.sql(f"CREATE DATABASE pipeline LOCATION '{tmp_path / 'tables'}'")
    try:
        for count in (12, 24):
            for number in range(count - 12, count):
                store.put("orders", number % 3, b"%d" % number)
            run_pipeline(connect_server, place)
            orders, by_queue = (rows_of(spark, name) for name in ("orders", "orders_by_queue"))
            assert sorted(int(row.body) for row in orders) == [*range(count)]
            assert sorted(map(tuple, by_queue)) == [(n, count // 3) for n in range(3)]
    finally:
        spark.sql("DROP DATABASE pipeline CASCADE")


def rows_of(spark: SparkSession, table: str) -> list[Any]:
    spark.catalog.refreshTable(f"pipeline.{table}")  # another session has written it
    return spark.read.table(f"pipeline.{table}").collect()


def run_pipeline(server: str, place: Path) -> None:
    command = [Path(sys.executable).with_name("spark-pipelines"), "run", "--remote", server]
    ran = subprocess.run(
        command,
        env={**os.environ, "JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        cwd=place,
    )
    assert ran.returncode == 0, f"{ran.stdout}{ran.stderr}"[-3000:]
