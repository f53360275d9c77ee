"""Power failures: a broker runs under load and is recorded, and each disk that it might have left
is started and checked.

A run's bundle is a directory, with all that is needed to check any of its images again:

    recording/   what recorder.c wrote         store/     what all processes would have read
    history      what clients were told        broker.toml

An image is named by three numbers, "flush:share:seed": the disk after that flush, with this share
of the next flush mixed in at random (after the last flush, a share of all that was written).
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from signal import SIGKILL
from typing import NamedTuple

import msgspec

from penstock.chaos.arena import Arena, any_settings
from penstock.chaos.broker import Broker, fixed_ports
from penstock.chaos.history import Sent
from penstock.chaos.interposed.images import Disk, mixed, read_disk
from penstock.chaos.interposed.recorder import SOURCE, Recorder, read_flushes
from penstock.chaos.load import QUEUES, TOPIC, Follower, Load
from penstock.chaos.machine.workers import batched
from penstock.chaos.stepped.replay import check_store, in_memory, reboot
from penstock.client.sending.producer import Producer
from penstock.shared.config_sources import load_config
from penstock.shared.memory.roster import ACTORS

# images of each recorded run, and of one task
IMAGES, TASK_IMAGES = 100, 10
# how the disk is flushed, and what producers wait for: each combination leaves other disks
PROMISES = (("sync", "durable"), ("async", "durable"), ("async", "written"))
# Whether a run ends with an orderly stop. A round has both, and a stop while the disk lags.
ENDS = (True, True, False)
SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)
# the actors that are killed meanwhile; within a second the cleaner has nothing to delete
KILLED = [name for name in ACTORS if name != "cleaner"]
# so small that a run of a second rolls every kind of file and writes checkpoints often
SETTINGS: dict[str, object] = {
    "mapped_file_size_commit_log_bytes": 256 << 10,
    "mapped_file_size_consume_queue_bytes": 20 * 50,
    "max_hash_slot_num": 50,
    "max_index_num": 200,
    "flush_interval_consume_queue_ms": 50,
    # every second round leaves out queues that have grown by little
    "flush_consume_queue_least_pages": 1,
    "flush_consume_queue_thorough_interval_ms": 100,
}
# the last flushes of a run, including those of an orderly stop, are checked more than others
_LAST_FLUSHES = 30


class ImageName(NamedTuple):
    """Names a disk: see the head of this file."""

    flush: int
    share: float
    seed: int

    def __str__(self) -> str:
        return f"{self.flush}:{self.share}:{self.seed}"


class History(msgspec.Struct):
    """What clients were told in a run."""

    acked: list[Sent]
    seen: list[Sent]


def read_history(bundle: Path) -> History:
    return msgspec.msgpack.decode((bundle / "history").read_bytes(), type=History)


def power_round(arena: Arena, dice: random.Random, replay: str) -> None:
    before = len(arena.report.violations)
    for (disk, ack), orderly in zip(PROMISES, dice.sample(ENDS, len(PROMISES)), strict=True):
        with arena.room() as room:
            settings = any_settings(dice) | {"flush_disk_type": disk}
            seconds = dice.uniform(0.5, 1.5)
            record_run(room, arena.library(SOURCE), settings, ack, seconds, dice, orderly=orderly)
            names = sorted(choose_images(room, IMAGES, dice))
            tasks = [(room, list(some)) for some in batched(names, TASK_IMAGES)]
            for found in arena.check(check_images, tasks):
                for name, wrong in found:
                    again = f"penstock chaos --replay {room} --image {name}"
                    arena.report.add_violations(wrong, again)
            arena.report.add_fault("power failure", len(names))
            arena.report.acknowledged += len(read_history(room).acked)
        if len(arena.report.violations) > before:
            return  # report soon what is found


def record_run(
    place: Path,
    library: Path,
    settings: dict[str, object],
    ack: str,
    seconds: float,
    dice: random.Random,
    *,
    orderly: bool,
) -> None:
    """Run a broker under load, kill one actor or all now and then, and end with an orderly stop or
    by killing all: `place` becomes its bundle. Where no producer waits for the disk, nothing is
    promised; the disk is then flushed less often, and a start has more to put in order."""
    recorder = Recorder(place / "recording", place / "store", library)
    settings = {**SETTINGS, **settings, **fixed_ports()}
    broker = Broker(place, settings, environment=recorder.environment)
    clients: list[Follower | Load] = []
    try:
        broker.start()
        with Producer(broker.produce) as producer:
            producer.create_topic(TOPIC, QUEUES)
        follower = Follower(broker.consume, recorder.flushes)
        loads = [
            Load(name, broker.produce, rate=400, ack=ack, flushes=recorder.flushes)
            for name in ("p1", "p2")
        ]
        clients += [follower, *loads]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(dice.uniform(0, seconds / 2))
            what = dice.choice((*KILLED, "all", *[""] * len(KILLED)))
            if what == "all":
                broker.kill()
                broker.start()
            elif what:
                broker.strike(what, SIGKILL)
        if orderly:
            for each in loads:
                each.finish()
            broker.stop()
        else:
            broker.kill()
            for each in loads:
                each.abandon()
        follower.finish()
        broker.forget_memory()
        promised = [sent for each in loads for sent in each.acked if ack == "durable"]
        history = History(promised, follower.seen)
        (place / "history").write_bytes(msgspec.msgpack.encode(history))
    finally:
        for client in clients:
            client.abandon()
        recorder.close()
        broker.clear()


def choose_images(bundle: Path, count: int, dice: random.Random) -> list[ImageName]:
    """Some of a bundle's images: half of them anywhere in the run, the others near its end."""
    flushes = sum(1 for _ in read_flushes(bundle / "recording"))
    near = max(1, flushes - _LAST_FLUSHES)
    places = (
        lambda: dice.randint(1, flushes),
        lambda: dice.randint(near, flushes),
        lambda: dice.randint(1, flushes),
        lambda: flushes,
    )
    chosen = {}
    for number in range(count):
        name = ImageName(places[number % 4](), dice.choice(SHARES), dice.getrandbits(32))
        # with nothing or everything mixed in there is one disk, whatever the seed
        chosen[name if 0 < name.share < 1 else name[:2]] = name
    return list(chosen.values())


