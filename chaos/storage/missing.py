"""Files that are missing, in every combination: a start restores what the log can tell.

The log itself stays: without it there is nothing to restore anything from.
"""

from __future__ import annotations

import random
import shutil
from itertools import chain, combinations
from pathlib import Path
from typing import NamedTuple

from penstock.chaos.arena import Arena, filled_store
from penstock.chaos.history import Stored, read_stored
from penstock.chaos.load import TOPIC
from penstock.chaos.machine.workers import batched
from penstock.chaos.stepped.replay import copied, settle
from penstock.maintenance.verify.check import verify_store
from penstock.shared.config import Config
from penstock.shared.errors import PenstockError

TASK_SUBSETS = 10
PARTS = ("consumequeue", "index", "checkpoint", "abort", "lock", "config", "penstock")
# A missing queue among several is noticed only where penstock/queues says that it existed.
ONE_QUEUE = f"consumequeue/{TOPIC}/0"


def missing_round(arena: Arena, dice: random.Random, replay: str) -> None:
    with arena.room() as room, filled_store(room, dice) as (store, config):
        tasks = [Task(store, config, list(some)) for some in batched(subsets(), TASK_SUBSETS)]
        for wrong in arena.check(check_missing, tasks):
            arena.report.add_violations(wrong, replay)
        arena.report.add_fault("missing files", len(subsets()))


class Task(NamedTuple):
    """Some combinations of missing parts, to be tried on copies of a store."""

    original: Path
    config: Config
    subsets: list[tuple[str, ...]]


def subsets() -> list[tuple[str, ...]]:
    """Every combination of parts that may be missing."""
    found = list(chain.from_iterable(combinations(PARTS, n) for n in range(len(PARTS) + 1)))
    told = [each for each in found if "consumequeue" not in each and "penstock" not in each]
    return found + [(ONE_QUEUE, *each) for each in told]


def check_missing(task: Task) -> list[str]:
    """Start on copies of a store with parts missing; return what is not restored as it was."""
    wrong: list[str] = []
    expected, queues = _contents(task.original)
    for missing in task.subsets:
        with copied(task.original) as root:
            for part in missing:
                path = root / part
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            found = _restart(root, task.config, expected, queues)
        wrong += [f"without {missing}: {each}" for each in found]
    return wrong


def _restart(root: Path, config: Config, expected: Stored, queues: dict[str, bytes]) -> list[str]:
    try:
        settle(root, config)
    except PenstockError as error:
        return [f"the start is refused: {error}"]
    wrong = [f"{problem.kind}: {problem.detail}" for problem in verify_store(root).problems[:3]]
    stored, found = _contents(root)
    if stored != expected:
        wrong.append("other messages than before")
    if found != queues:
        names = sorted(name for name in queues if found.get(name) != queues[name])
        wrong.append(f"consume queues differ: {names[:3]}")
    return wrong


def _contents(root: Path) -> tuple[Stored, dict[str, bytes]]:
    stored, _ = read_stored(str(root), TOPIC)
    place = root / "consumequeue"
    files = [path for path in sorted(place.rglob("*")) if path.is_file()]
    return stored, {str(path.relative_to(place)): path.read_bytes() for path in files}
