"""A disk that fails: EIO at the Nth flush of a broker's life, for any N, once or from then on.

The first failed flush ends all acknowledgements of durable messages, and is never tried again: the
kernel may have dropped what it could not write. After a restart on a disk that works, everything
that was acknowledged is there.
"""

from __future__ import annotations

import errno
import os
import random
import time
from pathlib import Path

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import Broker
from penstock.chaos.history import check_acknowledged, check_order
from penstock.chaos.load import QUEUES, TOPIC, Load, read_all
from penstock.chaos.recorder import SOURCE, Recorder
from penstock.client.producer import Producer
from penstock.shared.errors import PenstockError, StoreUnavailable
from penstock.shared.layout import StorePaths

# in a round
FAILING_DISKS = 3
LOAD_S = 0.6
# Behind the failed flush, acknowledgements of the one before may still be on their way.
SETTLED_S = 0.2
ANSWER_TIMEOUT_MS = 2000
EIO = os.strerror(errno.EIO)


def disk_round(arena: Arena, dice: random.Random, replay: str) -> None:
    for _ in range(FAILING_DISKS):
        once = dice.random() < 0.5
        # a flusher that would try again is seen where it was at work
        nth = dice.randint(30, 100) if once else round(2 ** dice.uniform(0, 8))
        with arena.room() as room:
            wrong, acked = check_failing_disk(
                room, arena.library(SOURCE), any_settings(dice), nth, once
            )
            arena.report.add_violations([f"EIO at flush {nth}: {each}" for each in wrong], replay)
            arena.report.add_fault("failed flush")
            arena.report.acknowledged += acked
            arena.moved()


def check_failing_disk(
    place: Path, library: Path, settings: dict[str, object], nth: int, once: bool
) -> tuple[list[str], int]:
    """Run a broker whose Nth flush fails, and all behind it unless `once`; what is wrong, and the
    acknowledged."""
    recorder = Recorder(place / "recording", place / "store", library)
    fail = {"PENSTOCK_RECORD_FAIL": str(nth) if once else f"{nth}-{1 << 40}"}
    broker = Broker(place, settings, environment=recorder.environment | fail)
    load: Load | None = None
    try:
        try:
            broker.start()
            with Producer(broker.produce, timeout_ms=ANSWER_TIMEOUT_MS) as producer:
                producer.create_topic(TOPIC, QUEUES)
        except PenstockError as error:
            said = f"{error}\n{broker.output()}"
            wrong = [] if EIO in said else [f"nobody says that the disk fails: {said}"]
        else:
            load = Load("p1", broker.produce, ack="durable", timeout_ms=ANSWER_TIMEOUT_MS)
            time.sleep(LOAD_S)
            wrong = _check_stopped(broker, load, recorder)
        broker.clear()
        broker.forget_memory()
        broker.environment.clear()
        broker.start()
        if load is not None:
            load.abandon()
            broker.await_dispatched()
            stored = read_all(broker.consume)
            wrong += check_order(stored)
            wrong += check_acknowledged(load.acked, stored, "acknowledged messages are lost")
        broker.stop()
        return wrong, load.count() if load is not None else 0
    finally:
        if load is not None:
            load.abandon()
        recorder.close()
        broker.clear()


def _check_stopped(broker: Broker, load: Load, recorder: Recorder) -> list[str]:
    """Once the disk has failed the log, nothing more is acknowledged."""
    log = StorePaths(broker.store.resolve()).commit_log
    # what failed otherwise, and only once, somebody may have made anew
    if all(path.parent != log for path in recorder.failed()):
        return []
    before = load.count()
    time.sleep(SETTLED_S)
    wrong = []
    if load.count() > before:
        wrong.append(f"{load.count() - before} messages acknowledged after a flush has failed")
    try:
        with Producer(broker.produce, timeout_ms=ANSWER_TIMEOUT_MS) as producer:
            producer.send(TOPIC, b"after/0/0/", queue=0, ack="durable").result(5)
        wrong.append("a message is acknowledged after a flush has failed")
    except StoreUnavailable:
        pass  # what a producer is to be told
    except PenstockError as error:
        wrong.append(f"a producer is not told that the store is read-only: {error}")
    return wrong
