"""What an installation takes, beside what a walk over its folders finds."""

from __future__ import annotations

import sys
from pathlib import Path

import click

import penstock
from penstock.maintenance.machine.installed_size import installed_bytes

# The folders of what pyproject.toml asks for, and of what that asks for.
FOLDERS = (
    *("zmq", "pyzmq.libs", "psutil", "msgspec", "numpy", "numpy.libs", "isal", "lz4", "click"),
    *("rich", "pygments", "markdown_it", "mdurl"),
    *(() if sys.version_info >= (3, 14) else ("backports",)),
)


def _walked(folder: Path) -> int:
    files = (each for each in folder.rglob("*") if each.is_file() and each.suffix != ".pyc")
    return sum(each.stat().st_size for each in files)


def test_of_libraries_those_count_that_a_broker_needs_and_no_extras() -> None:
    packages = Path(click.__file__).parents[1]
    walked = sum(_walked(packages / each) for each in FOLDERS)
    _, libraries = installed_bytes()
    # the rest is what pip itself has written of each: licences, lists of files
    assert walked <= libraries < 1.05 * walked


def test_of_penstock_all_counts_that_its_package_holds() -> None:
    package = Path(penstock.__file__).parent
    own, _ = installed_bytes()
    parts = {each.name for each in package.iterdir() if each.is_dir()} - {"__pycache__"}
    assert {"actors", "shared", "client"} <= parts
    files = (each for each in package.iterdir() if each.is_file())
    walked = sum(_walked((package / each).resolve()) for each in parts)
    assert own == walked + sum(each.stat().st_size for each in files)
