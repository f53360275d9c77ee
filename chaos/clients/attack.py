"""Clients that mean harm, next to some that do not: one kind of attack after the other, in any
order.

No actor is replaced because of what a client sends, nothing is acknowledged that is not stored,
other clients are served in time, and memory is bounded, and given back when the attackers have
gone.

The store is in memory: otherwise acknowledgements would wait for a disk, and such a wait is not the
attack's. Other programs' writes to the disk have made clients wait for half a second while no
process of the broker had anything to do.
"""

from __future__ import annotations

import math
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import Broker
from penstock.chaos.clients.attackers import ATTACKS, Attack
from penstock.chaos.clients.attacks.peer import make_attacked_topics
from penstock.chaos.clients.attacks.pulls import new_group
from penstock.chaos.clients.honest import Honest, Wait, honest
from penstock.chaos.history import check_acknowledged
from penstock.chaos.load import read_all
from penstock.chaos.machine.usage import delayed_seconds, own_memory_bytes
from penstock.chaos.scene import await_true
from penstock.chaos.stepped.replay import in_memory
from penstock.chaos.under_load import one_load

# Limits for another client's wait, less its wait for a processor: at the 99th percentile of a
# round; and for each attack, of whose waits there may be few.
WAIT_S, WAIT_OF_ATTACK_S = 0.1, 0.5
# If an attack holds others up it does so again. No process can tell that from other work of the
# machine or its host in these seconds; but such work does not occur in two of three tries.
TRIES = 3
# What docs/limits.md allows an actor to take beyond what it had, amid a flood and after it.
FLOOD_BYTES, KEPT_BYTES = 256 << 20, 100 << 20
# Allowed multiple of that: Python and ZeroMQ take their share.
TOLERANCE = 1.2
# The actors' own time; their wait for a processor is added.
GIVEN_BACK_S = 10
_LOOK_S = 0.02
# Messages may have their usual maximum size, and files can hold what attackers store.
_SETTINGS: dict[str, object] = {
    "max_queues": 2000,
    "max_message_size_bytes": 4 << 20,
    "mapped_file_size_commit_log_bytes": 16 << 20,
    "mapped_file_size_consume_queue_bytes": 20 * 50_000,
    "transient_store_pool_bytes": 32 << 20,
}


