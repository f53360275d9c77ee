"""What `penstock chaos` can do to a broker, each kind in rounds, until the time is over.

A round takes some seconds, has its own seed, and depends on no other: `--faults KIND --seed S
--rounds 1` runs it again. Each kind gets its share of the time. Its module says what a round does.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from penstock.chaos.arena import Arena
from penstock.chaos.clients.attack import attack_round
from penstock.chaos.clients.bent_commands import bent_commands_round
from penstock.chaos.clients.crowd import crowd_round
from penstock.chaos.clients.frames import frames_round
from penstock.chaos.crashes.points import points_round
from penstock.chaos.crashes.recovery import recovery_round
from penstock.chaos.machine.leaks import Baseline
from penstock.chaos.running.bells import bells_round
from penstock.chaos.running.clock import clock_round
from penstock.chaos.running.delays import delays_round
from penstock.chaos.running.exactly_once import exactly_once_round
from penstock.chaos.running.frozen import frozen_round
from penstock.chaos.running.kills import kills_round
from penstock.chaos.running.members import members_round
from penstock.chaos.running.memory import memory_round
from penstock.chaos.running.mixed import mixed_round
from penstock.chaos.running.official import official_round
from penstock.chaos.running.transactions import transactions_round
from penstock.chaos.stepped.events import events_round
from penstock.chaos.storage.cut import cut_round
from penstock.chaos.storage.damage import damage_round
from penstock.chaos.storage.disk import disk_round
from penstock.chaos.storage.full import full_round
from penstock.chaos.storage.missing import missing_round
from penstock.chaos.storage.outage import outage_round
from penstock.chaos.storage.power import power_round
from penstock.chaos.storage.power_promises import promises_round
from penstock.chaos.storage.sectors import sectors_round
from penstock.chaos.storage.slow import slow_round
from penstock.shared.errors import PenstockError


class Kind(NamedTuple):
    """One kind of faults: its round, and its share of the time."""

    round: Callable[[Arena, random.Random, str], None]
    share: int


# The files' heads say what each is. Kinds with the most random choices get most of the time.
KINDS: dict[str, Kind] = {
    "kills": Kind(kills_round, 20),
    "power": Kind(power_round, 30),
    "events": Kind(events_round, 4),
    "disk": Kind(disk_round, 2),
    "full": Kind(full_round, 2),
    "slow": Kind(slow_round, 2),
    "cut": Kind(cut_round, 1),
    "frames": Kind(frames_round, 3),
    "damage": Kind(damage_round, 12),
    "missing": Kind(missing_round, 2),
    "sectors": Kind(sectors_round, 4),
    "outage": Kind(outage_round, 4),
    "points": Kind(points_round, 3),
    "recovery": Kind(recovery_round, 2),
    "bells": Kind(bells_round, 2),
    "clock": Kind(clock_round, 1),
    "frozen": Kind(frozen_round, 1),
    "crowd": Kind(crowd_round, 1),
    "memory": Kind(memory_round, 1),
    "attack": Kind(attack_round, 2),
    "gateway": Kind(bent_commands_round, 1),
    "mixed": Kind(mixed_round, 3),
    "exactly": Kind(exactly_once_round, 3),
    "transactions": Kind(transactions_round, 3),
    "delays": Kind(delays_round, 3),
    "promises": Kind(promises_round, 6),
    "members": Kind(members_round, 3),
    "official": Kind(official_round, 2),
}


def run_chaos(arena: Arena, kinds: Sequence[str], *, seconds: float, rounds: int) -> Iterator[None]:
    """Run a round of each of these kinds, then more by their shares, until the time is over or
    `rounds` were run. Yields after each."""
    began = time.monotonic()
    dice = random.Random(arena.report.seed)
    spent = dict.fromkeys(kinds, 0.0)
    for done in range(rounds):
        started = time.monotonic()
        if done < len(kinds):
            # the first seed is the run's own, so that a single round can be asked for by its seed
            kind, seed = kinds[done], arena.report.seed
        elif started - began < seconds:
            kind = min(kinds, key=lambda each: spent[each] / KINDS[each].share)
            seed = dice.getrandbits(32)
        else:
            return
        replay = f"penstock chaos --faults {kind} --seed {seed} --rounds 1{_how(arena)}"
        before = Baseline(arena.place)
        try:
            KINDS[kind].round(arena, random.Random(seed), replay)
        except (PenstockError, OSError) as error:
            # the findings of an hour are not lost if one round cannot go on
            arena.report.add_failed_round(str(error) or repr(error), replay)
        arena.report.add_leaks(before.leaked(with_workers=True), replay)
        spent[kind] += time.monotonic() - started
        yield


def _how(arena: Arena) -> str:
    """Further options that a round depends on."""
    hits = f" --hits {arena.hits}" if arena.hits > 1 else ""
    return hits + (" --every" if arena.every else "")
