"""Starts that are killed while they recover, five in a row at points and at random moments, end
where one undisturbed start ends, byte for byte.

A broker is killed with messages in its pool, a torn end and queues that lag. What it left, files
and shared memory, is put back before each try. The results of an orderly stop are compared, except
the names of index files, which are times, and Penstock's notes about its runs.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import SMALL, Broker
from penstock.chaos.crashes.armed import RECOVERY, Armed, not_reached
from penstock.chaos.crashes.starts import LAZY, send_some, start_or_die, tear
from penstock.chaos.load import TOPIC, Load
from penstock.chaos.stepped.replay import check_store
from penstock.chaos.under_load import make_topics
from penstock.shared.layout import StorePaths
from penstock.shared.memory.run_directory import Run, read_run

DEATHS = 5
# Shares of a start's time until it serves: before the first one it has not reached the store yet.
_MOMENTS = (0.25, 1.0)
_TRIES = 30
# pool on or off, shared memory kept or lost; what was only in a lost pool is lost
KINDS = ((True, True), (False, True), (False, False))


def recovery_round(arena: Arena, dice: random.Random, replay: str) -> None:
    for pool, memory in KINDS:
        with arena.room() as room:
            wrong = check_recovery(arena, room, dice, pool=pool, memory=memory)
            arena.report.add_violations(wrong, replay)


def points(pool: bool, memory: bool) -> frozenset[str]:
    """The points that such a start passes."""
    passed = RECOVERY if pool else RECOVERY - {"recover.mid_pool"}
    if memory:
        return passed
    return passed - {"run.mid_removal"} | {"index.mid_repair"}


def check_recovery(
    arena: Arena, place: Path, dice: random.Random, *, pool: bool, memory: bool
) -> list[str]:
    """Try until a start has died at every point. Returns what is wrong."""
    settings = any_settings(dice) | {"transient_store_pool_enable": pool}
    # LAZY comes last: it keeps in the pool what blocks of one page would bring into the files
    broker = Broker(place, SMALL | settings | LAZY)
    sent: list[Load] = []
    try:
        run = _wreck(broker, sent, dice)
        if not memory:
            broker.forget_memory()
        image = _Image(broker, run, place / "image")
        took = broker.start()
        broker.stop()
        expected = contents(broker.store)
        armed = Armed(place, points(pool, memory), 1, dice)
        for _ in range(_TRIES):
            image.put_back()
            _die(arena, broker, armed, took, dice)
            broker.start()
            broker.stop()
            differing = _differing(expected, contents(broker.store))
            wrong = [f"{name} is not as after an undisturbed start" for name in differing[:3]]
            if wrong:
                return wrong
            if not armed.missing():
                arena.report.add_points(armed.counts())
                acked = [each for load in sent for each in load.acked]
                return check_store(broker.store, broker.config, TOPIC, acked, [])
        raise not_reached(armed.missing(), broker)
    finally:
        for each in sent:
            each.abandon()
        broker.clear()


def _wreck(broker: Broker, sent: list[Load], dice: random.Random) -> Run:
    """Run a broker and kill it so that a start has everything to do that it may ever have to do."""
    while True:
        broker.start()
        make_topics(broker)
        send_some(broker, sent)
        broker.await_checkpoint()  # by then it is also known how far each queue went
        send_some(broker, sent)
        broker.kill()
        if tear(broker, dice):
            shutil.rmtree(StorePaths(broker.store).queue(TOPIC, 0))
            run = read_run(StorePaths(broker.store))
            assert run is not None
            return run


def _die(arena: Arena, broker: Broker, armed: Armed, took: float, dice: random.Random) -> None:
    """Start and be killed, DEATHS times: once at a random moment, otherwise at a point."""
    at_a_moment = dice.randrange(DEATHS)
    for death in range(DEATHS):
        if death == at_a_moment:
            broker.launch()
            broker.kill_after(took * dice.uniform(*_MOMENTS))
            arena.report.add_fault("start killed at some moment")
        else:
            # mostly any of those left; sometimes one alone, which may be a later one
            broker.environment = armed.environment(alone=dice.random() < 0.5)
            if start_or_die(broker):
                broker.kill()
            broker.environment = {}
            arena.report.add_fault("start killed at a point")
        arena.moved()


class _Image:
    """What a killed broker has left, to be restored again and again."""

    def __init__(self, broker: Broker, run: Run, place: Path) -> None:
        kept = {broker.store: place / "store", run.path: place / "memory"}
        self._kept = {original: copy for original, copy in kept.items() if original.exists()}
        for original, copy in self._kept.items():
            shutil.copytree(original, copy, ignore=shutil.ignore_patterns("*.ipc"))

    def put_back(self) -> None:
        for original, copy in self._kept.items():
            shutil.rmtree(original, ignore_errors=True)
            shutil.copytree(copy, original)


# Actors save these from time to time, with the time in them; no start makes them.
_SAVED_BY_ACTORS = ("delayOffset.json", "consumerOffset.json", "subscriptionGroup.json")


def contents(store: Path) -> dict[str, bytes]:
    """All files of a store that a start is responsible for; those of the index by their order."""
    found: dict[str, bytes] = {}
    for path in sorted(path for path in store.rglob("*") if path.is_file()):
        name = path.relative_to(store)
        if name.parts[0] == "index":
            found[f"index file {sum(k.startswith('index') for k in found)}"] = path.read_bytes()
        elif name.parts[0] not in ("penstock", "lock") and not name.name.startswith(
            _SAVED_BY_ACTORS
        ):
            found[str(name)] = path.read_bytes()
    return found


def _differing(expected: dict[str, bytes], found: dict[str, bytes]) -> list[str]:
    names = sorted(expected.keys() | found.keys())
    return [name for name in names if expected.get(name) != found.get(name)]
