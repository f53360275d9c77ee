"""`penstock bench`: it measures what it says, on a broker of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from penstock.shared.verify import verify_store


def test_bench_produce_stores_what_it_counts(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "penstock.cli.main",
            "bench",
            "produce",
            "--messages",
            "5000",
            "--body-bytes",
            "100",
            "--runs",
            "2",
            "-o",
            "json",
            "--store",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    for run, result in enumerate(results):
        assert (result["messages"], result["body_bytes"]) == (5000, 100)
        assert abs(result["messages_per_second"] * result["seconds"] - 5000) < 1
        # the first one asks for the topic's route and is not counted
        assert verify_store(tmp_path / str(run)).messages == 5001
    assert len(results) == 2
