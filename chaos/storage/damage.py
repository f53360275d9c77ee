"""A disk that lies: files of a stopped store change, and brokers start on what is left.

The store was left by a stop, by a kill of all processes, with or without their memory, or by a
power failure. Then one to three things are done to its files (harm.py). A start either serves every
message whose own record was not hit, or is refused with an error that names a file, and then has
changed nothing of the log. The checker of store directories names what a start cannot serve. No
start serves bytes that were not sent, gives an offset again, or ends in a traceback; none is
refused over a file that only tells of the past. Sizes are those that the store says, as in
`penstock up`. Where an error says to remove the file that has them, it is removed, and the broker
starts without it. Then the store is repaired, and the same holds; a repair leaves nothing unserved
that was not hit.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.chaos.arena import Arena, growing_store
from penstock.chaos.machine.workers import batched
from penstock.chaos.stepped.placed import read_placed
from penstock.chaos.stepped.replay import in_memory, reboot
from penstock.chaos.storage.damage_judge import Judge
from penstock.chaos.storage.harm import Scene, do_harm
from penstock.shared.config import Config
from penstock.shared.layout import StorePaths
from penstock.shared.memory.run_directory import read_run, remove_strays, write_run

# copies in a round, and in one task of it
DAMAGES, TASK_DAMAGES = 100, 10
# how often one, two or three things are done at once, in percent
_AT_ONCE = (70, 20, 10)


class Task(NamedTuple):
    """A store, an earlier state of it, how it was left, and a seed for each copy to be damaged."""

    scene: Scene
    config: Config
    left: str
    seeds: list[int]


def damage_round(arena: Arena, dice: random.Random, replay: str) -> None:
    left = dice.choice(("stopped", "killed", "killed, its memory gone", "without power"))
    with arena.room() as room, growing_store(room, dice, left) as (store, earlier, config):
        seeds = [dice.getrandbits(32) for _ in range(DAMAGES)]
        scene = Scene(store, earlier)
        tasks = [Task(scene, config, left, list(some)) for some in batched(seeds, TASK_DAMAGES)]
        for outcomes in arena.check(check_copies, tasks):
            for hits, wrong in outcomes:
                for each in hits:
                    arena.report.add_fault(each)
                arena.report.add_violations(wrong, replay)


def check_copies(task: Task) -> list[tuple[list[str], list[str]]]:
    """Damage a copy of the store for each seed; return what was done, and what is then wrong."""
    original = read_placed(task.scene.root)
    outcomes = []
    for seed in task.seeds:
        dice = random.Random(seed)
        with _copied(task) as copy:
            hits = []
            for _ in range(dice.choices((1, 2, 3), _AT_ONCE)[0]):
                hits += do_harm(Scene(copy, task.scene.earlier), dice)
            try:
                wrong = Judge(copy, task.config, original, hits).judge()
            except Exception:  # no Penstock error: this is what the round looks for
                wrong = [traceback.format_exc(limit=-4)]
        told = f"{task.left}, seed {seed}, {'; '.join(map(str, hits))}"
        outcomes.append(([each.what for each in hits], [f"{told}: {each}" for each in wrong]))
    return outcomes


@contextmanager
def _copied(task: Task) -> Iterator[Path]:
    """A copy of the store as it was left, and of its run's memory if that still exists."""
    original = task.scene.root
    with tempfile.TemporaryDirectory(prefix="copy-of-penstock-", dir=in_memory()) as scratch:
        root = Path(shutil.copytree(original, Path(scratch) / "store"))
        run = read_run(StorePaths(root))
        if run is not None and run.path.is_dir() and StorePaths(root).abort.exists():
            memory = run.path.with_name(f"penstock-{random.randbytes(8).hex()}")
            shutil.copytree(run.path, memory, ignore=shutil.ignore_patterns("*.ipc"))
            (memory / "store").write_bytes(bytes(root.resolve()))
            write_run(StorePaths(root), msgspec.structs.replace(run, directory=str(memory)))
        if task.left == "without power":
            reboot(root)
        try:
            yield root
        finally:
            remove_strays(root, None)
