"""A checkout of its own, in which bugs are planted and tests run, as forks of forked_tests.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from mutate import Mutant

ROOT = Path(__file__).resolve().parents[2]
ENDLESS = "a test that does not end"
NO_TESTS_RAN = 5
# Python tells compiled sources apart by seconds and sizes, and two bugs may have both the same.
_moments_s = count(1)


class Tree:
    """What is tracked, as it stands here, and the compiled loops."""

    def __init__(self, place: Path, brokers: bool) -> None:
        self.place, self._brokers = place, brokers
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
        )
        for name in [*listed.stdout.decode().split("\0")[:-1], *_compiled()]:
            source, target = ROOT / name, place / name
            if source.exists() or source.is_symlink():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        # tests that have passed without a bug
        self._passed: set[str] = set()
        environment = os.environ | {
            "PYTHONPATH": str(place / "src"),
            "TMPDIR": str(place / "tmp"),
            # a thread would not be in its forks
            "OPENBLAS_NUM_THREADS": "1",
        }
        self._forks = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("forked_tests.py")],
            cwd=place,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        self._forks.communicate()

    @contextmanager
    def planted(self, path: Path, mutant: Mutant) -> Iterator[str]:
        """The tree with the bug in this file; gives who refuses to take it, or ""."""
        sound, stat = path.read_bytes(), path.stat()
        path.write_bytes(mutant.apply(sound))
        os.utime(path, (next(_moments_s),) * 2)
        try:
            yield self._compile() if path.suffix == ".pxi" else ""
        finally:
            path.write_bytes(sound)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            if path.suffix == ".pxi":
                for name in _compiled():
                    shutil.copy2(ROOT / name, self.place / name)

    def run(self, tests: Sequence[Path | str], limit_s: float, excluded: Sequence[str] = ()) -> str:
        """The first test that fails, ENDLESS, or "" where all pass."""
        if not tests:
            return ""
        (self.place / "tmp").mkdir(exist_ok=True)
        options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "--timeout=120", "--tb=no"]
        left_out = [f"--deselect={name}" for name in excluded]
        words = [*options, *left_out, *map(str, tests)]
        assert self._forks.stdin is not None and self._forks.stdout is not None
        self._forks.stdin.write(json.dumps([limit_s, self._brokers, words]) + "\n")
        self._forks.stdin.flush()
        code, said = json.loads(self._forks.stdout.readline())
        self._remove_runs()
        shutil.rmtree(self.place / "tmp", ignore_errors=True)
        if code in (0, NO_TESTS_RAN):
            return ""
        if code is None:
            return ENDLESS
        failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return failed[0].split(" ", 1)[1] if failed else f"pytest, exit code {code}"

    def without(self, tests: Sequence[Path | str], limit_s: float, excluded: Sequence[str]) -> str:
        """What of these fails without a bug, too, or "". What has passed once is not run again."""
        if {*map(str, tests)} <= self._passed:
            return ""
        if not (failed := self.run(tests, limit_s, excluded)):
            self._passed |= {*map(str, tests)}
        return failed

    def _remove_runs(self) -> None:
        """What a killed test's brokers left in shared memory."""
        for directory in Path("/dev/shm").glob("penstock-*"):
            store = directory / "store"
            if store.is_file() and store.read_bytes().startswith(os.fsencode(self.place)):
                shutil.rmtree(directory, ignore_errors=True)

    def _compile(self) -> str:
        """Build the compiled loops; the reason why that cannot be done, or ""."""
        command = [sys.executable, "-c", _BUILD]
        built = subprocess.run(command, cwd=self.place, capture_output=True, text=True)
        return "" if built.returncode == 0 else "the compiler"


def _compiled() -> list[str]:
    loops = ROOT / "shared" / "loops", ROOT / "maintenance" / "verify_loops"
    return [str(path.relative_to(ROOT)) for each in loops for path in each.glob("compiled*.so")]


_BUILD = """
from setuptools import Extension
from setuptools.dist import Distribution
from Cython.Build import cythonize
modules = []
for name in ("shared.loops", "maintenance.verify_loops"):
    folder = f"src/penstock/{name.replace('.', '/')}/native"
    modules.append(Extension(f"penstock.{name}.compiled", [f"{folder}/compiled.pyx"],
                             include_dirs=[folder], extra_compile_args=["-O0", "-g0"]))
build = Distribution({"ext_modules": cythonize(modules, force=True, quiet=True),
                      "package_dir": {"": "src"}}).get_command_obj("build_ext")
build.inplace = True
build.ensure_finalized()
build.run()
"""