def check_images(task: tuple[Path, list[ImageName]]) -> list[tuple[ImageName, list[str]]]:
    """The images that break a promise, and how they do. The names are sorted."""
    bundle, names = task
    history = read_history(bundle)
    config = load_config(bundle / "broker.toml").config
    found = []
    with tempfile.TemporaryDirectory(prefix="image-of-penstock-", dir=in_memory()) as scratch:
        for name, disk in images(bundle, names):
            root = Path(scratch) / "store"
            disk.write(root)
            reboot(root)
            wrong = check_store(
                root,
                config,
                TOPIC,
                [sent for sent in history.acked if sent.flushes <= name.flush],
                # in async mode consumers see what is not yet on disk, and were told so
                [s for s in history.seen if s.flushes <= name.flush and config.sync_flush],
            )
            if wrong:
                found.append((name, wrong))
            shutil.rmtree(root)
    return found


def images(bundle: Path, names: Sequence[ImageName]) -> Iterator[tuple[ImageName, Disk]]:
    """The disks with these names, which are sorted."""
    store = bundle / "store"
    disk, waiting = Disk(store), list(names)
    held: list[ImageName] = []
    for flush in read_flushes(bundle / "recording"):
        # a failure while this flush is under way: any part of it may have reached the disk
        if held:
            after = disk.copy()
            after.take(flush)
            for name in held:
                yield name, mixed(disk, after, name.share, random.Random(name.seed))
        disk.take(flush)
        held = []
        while waiting and waiting[0].flush == flush.sequence:
            held.append(waiting.pop(0))
    live = read_disk(store)
    for name in held:
        yield name, mixed(disk, live, name.share, random.Random(name.seed))
