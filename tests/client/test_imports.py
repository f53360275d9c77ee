"""What a program waits for when it imports the client: ZeroMQ, msgspec, and little else."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# large, or for what few clients do: those import it when they do it
LATER = {
    "numpy",
    "pyarrow",
    "rich",
    "click",
    "asyncio",
    "concurrent.futures",
    "multiprocessing",
    "ctypes",
    "lz4",
    "backports.zstd",
    "compression.zstd",
    "tomllib",
    "difflib",
    "secrets",
    "penstock.cli",
    "penstock.actors",
    "penstock.spark",
    "penstock.shared.filters.sql92_parser",
    "penstock.shared.memory.run_directory",
}


@pytest.mark.parametrize(
    ("module", "later"),
    [
        ("penstock.client", LATER),
        ("penstock.errors", LATER | {"zmq"}),
        ("penstock.client.aio", LATER - {"asyncio", "concurrent.futures"}),
    ],
)
def test_a_client_imports_nothing_large(module: str, later: set[str]) -> None:
    assert imported_by(f"from {module} import *") & later == set()


def test_an_actor_that_needs_the_core_imports_no_client() -> None:
    """Each start of a broker would wait for that."""
    found = imported_by("import penstock.client.core.sending.record_sender")
    clients = {each for each in found if each.startswith("penstock.client.")}
    assert {each for each in clients if not each.startswith("penstock.client.core")} == set()


def imported_by(code: str) -> set[str]:
    code = f"{code}; import json, sys; json.dump(sorted(sys.modules), sys.stdout)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    return set(json.loads(done.stdout))
