"""What a program waits for when it imports the client: msgspec, and little else."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

import penstock
import penstock.client
from penstock.shared.loops import active

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
    "logging",
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
        ("penstock.client.aio", LATER - {"asyncio", "concurrent.futures", "logging"}),
    ],
)
def test_a_client_imports_nothing_large(module: str, later: set[str]) -> None:
    assert imported_by(f"from {module} import *") & later == set()


def test_importing_penstock_imports_nothing_else() -> None:
    found = imported_by("import penstock") - imported_by("import __future__")
    assert found == {"penstock"}


def test_the_names_of_the_client_are_in_penstock_too_and_are_the_same_objects() -> None:
    assert penstock.Producer is penstock.client.Producer
    for name in penstock.client.__all__:
        assert getattr(penstock, name) is getattr(penstock.client, name)
        assert name in dir(penstock)
    assert {*penstock.__all__} <= {*dir(penstock)}
    assert len(dir(penstock.client)) == len({*dir(penstock.client)})
    assert not hasattr(penstock, "Nothing")


# What talks to a broker and what words an error, each imported when that is to be done.
ONCE_USED = {
    "zmq",
    "base64",
    "mmap",
    "random",
    "socket",
    "selectors",
    "pathlib",
    "urllib.parse",
    "ipaddress",
    "json",
    "shlex",
    "signal",
    "penstock.client.core.transactions",
    "penstock.shared.next_steps",
    "penstock.shared.wire.ask_broker",
}
# Cython makes the last two, for the compiled loops.
PACKAGES = re.compile(r"penstock|msgspec|typing_extensions|isal|_cython_\w+|cython_runtime")
ROOMS = {"filters", "formats", "loops", "memory", "messaging", "wire"}


def test_naming_producer_and_consumer_imports_no_sockets_and_nothing_of_a_broker() -> None:
    found = imported_by("from penstock.client import Producer, Consumer") - imported_by("pass")
    assert found & (LATER | ONCE_USED) == set()
    packages = {each.partition(".")[0] for each in found} - sys.stdlib_module_names
    assert [each for each in packages if not PACKAGES.fullmatch(each)] == []
    in_rooms = [each.split(".") for each in found if each.startswith("penstock.shared.")]
    assert {each[2] for each in in_rooms if len(each) > 3} <= ROOMS


@pytest.mark.skipif(bool(active.why_pure), reason="there are no compiled loops here")
def test_the_twin_of_the_compiled_loops_is_imported_when_they_first_want_it() -> None:
    twin = "penstock.shared.loops.pure"
    found = imported_by("from penstock.client import Producer, Consumer")
    assert {each for each in found if each.startswith(twin)} == {twin}
    wants = "from penstock.shared.loops.compiled import log_ranges; log_ranges(b'', 1, 0)"
    assert {each for each in imported_by(wants) if each.startswith(twin)} == {
        twin,
        f"{twin}.ranges",
    }


def test_an_actor_that_needs_the_core_imports_no_client() -> None:
    """Each start of a broker would wait for that."""
    found = imported_by("import penstock.client.core.sending.record_sender")
    clients = {each for each in found if each.startswith("penstock.client.")}
    assert {each for each in clients if not each.startswith("penstock.client.core")} == set()


def imported_by(code: str) -> set[str]:
    code = f"{code}; import json, sys; json.dump(sorted(sys.modules), sys.stdout)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    return set(json.loads(done.stdout))
