"""A disk that lies: files of a stopped store change, and brokers start on what is left.

The store was left by a stop, by a kill of all processes, with or without their memory, or by a
power failure. Then one to three things are done to its files (harm.py). A start either serves every
message whose own record was not hit, or is refused with an error that names a file, and then has
changed nothing of the log. What a start cannot serve, the checker of store directories names. No
start serves other bytes than were sent, gives an offset again, or ends in a traceback; none is
refused over a file that only tells what has been. Sizes are those that the store says, as in
`penstock up`; where it is told to remove the file that has them, that is done, and it starts
without it. Then the store is repaired, and the same holds; a repair leaves nothing unserved that
was not hit.
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
from penstock.chaos.history import digest, lost
from penstock.chaos.load import TOPIC
from penstock.chaos.machine.workers import batched
from penstock.chaos.stepped.placed import Placed, read_placed
from penstock.chaos.stepped.replay import in_memory, reboot, settle
from penstock.chaos.storage.harm import Hit, Scene, do_harm
from penstock.maintenance.repair import repair_store
from penstock.maintenance.verify.check import verify_store
from penstock.shared.clock import SystemClock
from penstock.shared.config import Config
from penstock.shared.errors import ConfigError, PenstockError
from penstock.shared.layout import StorePaths
from penstock.shared.memory.run_directory import read_run, remove_strays, write_run
from penstock.shared.recovery.recover_log import Recovered
from penstock.shared.store.deletions import load_deletions
from penstock.shared.store.directory import StoreDirectory
from penstock.shared.store.geometry import KEYS, settled_sizes
from penstock.shared.store.lock import stopped_store

# in a round, and in a task of it
DAMAGES, TASK_DAMAGES = 100, 10
# how often one, two, three things are done at once
_AT_ONCE = (70, 20, 10)
# what a start does without
_HISTORY = frozenset(("deletions.json", "deletions.json.broken", "recovery.json", "retention.json"))


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
    """Damage a copy of the store for each seed; what was done to it, and what is wrong then."""
    original = read_placed(task.scene.root)
    outcomes = []
    for seed in task.seeds:
        dice = random.Random(seed)
        with _copied(task) as copy:
            hits = []
            for _ in range(dice.choices((1, 2, 3), _AT_ONCE)[0]):
                hits += do_harm(Scene(copy, task.scene.earlier), dice)
            try:
                wrong = _Judge(copy, task.config, original, hits).judge()
            except Exception:  # an error that is nobody's: that is what is looked for
                wrong = [traceback.format_exc(limit=-4)]
        told = f"{task.left}, seed {seed}, {'; '.join(map(str, hits))}"
        outcomes.append(([each.what for each in hits], [f"{told}: {each}" for each in wrong]))
    return outcomes


@contextmanager
def _copied(task: Task) -> Iterator[Path]:
    """A copy of the store as it was left, and of the memory of its run where that is there."""
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


class _Judge:
    """Starts and repairs one damaged store, and says what is wrong with what they do."""

    def __init__(self, root: Path, config: Config, original: list[Placed], hits: list[Hit]) -> None:
        self._root = root
        self._config = msgspec.structs.replace(
            # what was made old so that it goes is not to go now
            config,
            store_path_root_dir=str(root),
            file_reserved_time_h=24 * 365,
        )
        self._original = original
        self._files = {hit.file for hit in hits}
        self._bent = [
            (int(hit.file.name) + hit.start, int(hit.file.name) + max(hit.end, hit.start + 1))
            for hit in hits
            if hit.file.parent.name == "commitlog"
        ]

    def judge(self) -> list[str]:
        log = self._log()
        wrong = []
        try:
            found = self._start()
        except PenstockError as error:
            if self._log() != log:
                wrong.append("a start that was refused has changed the log")
            if all(file.name in _HISTORY for file in self._files):
                wrong.append(f"refused over a file that nobody needs: {error}")
            if not self._is_named(error):
                wrong.append(f"the error names no file: {error}")
            geometry = StorePaths(self._root).geometry
            if f"rm {geometry}" in str(error):
                geometry.unlink()
                return wrong + self.judge()
        else:
            wrong += self._look(found) + self._look_back(found)
        return wrong + [f"after a repair: {each}" for each in self._repair()]

    def _start(self) -> Recovered:
        return settle(self._root, self._settled(), with_cleaner=True)

    def _settled(self) -> Config:
        """The configuration, by the sizes that the store says; what it asks for it is given."""
        given: dict[str, int] = {}
        while True:
            try:
                sizes = settled_sizes(self._root, given, dict.fromkeys(given, "flag"))
            except ConfigError as error:
                asked = [key for key in KEYS if f"{key} is not known" in error.what]
                if not asked or asked[0] in given:
                    raise
                given[asked[0]] = getattr(self._config, asked[0])
            else:
                return msgspec.structs.replace(self._config, **sizes)

    def _repair(self) -> list[str]:
        try:
            with stopped_store(self._root) as (paths, last_run):
                repair_store(paths, self._settled(), SystemClock(), last_run)
            found = self._start()
        except PenstockError as error:
            # it is about a file that only a user can put right
            is_known = any(file.name in str(error) for file in self._files)
            return [] if is_known else [f"refused: {error}"]
        wrong = [f"the store is read-only: {found.quarantined[0]}"] if found.quarantined else []
        return wrong + self._look(found, repaired=True) + self._look_back(found)

    def _is_named(self, error: PenstockError) -> bool:
        """Whether a refusal is about a file that was hit, or one beside it."""
        paths = StorePaths(self._root)
        beside = {str(file.parent) for file in self._files if file.parent != self._root}
        if paths.geometry in self._files:
            # sizes that its files have not: it says which, and is made again in any
            beside.add(str(paths.index))
        names = beside | {file.name for file in self._files}
        return any(name in str(error) for name in names)

    def _look_back(self, found: Recovered) -> list[str]:
        """What is wrong with the list of deletions, which the cleaner has put right."""
        last = load_deletions(StorePaths(self._root))[-1:]
        if last and last[0].log_end > found.log_start and not found.quarantined:
            return [f"{last[0].log_end} is the end of a deletion, and the log still has it"]
        return []

    def _look(self, found: Recovered, *, repaired: bool = False) -> list[str]:
        """What is wrong with a store that has been started on."""
        named = {problem.file for problem in verify_store(self._root).problems}
        stored, ends = self._read()
        wrong, missing = [], []
        for each in self._original:
            queue, offset = each.sent.queue_id, each.sent.queue_offset
            got = stored.get((queue, offset))
            if got is not None and digest(got) != each.sent.digest and not self._is_hit(each):
                wrong.append(f"queue {queue}:{offset} has other bytes")
            if got is None and not self._is_hit(each):
                is_named = any(f"/{TOPIC}/{queue}" in file for file in named)
                if repaired or not is_named:
                    missing.append(f"{queue}:{offset}")
        if missing and not self._are_hit("consumequeue", "queues"):
            wrong.append(lost(len(missing), "which were not hit", missing))
        # the witness of where the log ends, or a queue, was hit together with it
        unheard_of = self._are_hit("consumequeue", "queues") or self._are_hit(
            "commitlog", "watermark"
        )
        if not found.quarantined and not unheard_of:
            newest = {each.sent.queue_id: each.sent.queue_offset for each in self._original}
            wrong += [
                f"queue {queue} goes on at {ends.get(queue, 0)}, and has had {newest[queue]}"
                for queue in newest
                if ends.get(queue, 0) <= newest[queue]
            ]
            if found.log_end < max(each.end for each in self._original):
                wrong.append(f"the log goes on at {found.log_end}, in the midst of what was told")
        return wrong[:4]

    def _are_hit(self, *names: str) -> bool:
        """Whether a file of each of these was hit."""
        parts = {part for file in self._files for part in file.relative_to(self._root).parts[:2]}
        return set(names) <= parts

    def _is_hit(self, each: Placed) -> bool:
        return any(each.position < end and start < each.end for start, end in self._bent)

    def _read(self) -> tuple[dict[tuple[int, int], bytes], dict[int, int]]:
        """(queue, offset) -> body, as readers would see them, and where each queue ends.

        Passed over are damaged records, and entries that lead to another queue's: readers say so.
        """
        stored: dict[tuple[int, int], bytes] = {}
        ends: dict[int, int] = {}
        with StoreDirectory(self._root) as store:
            for queue in store.queues():
                if queue.topic != TOPIC:
                    continue
                ends[queue.queue_id] = queue.max_offset
                entries = queue.entries(queue.min_offset, queue.max_offset)
                for number, entry in enumerate(entries, queue.min_offset):
                    if entry["size"] <= 0:
                        continue  # readers say that it leads nowhere
                    try:
                        record = store.record_at(int(entry["offset"]))
                    except PenstockError:
                        continue
                    if (record.topic, record.queue_id, record.queue_offset) == (
                        TOPIC,
                        queue.queue_id,
                        number,
                    ):
                        stored[queue.queue_id, number] = bytes(record.body)
        return stored, ends

    def _log(self) -> dict[str, int]:
        return {path.name: hash(path.read_bytes()) for path in (self._root / "commitlog").iterdir()}
