"""How well do the tests bite? Puts sampled bugs into copies of the tree and runs the nearest tests.

    make mutants                        30 bugs, other ones each time
    make mutants N=300 SEED=7           the same ones again
    make mutants ONLY=shared/formats    in these files only; several beginnings with commas between
    make mutants NEAR=12                with the 12 nearest test files of each alone: quicker
    make mutants QUICK=1                without tests that start a broker
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
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import NamedTuple

from mutate import Mutant, compiled_mutants, python_mutants
from nearest import nearest_tests
from tree import ENDLESS, ROOT, Tree

PLACES = ("actors", "shared", "client", "maintenance", "remoting", "supervisor.py")
# Test files that one pytest runs. Most bugs are found by the first; to read more takes seconds.
STEPS = (3, 7, 20, 1000)


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


def try_bug(tree: Tree, bug: Bug, limit_s: float, near: int) -> Outcome:
    """Put the bug in, run `near` test files until one fails that does not fail without it."""
    began = time.monotonic()
    path = tree.place / bug.path.relative_to(ROOT)
    tests, done, excluded = nearest_tests(tree.place, path)[:near], 0, list[str]()
    steps = list(STEPS)
    while steps and time.monotonic() - began < limit_s:
        with tree.planted(path, bug.mutant) as refused:
            some = tests[done : done + steps[0]]
            found_by = refused or tree.run(some, limit_s, excluded)
            named = [found_by.split(" - ")[0]] if "::" in found_by else []
            # by itself, too: it may have failed of what others had left, or by a busy machine
            is_sure = not named or bool(tree.run(named, limit_s))
        if not found_by:
            done += steps.pop(0)
            continue
        if refused or is_sure and not (without := tree.without(named or some, limit_s, excluded)):
            return Outcome(bug, found_by, time.monotonic() - began)
        if is_sure and found_by == without == ENDLESS:
            break  # these take as long without the bug, too
        if not named:
            raise SystemExit(f"without a bug, too, {' '.join(map(str, some))}: {without}")
        # a test that fails on this machine, or only sometimes, has found nothing
        excluded += named
    return Outcome(bug, "", time.monotonic() - began)


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
    parser.add_argument("--quick", action="store_true", help="without tests that start a broker")
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
        trees: Queue[Tree] = Queue()
        for number in range(arguments.jobs):
            trees.put(Tree(Path(home) / str(number), not arguments.quick))

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
            print(f"{number}/{len(chosen)} {place}: {how[:160]} ({outcome.seconds:.0f} s)")
            print(f"      {what}", flush=True)
            if not outcome.found_by:
                missed.append(bug)
        for _ in range(arguments.jobs):
            trees.get().close()
    for bug in missed:
        print(f"\n{shown(bug)}")
    print(f"\n{len(wanted) - len(missed)} of {len(wanted)} bugs found, {len(missed)} not")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
