"""C libraries that are loaded into a broker's processes before everything else."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from penstock.shared.errors import MissingDependency


def find_compiler() -> str | None:
    """A C compiler; None if none is installed."""
    return shutil.which("cc") or shutil.which("gcc")


def compile_c(source: Path, target: Path, *flags: str) -> Path:
    """Compile a C file. Returns the target's path. Raises MissingDependency without a compiler."""
    compiler = find_compiler()
    if compiler is None:
        raise MissingDependency(
            f"there is no C compiler, which {source.stem} needs",
            "neither cc nor gcc is on PATH",
            "apt-get install gcc",
        )
    subprocess.run([compiler, "-O2", "-o", str(target), str(source), *flags], check=True)
    return target


def build_library(source: Path, place: Path) -> Path:
    """Compile a library. Returns its path. Raises MissingDependency without a C compiler."""
    return compile_c(source, place / f"{source.stem}.so", "-shared", "-fPIC", "-ldl")
