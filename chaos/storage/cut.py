"""Files cut short under the mappings of a running broker: a process that touches the missing part
dies of SIGBUS.

Its successor finds out when it starts, and says so. A consumer of what is gone gets an error, and
reads everything else; nothing wrong is served. Where an actor cannot continue without the bytes,
the broker gives the reason and ends after its restarts. No actor is restarted forever, and no file
is extended to look whole.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

from penstock.chaos.arena import Arena
from penstock.chaos.history import Stored, digest
from penstock.chaos.interposed.faulty_disk import SOURCE
from penstock.chaos.load import QUEUES, TOPIC
from penstock.chaos.storage.short_life import ShortLife, short_life
from penstock.client.reading.consumer import Consumer
from penstock.shared.errors import PenstockError
from penstock.shared.layout import StorePaths, segment_name

VICTIMS = ("first segment", "last segment", "queue file", "last queue file", "index file")
CUTS = 1
# an actor that fails five times in a minute ends the broker; each restart waits up to a second
TRIES = 8
RESTARTS = 5
READ_TIMEOUT_MS = 1000


def cut_round(arena: Arena, dice: random.Random, replay: str) -> None:
    for victim in VICTIMS if arena.every else dice.sample(VICTIMS, CUTS):
        pool = dice.random() < 0.5
        with arena.room() as room:
            wrong = check_cut(arena, room, victim, {"transient_store_pool_enable": pool}, dice)
            arena.report.add_violations([f"{victim} cut: {each}" for each in wrong], replay)
        arena.report.add_fault(f"{victim} cut short")
        arena.moved()


def check_cut(
    arena: Arena, place: Path, victim: str, settings: dict[str, object], dice: random.Random
) -> list[str]:
    """Cut one file of a running broker, and carry on as usual; return what is wrong."""
    with short_life(place, arena.library(SOURCE), settings) as life:
        if (said := life.start()) or not life.send_all():
            return [f"not even a good disk works: {said}"]
        life.broker.await_dispatched()
        sent = len(life.acked)
        _read(life)  # so that every process has mapped everything
        path = _victim(life, victim)
        os.truncate(path, dice.randrange(path.stat().st_size // 2))
        wrong, refused = [], 0
        for _ in range(TRIES):
            served, refused = _read(life)
            wrong += _check_served(life, served)
            if life.broker.process.poll() is not None:
                break
            with life.producer() as producer:
                life.send(producer, QUEUES)
        arena.report.acknowledged += sent
        # only the flusher and the reput use the index
        if not refused and victim != "index file":
            wrong.append("no consumer is told that something is gone")
        return wrong[:3] + _check_end(life) + _check_start(life, path)


def _victim(life: ShortLife, victim: str) -> Path:
    paths = StorePaths(life.broker.store)
    if victim == "last segment":
        wrote = life.broker.status()["positions"]["wrote"]
        size = life.broker.config.mapped_file_size_commit_log_bytes
        return paths.commit_log / segment_name(wrote - wrote % size)
    if victim == "queue file":
        return sorted(paths.queue(TOPIC, 0).iterdir())[0]
    if victim == "last queue file":
        return sorted(paths.queue(TOPIC, 0).iterdir())[-1]
    directory = paths.index if victim == "index file" else paths.commit_log
    return sorted(path for path in directory.iterdir() if path.is_file())[0]


def _read(life: ShortLife) -> tuple[Stored, int]:
    """What the consumer of each queue gets, and how many of these consumers end with an error."""
    served: Stored = {}
    refused = 0
    for queue in range(QUEUES):
        bodies = served[queue] = []
        try:
            with Consumer(
                life.broker.consume, TOPIC, queues=[queue], follow=False, timeout_ms=READ_TIMEOUT_MS
            ) as consumer:
                bodies += [bytes(message.body) for message in consumer]
        except PenstockError:
            refused += 1
    return served, refused


def _check_served(life: ShortLife, served: Stored) -> list[str]:
    """Check that messages consumers get are those that were sent, each in its place."""
    wrong = 0
    for each in life.acked:
        bodies = served[each.queue_id]
        if each.queue_offset < len(bodies):
            wrong += digest(bodies[each.queue_offset]) != each.digest
    return [f"{wrong} messages are served that are not what was sent"] if wrong else []


def _check_end(life: ShortLife) -> list[str]:
    """Check that the broker works without what is gone, or has ended with a reason."""
    wrong: list[str] = []
    if life.broker.process.poll() is None:
        code, wrong = life.stop()
    else:
        code = life.broker.wait_end()
        if "actors have failed" not in life.broker.output():
            wrong.append(f"the broker ends with {code}, and does not say why")
    said = life.broker.output()
    if "Traceback" in said:
        wrong.append(f"a traceback is shown: {said[-500:]}")
    restarts = said.count("starting another")
    if restarts > RESTARTS:
        wrong.append(f"actors are started {restarts} times again")
    return wrong + life.broker.leftovers() if code == 0 else wrong


def _check_start(life: ShortLife, path: Path) -> list[str]:
    """Check that the next start names the file that is short, or works without it."""
    before = len(life.broker.output())
    life.broker.clear()
    try:
        life.broker.start()
    except PenstockError:
        said = life.broker.output()[before:]
        return [] if path.name in said else [f"a start does not name the file: {said}"]
    _, wrong = life.stop()
    return wrong
