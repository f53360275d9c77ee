"""Bytes that change on disk: bits flip, files lose their end, grow, or hold something else.

A start on a damaged store either serves everything but the records that are hit, or is refused with
an error that names the file, and then has changed nothing. It never serves other bytes than were
sent, and never loses a message whose own record is whole.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import NamedTuple

from penstock.chaos.arena import Arena, filled_store
from penstock.chaos.history import Sent, check_order, digest, lost
from penstock.chaos.load import TOPIC
from penstock.chaos.replay import copied, settle
from penstock.chaos.workers import batched
from penstock.shared.config import Config
from penstock.shared.errors import PenstockError
from penstock.shared.store_directory import StoreDirectory
from penstock.shared.verify import verify_store

# in a round, and how many of these are bits that flip
DAMAGES, TASK_DAMAGES, FLIPPED_SHARE = 200, 10, 0.7
# Where damage goes: most bytes are the log's, but every kind of file shall have its share.
PLACES = ("commitlog", "commitlog", "consumequeue", "index", "checkpoint", "config", "penstock")


class Placed(NamedTuple):
    """A message of the original store, and the log bytes it stands in."""

    sent: Sent
    position: int
    end: int


class Hit(NamedTuple):
    """What was done to which bytes of a file."""

    what: str
    file: Path
    start: int
    end: int


class Task(NamedTuple):
    """A store, and a seed for each copy of it that is to be damaged."""

    store: Path
    config: Config
    seeds: list[int]


def damage_round(arena: Arena, dice: random.Random, replay: str) -> None:
    with arena.room() as room, filled_store(room, dice) as (store, config):
        seeds = [dice.getrandbits(32) for _ in range(DAMAGES)]
        tasks = [Task(store, config, list(some)) for some in batched(seeds, TASK_DAMAGES)]
        for outcomes in arena.check(check_copies, tasks):
            for what, wrong in outcomes:
                arena.report.add_fault(what)
                arena.report.add_violations(wrong, replay)


def check_copies(task: Task) -> list[tuple[str, list[str]]]:
    """Damage a copy of the store for each seed; what was done to it, and what is wrong then."""
    original = read_placed(task.store)
    outcomes = []
    for seed in task.seeds:
        dice = random.Random(seed)
        with copied(task.store) as copy:
            hit = (flip_bit if dice.random() < FLIPPED_SHARE else change_size)(copy, dice)
            wrong = check_damaged(copy, task.config, original, hit)
            place = f"{hit.what} in {hit.file.relative_to(copy)}, {hit.start} to {hit.end}"
        outcomes.append((hit.what, [f"{place}: {each}" for each in wrong]))
    return outcomes


def read_placed(root: Path) -> list[Placed]:
    """Every message of the load that a whole store holds."""
    found = []
    with StoreDirectory(root) as store:
        for queue in store.queues():
            if queue.topic == TOPIC:
                for number, entry in enumerate(queue.entries(0, queue.max_offset)):
                    at, size = int(entry["offset"]), int(entry["size"])
                    sent = Sent(queue.queue_id, number, digest(bytes(store.record_at(at).body)), 0)
                    found.append(Placed(sent, at, at + size))
    return found


def flip_bit(root: Path, dice: random.Random) -> Hit:
    """One bit of a file that is not empty; in large files one of the bytes that are in use."""
    file = _choose(root, dice)
    size = file.stat().st_size
    used = _used(file, size)
    at = dice.randrange(min(size, used + used // 20 + 1))
    with file.open("r+b") as handle:
        handle.seek(at)
        byte = handle.read(1)[0]
        handle.seek(at)
        handle.write(bytes([byte ^ 1 << dice.randrange(8)]))
    return Hit("a flipped bit", file, at, at + 1)


def change_size(root: Path, dice: random.Random) -> Hit:
    """A file that is cut, grown, or filled with something else."""
    file = _choose(root, dice)
    size = file.stat().st_size
    what = dice.choice(("cut", "emptied", "grown", "zeroed", "garbage"))
    at = dice.randrange(size) if size else 0
    with file.open("r+b") as handle:
        if what == "cut":
            handle.truncate(at)
        elif what == "emptied":
            at = 0
            handle.truncate(0)
        elif what == "grown":
            at = size
            handle.truncate(size + dice.randint(1, 5000))
        else:
            length = min(size - at, dice.randint(1, 9000))
            handle.seek(at)
            handle.write(bytes(length) if what == "zeroed" else dice.randbytes(length))
            return Hit(what, file, at, at + length)
    return Hit(what, file, at, size)


def check_damaged(root: Path, config: Config, original: list[Placed], hit: Hit) -> list[str]:
    """Start on the damaged store; what is wrong with what it does."""
    before = _sizes(root)
    try:
        settle(root, config)
    except PenstockError as error:
        wrong = [] if hit.file.name in str(error) else [f"the error names no file: {error}"]
        if _sizes(root) != before:
            wrong.append("a start that was refused has changed files")
        return wrong
    bent = _log_range(root, hit)
    stored, wrong = _read(root, bent)
    missing = []
    for each in original:
        got = stored.get(each.sent.queue_id, {}).get(each.sent.queue_offset)
        if got is not None and digest(got) != each.sent.digest:
            wrong.append(f"queue {each.sent.queue_id}:{each.sent.queue_offset} has other bytes")
        if got is None and not (each.position < bent[1] and bent[0] < each.end):
            missing.append(f"{each.sent.queue_id}:{each.sent.queue_offset}")
    if missing and not (hit.file.is_relative_to(root / "consumequeue") and _is_reported(root)):
        wrong.append(lost(len(missing), "which were not hit", missing))
    return wrong


def _is_reported(root: Path) -> bool:
    """Whether the checker says that queue entries are wrong: readers are told so, not misled."""
    return any(problem.kind.startswith("queue-") for problem in verify_store(root).problems)


def _choose(root: Path, dice: random.Random) -> Path:
    while True:
        place = root / dice.choice(PLACES)
        files = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file())
        files = [file for file in files if file.stat().st_size]
        if files:
            return dice.choice(files)


def _used(file: Path, size: int) -> int:
    """Up to where a file has data."""
    handle = os.open(file, os.O_RDONLY)
    try:
        tail = os.pread(handle, size, 0).rstrip(b"\0")
        return len(tail)
    finally:
        os.close(handle)


def _log_range(root: Path, hit: Hit) -> tuple[int, int]:
    """The log offsets that were hit; none for another file."""
    if hit.file.parent != root / "commitlog":
        return (0, 0)
    base = int(hit.file.name)
    return base + hit.start, base + max(hit.end, hit.start + 1)


def _read(root: Path, hit: tuple[int, int]) -> tuple[dict[int, dict[int, bytes]], list[str]]:
    """Queue -> offset -> body, as readers would see them, and what is wrong with their order.

    Damaged records are passed over, as are entries that lead to another queue's: readers say so. A
    record that was hit where no checksum covers it, in its header, may stand in another queue now.
    """
    stored: dict[int, dict[int, bytes]] = {}
    bent: set[tuple[int, int]] = set()
    with StoreDirectory(root) as store:
        for queue in store.queues():
            if queue.topic != TOPIC:
                continue
            bodies = stored.setdefault(queue.queue_id, {})
            entries = queue.entries(queue.min_offset, queue.max_offset)
            for number, entry in enumerate(entries, queue.min_offset):
                if entry["size"] <= 0:
                    continue  # readers say that it leads nowhere
                position = int(entry["offset"])
                try:
                    record = store.record_at(position)
                except PenstockError:
                    continue
                if (record.queue_id, record.queue_offset) != (queue.queue_id, number):
                    continue
                bodies[number] = bytes(record.body)
                if position < hit[1] and hit[0] < position + record.total_size:
                    bent.add((queue.queue_id, number))
    dense = {
        queue: [bodies[number] for number in sorted(bodies) if (queue, number) not in bent]
        for queue, bodies in stored.items()
    }
    return stored, check_order(dense)


def _sizes(root: Path) -> dict[str, tuple[int, int]]:
    """Size and content of each file, apart from the lock, which a start tries."""
    return {
        str(path.relative_to(root)): (path.stat().st_size, hash(path.read_bytes()))
        for path in root.rglob("*")
        if path.is_file() and path.name != "lock"
    }
