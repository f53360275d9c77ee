"""Sectors that the disk cannot read, in files of a stopped store: brokers start on what is left.

The disk is a real one, of a real file system (bad_disk.py), so what reads a lost page gets the
kernel's own EIO or SIGBUS. What must hold is what damage.py asks, of starts, of readers, and of a
repair, which writes to the same disk: an unreadable file is a damaged one, and the rest is served.
"""

from __future__ import annotations

import gc
import random
import shutil
import tempfile
import traceback
from pathlib import Path
from typing import NamedTuple

from penstock.chaos.arena import Arena, growing_store
from penstock.chaos.machine.bad_disk import Lost, bad_disk
from penstock.chaos.machine.workers import batched
from penstock.chaos.stepped.placed import read_placed
from penstock.chaos.stepped.replay import reboot
from penstock.chaos.storage.damage_judge import Judge
from penstock.chaos.storage.harm import Hit, choose
from penstock.shared.config import Config
from penstock.shared.layout import PAGE_BYTES
from penstock.shared.memory.run_directory import remove_strays

# disks in a round, and in one task of it
DISKS, TASK_DISKS = 20, 5
WHAT = "an unreadable sector"


class Task(NamedTuple):
    """A store, how it was left, and a seed for each disk."""

    store: Path
    config: Config
    left: str
    seeds: list[int]


def sectors_round(arena: Arena, dice: random.Random, replay: str) -> None:
    left = dice.choice(("stopped", "killed, its memory gone", "without power"))
    with arena.room() as room, growing_store(room, dice, left) as (store, _, config):
        seeds = [dice.getrandbits(32) for _ in range(DISKS)]
        tasks = [Task(store, config, left, list(some)) for some in batched(seeds, TASK_DISKS)]
        for outcomes in arena.check(check_disks, tasks):
            for hits, wrong in outcomes:
                arena.report.add_fault(WHAT, hits)
                arena.report.add_violations(wrong, replay)


def check_disks(task: Task) -> list[tuple[int, list[str]]]:
    """Start on a disk for each seed; return how many files it cannot read, and what is wrong."""
    original = read_placed(task.store)
    outcomes = []
    for seed in task.seeds:
        lost = choose_lost(task.store, random.Random(seed))
        with (
            tempfile.TemporaryDirectory(prefix="bad-disk-") as place,
            bad_disk(Path(place), _as_left(task, Path(place)), lost) as root,
        ):
            # The kernel may lose the pages beside it, as far as it reads them at once.
            hits = [Hit(WHAT, root / each.file, 0, _size(root / each.file)) for each in lost]
            try:
                wrong = Judge(root, task.config, original, hits).judge()
            except Exception:  # no Penstock error: this is what the round looks for
                wrong = [traceback.format_exc(limit=-4)]
            finally:
                remove_strays(root, None)
                gc.collect()  # what is still mapped would keep the disk mounted
        told = f"{task.left}, seed {seed}, {'; '.join(map(str, hits))}"
        outcomes.append((len(lost), [f"{told}: {each}" for each in wrong]))
    return outcomes


def _as_left(task: Task, place: Path) -> Path:
    """The store, or a copy of it that a power failure has left."""
    if task.left != "without power":
        return task.store
    copy = Path(shutil.copytree(task.store, place / "copy"))
    reboot(copy)
    return copy


def choose_lost(store: Path, dice: random.Random) -> list[Lost]:
    """One to three files, and pages of each that are in use."""
    lost: dict[Path, Lost] = {}
    wanted = dice.choices((1, 2, 3), (70, 20, 10))[0]
    while len(lost) < wanted:
        file = choose(store, dice)
        pages = -(-_size(file) // PAGE_BYTES)
        if pages:
            first = dice.randrange(pages)
            stop = dice.choice((first + 1, dice.randint(first + 1, pages), pages))
            name = file.relative_to(store)
            lost[name] = Lost(name, first, stop)
    return list(lost.values())


def _size(file: Path) -> int:
    return file.stat().st_size
