"""The script and the notebook in docs/examples do what they say."""

from __future__ import annotations

import json
import runpy
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.client import Consumer, Producer

from .conftest import StoreBuilder

EXAMPLES = Path(__file__).parent.parent.parent / "docs" / "examples"


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
