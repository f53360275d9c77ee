"""How well do the tests bite? Puts sampled bugs into copies of the tree and runs the nearest tests.

    make mutants                        30 bugs, other ones each time
    make mutants N=300 SEED=7           the same ones again
    make mutants ONLY=shared/formats    in these files only; several beginnings with commas between
    make mutants NEAR=12                with the 12 nearest test files of each alone: quicker
    make mutants N=300 SEED=7 FROM=107  on from the 107th, where a run was broken off

Each bug is tried against the tests nearest to its file, then the next nearest, until one fails that
passes without it. Without the far ones a bug that is not found may still be found by `make test`.
The report names every bug that no test found: read each, and write its test or the reason why
there cannot be one.
"""

from __future__ import annotations

import argparse
import difflib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import NamedTuple

from mutate import Mutant, compiled_mutants, python_mutants
from nearest import nearest_tests

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("actors", "shared", "client", "maintenance", "remoting", "supervisor.py")
# Test files that one pytest runs. Most bugs are found by the first; to read more takes seconds.
STEPS = (2, 6, 20, 1000)
NO_TESTS_RAN = 5
ENDLESS = "a test that does not end"


class Bug(NamedTuple):
    path: Path
    mutant: Mutant


class Outcome(NamedTuple):
    bug: Bug
    # the test that failed, or "" where all passed
    found_by: str
    seconds: float


def all_bugs(only: tuple[str, ...]) -> list[Bug]:
    """Every bug that the rules can make in the tracked sources."""
    listed = subprocess.run(
        ["git", "ls-files", *PLACES], cwd=ROOT, capture_output=True, text=True, check=True
    )
    bugs = []
    for name in listed.stdout.split():
        path = ROOT / name
        if not name.startswith(only) or path.name == "__init__.py":
            continue
        if path.suffix == ".py":
            bugs += [Bug(path, each) for each in python_mutants(path.read_bytes())]
        elif path.suffix == ".pxi":
            bugs += [Bug(path, each) for each in compiled_mutants(path.read_bytes())]
    return bugs


def copy_tree(to: Path) -> Path:
    """A checkout of its own: what is tracked, as it stands here, and the compiled loops."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in [*listed.stdout.decode().split("\0")[:-1], *compiled()]:
        source, target = ROOT / name, to / name
        if source.exists() or source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return to


def compiled() -> list[str]:
    loops = ROOT / "shared" / "loops", ROOT / "maintenance" / "verify_loops"
    return [str(path.relative_to(ROOT)) for each in loops for path in each.glob("compiled*.so")]


def try_bug(tree: Path, bug: Bug, limit_s: float, near: int) -> Outcome:
    """Put the bug in, run `near` test files until one fails that does not fail without it."""
    began = time.monotonic()
    path = tree / bug.path.relative_to(ROOT)
    tests, done, excluded = nearest_tests(tree, path)[:near], 0, list[str]()
    steps = list(STEPS)
    while steps and time.monotonic() - began < limit_s:
        with planted(tree, bug) as refused:
            some = tests[done : done + steps[0]]
            found_by = refused or run_tests(tree, some, limit_s, excluded)
        if not found_by:
            done += steps.pop(0)
            continue
        failed = [found_by.split(" - ")[0]] if "::" in found_by else some
        if refused or not (without := run_tests(tree, failed, limit_s, excluded)):
            return Outcome(bug, found_by, time.monotonic() - began)
        if found_by == without == ENDLESS:
            break  # these take as long without the bug, too
        if "::" not in found_by:
            raise SystemExit(f"without a bug, too, {' '.join(map(str, some))}: {without}")
        # a test that fails on this machine, or only sometimes, has found nothing
        excluded += failed
    return Outcome(bug, "", time.monotonic() - began)


@contextmanager
def planted(tree: Path, bug: Bug) -> Iterator[str]:
    """The tree with the bug in it; gives who refuses to take it, or ""."""
    path = tree / bug.path.relative_to(ROOT)
    sound = path.read_bytes()
    path.write_bytes(bug.mutant.apply(sound))
    try:
        yield compile_loops(tree) if path.suffix == ".pxi" else ""
    finally:
        path.write_bytes(sound)
        if path.suffix == ".pxi":
            for name in compiled():
                shutil.copy2(ROOT / name, tree / name)


def compile_loops(tree: Path) -> str:
    """Build the compiled loops of the tree; the reason why that cannot be done, or ""."""
    built = subprocess.run([sys.executable, "-c", _BUILD], cwd=tree, capture_output=True, text=True)
    return "" if built.returncode == 0 else "the compiler"


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


def run_tests(
    tree: Path, tests: Sequence[Path | str], limit_s: float, excluded: Sequence[str] = ()
) -> str:
    """The first test that fails, ENDLESS, or "" where all pass."""
    if not tests:
        return ""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "TMPDIR": str(tree / "tmp")}
    (tree / "tmp").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    left_out = [f"--deselect={name}" for name in excluded]
    process = subprocess.Popen(
        [*command, "--timeout=60", "--tb=no", *left_out, *map(str, tests)],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return ENDLESS
    finally:
        remove_runs(tree)
        shutil.rmtree(tree / "tmp", ignore_errors=True)
    if process.returncode in (0, NO_TESTS_RAN):
        return ""
    failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" ", 1)[1] if failed else f"pytest, exit code {process.returncode}"


def remove_runs(tree: Path) -> None:
    """What a killed test's brokers left in shared memory."""
    for directory in Path("/dev/shm").glob("penstock-*"):
        store = directory / "store"
        if store.is_file() and store.read_bytes().startswith(os.fsencode(tree)):
            shutil.rmtree(directory, ignore_errors=True)


