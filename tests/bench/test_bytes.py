"""How often a byte is handled: what is counted is there to count, and what is measured is whole."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module

import pytest

from penstock.bench.log.bytes import HANDLED

pytestmark = pytest.mark.takes(20)


@pytest.mark.parametrize("where", [step.where for step in HANDLED])
def test_what_handles_a_byte_is_where_the_table_says(where: str) -> None:
    parts = f"penstock.{where}".split(".")
    at = next(
        index for index, part in enumerate(parts) if part[0].isupper() or index + 1 == len(parts)
    )
    found = import_module(".".join(parts[:at]))
    for name in parts[at:]:
        found = getattr(found, name)


def test_each_byte_is_written_once_by_the_committer_and_a_segments_by_the_measurement() -> None:
    small = ("--seconds", "0.5", "--size", "1000", "--gib", "0.02", "--runs", "1")
    command = [sys.executable, "-m", "penstock.cli.main", "bench", "bytes", *small, "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    found, segment = map(json.loads, done.stdout.splitlines())
    rows = {row["process"]: row for row in found["rows"]}
    assert 1 < rows["committer"]["written_by_calls"] < 1.3
    assert 1 < rows["committer"]["to_the_disk"] < 1.5
    assert rows["writer"]["to_the_disk"] < 0.1
    ways = "first_large", "first_uneven", "first", "again", "read_uneven", "read"
    assert min(segment[f"{way}_mb_per_s"] for way in ways) > 0
