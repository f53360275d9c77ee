"""Libraries in C that are loaded into a broker's processes before everything else."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from penstock.shared.errors import MissingDependency


def find_compiler() -> str | None:
    """A C compiler; None where none is installed."""
    return shutil.which("cc") or shutil.which("gcc")


def build_library(source: Path, place: Path) -> Path:
    """Compile one; the library's path. Raises MissingDependency without a C compiler."""
    compiler = find_compiler()
    if compiler is None:
        raise MissingDependency(
            f"there is no C compiler, which {source.stem} needs",
            "neither cc nor gcc is on PATH",
            "apt-get install gcc",
        )
    library = place / f"{source.stem}.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library
