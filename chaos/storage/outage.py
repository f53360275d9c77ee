"""A file system that goes away under a running broker, with what it has only in memory.

The broker's store is on a real ext4 of its own, which is shut down at a random moment, as its
developers do in their tests: nothing more is written, and the journal is not either. The broker is
killed, the disk is mounted again, which replays the journal, and a broker starts on what is there.
The other kinds of power failure choose what a disk may have; this one takes what a real one has.

What was acknowledged as durable before that is there, in its place, and in order. What is
acknowledged in the same moment does not count: the kernel may call a sync good that it has cut
short.
"""

from __future__ import annotations

import fcntl
import os
import random
import struct
import time
from pathlib import Path

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import SMALL, Broker
from penstock.chaos.history import Sent, check_acknowledged, check_order
from penstock.chaos.load import Load, read_all
from penstock.chaos.machine.bad_disk import make_disk, mounted
from penstock.chaos.under_load import ACKS, await_acked, make_topics
from penstock.maintenance.verify.check import verify_store
from penstock.shared.index.directory import index_geometry

# in a round; each goes on with the disk that the one before has left
OUTAGES = 4
WHAT = "a file system shut down"
_DISK_BYTES = 512 << 20
_SHUTDOWN = 0x8004587D
# the journal as it is on the disk, or with what it has in memory
_WITHOUT_JOURNAL, _WITH_JOURNAL = 2, 1
# messages a second, of each producer
_RATE = 1200


def outage_round(arena: Arena, dice: random.Random, replay: str) -> None:
    with arena.room() as room:
        image, store = room / "disk", room / "store"
        store.mkdir()
        make_disk(image, _DISK_BYTES)
        told: list[Sent] = []
        for life in range(OUTAGES):
            broker = Broker(room, SMALL | any_settings(dice))
            with mounted(image, store):
                told += _live(broker, life, dice)
            with mounted(image, store):
                broker.forget_memory()
                wrong = _look(broker, told)
            arena.report.add_fault(WHAT)
            arena.report.add_violations(wrong, replay)
            arena.moved()
        arena.report.acknowledged += len(told)


def _live(broker: Broker, life: int, dice: random.Random) -> list[Sent]:
    """Run under load until the file system is gone. Returns what is durable by then."""
    loads: list[Load] = []
    try:
        broker.start()
        make_topics(broker)
        for ack in ACKS:
            name = f"{ack}-{life}"  # each counts from 0
            loads.append(Load(name, broker.produce, rate=_RATE, ack=ack, timeout_ms=2000))
        await_acked(loads[:1], 50)
        time.sleep(dice.uniform(0, 1.5))  # it comes at a random moment
        durable = list(loads[0].acked)
        _shut_down(broker.store, dice.choice((_WITHOUT_JOURNAL, _WITHOUT_JOURNAL, _WITH_JOURNAL)))
        time.sleep(dice.choice((0, 0.05, 0.5)))  # how long it runs on without a disk
        broker.kill()
    finally:
        for each in loads:
            each.abandon()
        broker.clear()
    return durable


def _shut_down(mount: Path, how: int) -> None:
    handle = os.open(mount, os.O_RDONLY)
    try:
        fcntl.ioctl(handle, _SHUTDOWN, struct.pack("=I", how))
    finally:
        os.close(handle)


def _look(broker: Broker, told: list[Sent]) -> list[str]:
    """What is wrong with what is there."""
    try:
        broker.start()
        broker.await_dispatched()
        stored = read_all(broker.consume)
        wrong = check_order(stored) + check_acknowledged(told, stored, "which were durable")
        wrong += [line for line in broker.output().splitlines() if "Traceback" in line][:1]
        broker.stop()
    finally:
        broker.clear()
    checked = verify_store(broker.store, index=index_geometry(broker.config))
    return wrong + [f"{each.kind}: {each.detail}" for each in checked.problems[:3]]
