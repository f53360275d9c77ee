"""The main job: every flight through the actors, one of them killed, into Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.maintenance.verify.check import verify_store

pytestmark = pytest.mark.takes(60)

LAST_LINE = (
    "demo ok: 336776 published, 336776 consumed, 336776 in Spark, 1 actor killed and restarted, "
    "1 of 2 consumers killed, 5442 windows and 66 alerts of a stream killed once"
)


def test_the_demo_counts_every_flight_and_leaves_a_store_without_fault(tmp_path: Path) -> None:
    store = tmp_path / "store"
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "demo", "-o", "json"]
        + ["--store", str(store), "--page", str(tmp_path / "page.html")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    *rows, last = done.stdout.splitlines()
    assert last == LAST_LINE
    assert sum(json.loads(row)["flights"] for row in rows) == 336_776
    report = verify_store(store)
    assert (report.ok, report.clean) == (True, True)
    flights = (q.max_offset - q.min_offset for q in report.queues if q.topic == "flights")
    assert sum(flights) == 336_776
    assert report.problems == report.notes == []
    page = (tmp_path / "page.html").read_text()
    assert "66 alerts in topic" in page and page.count("<path ") == 5


def test_the_demo_does_not_touch_a_directory_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "demo", "--store", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