def shown(bug: Bug) -> str:
    """The bug as a diff without context."""
    sound = bug.path.read_bytes()
    lines = difflib.unified_diff(
        sound.decode().splitlines(), bug.mutant.apply(sound).decode().splitlines(), n=0, lineterm=""
    )
    changed = [f"    {line}" for line in list(lines)[3:]]
    return "\n".join(
        [f"{bug.path.relative_to(ROOT)}:{bug.mutant.line} ({bug.mutant.rule})", *changed]
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=30, help="how many bugs")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 16))
    parser.add_argument("--from", type=int, default=1, dest="first", help="begin with this one")
    parser.add_argument("--only", default="", help="paths that begin so, or so")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    parser.add_argument("--limit", type=float, default=900, help="seconds for one bug's tests")
    parser.add_argument("--near", type=int, default=sum(STEPS), help="test files for one bug")
    arguments = parser.parse_args()
    if not 1 <= arguments.first <= arguments.count:
        parser.error(f"--from is a number from 1 to --count, {arguments.count}")
    bugs = all_bugs(tuple(arguments.only.split(",")))
    chosen = random.Random(arguments.seed).sample(bugs, min(arguments.count, len(bugs)))
    print(f"{len(chosen)} of {len(bugs)} bugs, seed {arguments.seed}", flush=True)
    wanted = chosen[arguments.first - 1 :]
    missed = []
    with (
        tempfile.TemporaryDirectory(prefix="penstock-mutants-") as home,
        ThreadPoolExecutor(arguments.jobs) as pool,
    ):
        trees: Queue[Path] = Queue()
        for number in range(arguments.jobs):
            trees.put(copy_tree(Path(home) / str(number)))

        def work(bug: Bug) -> Outcome:
            tree = trees.get()
            try:
                return try_bug(tree, bug, arguments.limit, arguments.near)
            finally:
                trees.put(tree)

        for number, outcome in enumerate(pool.map(work, wanted), arguments.first):
            bug, how = outcome.bug, outcome.found_by or "NOT FOUND"
            place = f"{bug.path.relative_to(ROOT)}:{bug.mutant.line} {bug.mutant.rule}"
            what = f"{bug.mutant.before!r} -> {bug.mutant.after!r}"[:100]
            print(f"{number}/{len(chosen)} {place}: {how[:120]} ({outcome.seconds:.0f} s)")
            print(f"      {what}", flush=True)
            if not outcome.found_by:
                missed.append(bug)
    for bug in missed:
        print(f"\n{shown(bug)}")
    print(f"\n{len(wanted) - len(missed)} of {len(wanted)} bugs found, {len(missed)} not")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
