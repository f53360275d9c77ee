"""A repair that dies at any of its points is repeated, with the result of an undisturbed one."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from signal import SIGKILL

from penstock.chaos.arena import Arena
from penstock.chaos.broker import SMALL, SMALL_SEGMENT_BYTES, Broker
from penstock.chaos.crashes.armed import Armed, not_reached
from penstock.chaos.history import check_acknowledged, read_stored
from penstock.chaos.load import TOPIC
from penstock.chaos.stepped.replay import check_whole
from penstock.chaos.under_load import await_acked, one_load
from penstock.shared.errors import StoreUnavailable
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.store.directory import StoreDirectory

_MESSAGES = 600
_REPAIR_TIMEOUT_S = 60


def die_in_repair(arena: Arena, place: Path, dice: random.Random, armed: Armed) -> list[str]:
    """Damage a store, repair it under armed points, and compare with an undisturbed repair."""
    broker = Broker(place, SMALL)
    with one_load(broker, rate=1500) as load:
        await_acked([load], _MESSAGES)
        load.finish()
        broker.await_dispatched()
        broker.stop()
        lost = _damage(broker)
        undisturbed = place / "undisturbed"
        shutil.copytree(broker.store, undisturbed)
        _repair(broker, undisturbed, {})
        wrong = _repair_again_and_again(arena, armed, broker, undisturbed)
        acked = [each for each in load.acked if (each.queue_id, each.queue_offset) != lost]
        if len(acked) != len(load.acked) - 1:
            wrong.append("the damaged message was not acknowledged")
        broker.start()
        broker.stop()
        stored, complaints = read_stored(str(broker.store), TOPIC)
        wrong += complaints + check_acknowledged(acked, stored, "which were acknowledged")
        return wrong + check_whole(broker.store, broker.config)


def _repair_again_and_again(
    arena: Arena, armed: Armed, broker: Broker, undisturbed: Path
) -> list[str]:
    """Repair copies of the damaged store with armed points until each has fired. Returns what is
    wrong."""
    damaged = broker.store.with_name("damaged")
    broker.store.rename(damaged)
    environment = armed.environment()
    wrong: list[str] = []
    while missing := armed.missing():
        if broker.store.exists():
            shutil.rmtree(broker.store)
        shutil.copytree(damaged, broker.store)
        before = len(armed.fired())
        while not _repair(broker, broker.store, environment):
            arena.moved()
        if len(armed.fired()) == before:
            raise not_reached(missing, broker)
        for part in ("commitlog", "consumequeue"):
            if _files(broker.store / part) != _files(undisturbed / part):
                wrong.append(f"{part}/ differs from that of an undisturbed repair")
    return wrong


def _repair(broker: Broker, root: Path, environment: dict[str, str]) -> bool:
    """Run the command. Returns whether it finished."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", "store", "repair", str(root)]
        + ["--apply", "--config", str(broker.file)],
        env={**os.environ, **environment},
        capture_output=True,
        timeout=_REPAIR_TIMEOUT_S,
    )
    if done.returncode not in (0, -SIGKILL):
        raise StoreUnavailable("a repair has failed", done.stderr.decode())
    return done.returncode == 0


def _damage(broker: Broker) -> tuple[int, int]:
    """In a stopped store, damage a record in the middle of the log, and leave a stray file. Returns
    the record's place."""
    paths = StorePaths(broker.store)
    with StoreDirectory(broker.store) as store:
        (queue,) = [q for q in store.queues() if (q.topic, q.queue_id) == (TOPIC, 0)]
        middle = queue.max_offset // 2
        position = int(queue.entries(middle, middle + 1)[0]["offset"])
    at = position % SMALL_SEGMENT_BYTES
    with (paths.commit_log / segment_name(position - at)).open("r+b") as file:
        file.seek(at)
        file.write(b"no record")
    (paths.queue(TOPIC, 1) / "stray").write_bytes(b"nobody's")
    return 0, middle


def _files(directory: Path) -> dict[str, bytes]:
    found = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}