class Memory:
    """The most memory that actors take beyond what they have now, sampled again and again."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._before = {name: own_memory_bytes(pid) for name, pid in pids.items()}
        # the current attack; and the most that each actor took, with the attack at that moment
        self.during = ""
        self.most = dict.fromkeys(pids, (0, ""))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="memory")
        self._thread.start()

    def _work(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            with suppress(FileNotFoundError, ProcessLookupError):  # replaced, as its restarts tell
                for name, size in self.grown().items():
                    self.most[name] = max(self.most[name], (size, self.during))

    def grown(self) -> dict[str, int]:
        now = {name: own_memory_bytes(pid) for name, pid in self._pids.items()}
        return {name: size - self._before[name] for name, size in now.items()}

    def finish(self) -> None:
        self._stopping.set()
        self._thread.join()


@contextmanager
def room_in_memory(arena: Arena) -> Iterator[Path]:
    """A directory in memory for one round. Its content goes to the arena if the round breaks a
    promise, or ends with an error."""
    with (
        arena.room() as kept,
        tempfile.TemporaryDirectory(prefix="attacked-penstock-", dir=in_memory()) as room,
    ):
        before = len(arena.report.violations)
        is_whole = False
        try:
            yield Path(room)
            is_whole = len(arena.report.violations) == before
        finally:
            if not is_whole:
                shutil.copytree(room, kept, dirs_exist_ok=True)


def attack_round(arena: Arena, dice: random.Random, replay: str) -> None:
    with room_in_memory(arena) as room:
        broker = Broker(room, any_settings(dice) | _SETTINGS)
        with one_load(broker, rate=300) as load:
            make_attacked_topics(broker)
            with honest(broker) as others:
                await_true(lambda: bool(others.waits), "a client is served", 60)
                pids = broker.actors()
                with _memory(pids) as memory:
                    wrong = _attacks(arena, broker, dice, others, memory)
            load.finish()
            wrong += [*others.wrong, *_replaced(broker, pids)]
            if not _replaced(broker, pids):
                wrong += _kept(arena, memory, pids)
            wrong += [f"a send failed: {error}" for error in load.failed[:1]]
            broker.await_dispatched()
            stored = read_all(broker.consume)
            wrong += check_acknowledged(load.acked, stored, "which were acknowledged")
            arena.report.acknowledged += load.count()
            broker.stop()
            wrong += _served_again(broker)
            arena.report.add_violations(wrong, replay)


def _served_again(broker: Broker) -> list[str]:
    """Start on the store that attackers have left. Returns who is not served then."""
    broker.start()
    wrong = new_group(broker)
    broker.stop()
    return wrong


def _attacks(
    arena: Arena, broker: Broker, dice: random.Random, others: Honest, memory: Memory
) -> list[str]:
    """Run every attack, in any order, and again if others were late. Returns what is wrong."""
    wrong: list[str] = []
    lates: list[list[str]] = []
    while not lates or lates[0] and len(lates) < TRIES:
        began, late = len(others.waits), []
        for attack in dice.sample(ATTACKS, len(ATTACKS)):
            memory.during = _name(attack)
            found, late_here = _attack(arena, broker, dice, attack, others)
            wrong += found
            late += late_here
        late += _late("attacks", others.waits[began:], WAIT_S)
        if late:
            arena.report.add_fault("attacks, others late")
        lates.append(late)
    often = [late for late in lates if late]
    return wrong + (often[-1] if len(often) > TRIES // 2 else [])


def _attack(
    arena: Arena, broker: Broker, dice: random.Random, attack: Attack, others: Honest
) -> tuple[list[str], list[str]]:
    """Returns what is wrong, and whether others were late."""
    name = _name(attack)
    done = len(others.waits)
    found = attack(broker, dice)
    # a client that waits now has waited during the attack
    await_true(lambda: len(others.waits) > done + 1 or bool(others.wrong), "others go on", 60)
    waits = others.waits[done:]
    arena.report.add_fault(name)
    for each in waits:
        arena.report.add_wait(name, each.brokers_s)
        arena.report.add_wait("all attacks", each.whole_s)
        arena.report.add_wait("all attacks, the broker's share", each.brokers_s)
    arena.moved()
    return found, _late(name, waits, WAIT_OF_ATTACK_S)


def _name(attack: Attack) -> str:
    return attack.__name__.replace("_", " ")


def _late(what: str, waits: Sequence[Wait], most_s: float) -> list[str]:
    """Whether others have waited too long for the broker."""
    if not waits:
        return []  # they got an error, which says more
    p99_s, whole_s = (
        sorted(each)[math.ceil(0.99 * len(waits)) - 1]
        for each in zip(*((wait.brokers_s, wait.whole_s) for wait in waits), strict=True)
    )
    if p99_s <= most_s:
        return []
    return [f"{what}: others waited {p99_s:.3f} s, with the machine's share {whole_s:.3f} s"]


def _replaced(broker: Broker, pids: dict[str, int]) -> list[str]:
    now = broker.actors()
    return [f"{name} was replaced" for name, pid in pids.items() if now[name] != pid]


def _kept(arena: Arena, memory: Memory, pids: dict[str, int]) -> list[str]:
    """Check that it was never too much, and that actors give back what they took."""
    wrong = []
    began = time.monotonic()
    for name, pid in pids.items():
        most, during = memory.most[name]
        if most > TOLERANCE * FLOOD_BYTES:
            wrong.append(f"{name} took {most >> 20} MiB: {during}")
        delayed_s = delayed_seconds([pid])
        while True:
            own_s = time.monotonic() - began - (delayed_seconds([pid]) - delayed_s)
            kept = memory.grown()[name]
            if kept <= TOLERANCE * KEPT_BYTES or own_s > GIVEN_BACK_S:
                break
            time.sleep(_LOOK_S)
        if kept > TOLERANCE * KEPT_BYTES:
            wrong.append(f"{name} keeps {kept >> 20} MiB")
        arena.report.add_memory(name, most, kept, time.monotonic() - began)
    return wrong


@contextmanager
def _memory(pids: dict[str, int]) -> Iterator[Memory]:
    made = Memory(pids)
    try:
        yield made
    finally:
        made.finish()
