"""What a plan of files needs: Spark makes each with a new process, which imports it all again."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from penstock.shared.errors import ConfigError
from penstock.spark.reading.views import StoreView
from tests.spark.conftest import StoreBuilder


def test_a_plan_of_files_imports_no_clients_and_no_functions_of_arrows() -> None:
    heavy = "{'zmq', 'pyarrow.compute', 'penstock.client.reading.consumer'}"
    ran = subprocess.run(
        [sys.executable, "-c"]
        + [f"import sys, penstock.spark.reading.task; print({heavy} & set(sys.modules))"],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ran.stdout.strip() == "set()", ran.stderr


def test_records_without_queues_are_told_from_a_store_without_a_message(
    store: StoreBuilder,
) -> None:
    with StoreView(store.root) as view:
        view.check_queues("a stream")
    store.write_log(0, bytes(8))  # a segment that was only made ahead
    with StoreView(store.root) as view:
        view.check_queues("a stream")
    store.put()
    with StoreView(store.root) as view:
        view.check_queues("a stream")
    shutil.rmtree(store.paths.consume_queue)
    named = f"a stream reads consume queues.*{store.root}.*penstock store rebuild {store.root}"
    with StoreView(store.root) as view, pytest.raises(ConfigError, match=named):
        view.check_queues("a stream")
