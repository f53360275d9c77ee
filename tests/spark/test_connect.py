"""A client of Spark Connect reads a store; the format is found without a registration there too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.maintenance.verify.check import verify_store

from .conftest import StoreBuilder


def test_a_client_of_spark_connect_reads_what_the_server_can_see(
    connect_server: str, store: StoreBuilder, tmp_path: Path
) -> None:
    pytest.importorskip("grpc", reason="the extra spark-connect is not installed: make setup")
    for number in range(30):
        store.put(queue_id=number % 3, body=b"%d" % number)
    client = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).parent / "connect_client.py"),
            connect_server,
            store.root,
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert client.returncode == 0, client.stderr[-3000:]
    found = json.loads(client.stdout.splitlines()[-1])
    assert sorted(found["rows"]) == [[n // 3, str(n)] for n in range(30) if n % 3 == 1]
    # a job, whose parts are a query there
    assert found["messages"] == 30
    assert found["kinds"] == sorted({each.kind for each in verify_store(store.root).problems})
