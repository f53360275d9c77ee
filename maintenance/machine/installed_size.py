"""The disk space of an installation of Penstock, including the libraries that it needs.

It counts what pip has recorded for each. Compiled bytecode, which Python adds later, does not
count; nor do libraries of extras, since a broker runs without them.
"""

from __future__ import annotations

import os
import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import penstock

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def installed_bytes() -> tuple[int, int]:
    """Bytes of Penstock's own files, and of its libraries'."""
    # for a checkout pip records only where it is
    own = _folder_bytes(Path(penstock.__file__).parent)
    return own, sum(map(_library_bytes, _libraries("penstock") - {"penstock"}))


def _libraries(name: str) -> set[str]:
    """The libraries that it needs on this system without extras, directly and indirectly."""
    found, wanted = set(), {name}
    while wanted:
        each = wanted.pop()
        try:
            needs = distribution(each).requires or []
        except PackageNotFoundError:
            continue  # only needed for another Python, or another system
        found.add(each)
        names = (_NAME.match(need) for need in needs if "extra ==" not in need)
        wanted |= {name[0].lower() for name in names if name} - found
    return found


def _library_bytes(name: str) -> int:
    places = (Path(str(file.locate())) for file in distribution(name).files or ())
    return sum(each.stat().st_size for each in places if each.suffix != ".pyc" and each.exists())


def _folder_bytes(folder: Path) -> int:
    found = 0
    for place, folders, files in os.walk(folder, followlinks=True):
        if "__pycache__" in folders:
            folders.remove("__pycache__")
        found += sum(os.stat(os.path.join(place, each)).st_size for each in files)
    return found
