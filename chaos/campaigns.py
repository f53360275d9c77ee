"""What `penstock chaos` can do to a broker, each kind in rounds, until the time is over.

A round takes some seconds, has a seed of its own, and stands for itself: `--faults KIND --seed S
--rounds 1` runs it again. Rounds of all chosen kinds take turns.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.chaos.broker import Broker
from penstock.chaos.damage import change_size, check_damaged, flip_bit, read_placed
from penstock.chaos.disk import check_failing_disk
from penstock.chaos.frames import bend, consume_request, produce_request, throw, throw_garbage
from penstock.chaos.history import check_acknowledged
from penstock.chaos.kills import run_kills
from penstock.chaos.load import QUEUES, TOPIC, Load, read_all
from penstock.chaos.missing import check_missing, subsets
from penstock.chaos.power import check_images, choose_images, record_run
from penstock.chaos.recorder import build_recorder
from penstock.chaos.report import Report
from penstock.client.producer import Producer
from penstock.shared.config import Config
from penstock.shared.errors import PenstockError
from penstock.shared.faults import FIRED_VARIABLE, POINTS, VARIABLE

# What one round does.
STRIKES, FEW_STRIKES, IMAGES, FRAMES, GARBAGE, FAILING_DISKS, DAMAGES = 30, 10, 100, 4000, 20, 3, 60
FLIPPED_SHARE = 0.7

# how the disk is flushed, and what producers wait for: each leaves other disks
PROMISES = (("sync", "durable"), ("async", "durable"), ("async", "written"))

Round = Callable[["Chaos", random.Random, str], None]


class Chaos:
    """One run: its place for files, and its report."""

    def __init__(self, place: Path, report: Report, moved: Callable[[], None]) -> None:
        self.place = place
        self.report = report
        self.moved = moved
        self._library: Path | None = None
        self._rounds = 0

    @property
    def library(self) -> Path:
        if self._library is None:
            self._library = build_recorder(self.place)
        return self._library

    def room(self) -> Path:
        """A new directory for one round."""
        self._rounds += 1
        room = self.place / f"round-{self._rounds}"
        room.mkdir()
        return room

    def clear(self) -> None:
        """Remove everything but what is needed to see a failure again."""
        if not self.report.violations:
            shutil.rmtree(self.place)


def _settings(dice: random.Random) -> dict[str, object]:
    return {
        "flush_disk_type": dice.choice(("sync", "async")),
        "transient_store_pool_enable": dice.random() < 0.5,
    }


def _kills(chaos: Chaos, dice: random.Random, replay: str) -> None:
    room = chaos.room()
    run_kills(room, _settings(dice), STRIKES, dice, chaos.report, replay, chaos.moved)
    shutil.rmtree(room)


def _points(chaos: Chaos, dice: random.Random, replay: str) -> None:
    """Some points kill who passes them, again and again, while actors are killed from outside."""
    room = chaos.room()
    fired = room / "fired"
    fired.touch()
    # those that a start does not pass
    names = [name for name in POINTS if name.startswith(("write.", "commit.", "flush.", "reput."))]
    armed = [f"{name}=crash@{dice.randint(1, 60)}x20" for name in dice.sample(names, 6)]
    environment = {VARIABLE: " ".join(armed), FIRED_VARIABLE: str(fired)}
    settings = _settings(dice)
    run_kills(room, settings, FEW_STRIKES, dice, chaos.report, replay, chaos.moved, environment)
    chaos.report.add_fault("crash point", len(fired.read_text().splitlines()))
    shutil.rmtree(room)


def _bells(chaos: Chaos, dice: random.Random, replay: str) -> None:
    room, settings = chaos.room(), _settings(dice)
    environment = {VARIABLE: "bell.lost=yes:30 bell.repeated=yes:50"}
    run_kills(room, settings, FEW_STRIKES, dice, chaos.report, replay, chaos.moved, environment)
    chaos.report.add_fault("round of lost and repeated doorbells")
    shutil.rmtree(room)


def _power(chaos: Chaos, dice: random.Random, replay: str) -> None:
    for disk, ack in PROMISES:
        settings = _settings(dice) | {"flush_disk_type": disk}
        bundle = record_run(
            chaos.room(), chaos.library, settings, ack, dice.uniform(0.5, 1.5), dice
        )
        names = choose_images(bundle, IMAGES // len(PROMISES), dice)
        found = check_images(bundle, names, chaos.moved)
        for name, wrong in found:
            replay = f"penstock chaos --replay {bundle} --image {name}"
            chaos.report.add_violations(wrong, replay)
        chaos.report.add_fault("power failure", len(names))
        if not found:
            shutil.rmtree(bundle)


def _frames(chaos: Chaos, dice: random.Random, replay: str) -> None:
    room = chaos.room()
    broker = Broker(room, _settings(dice))
    load: Load | None = None
    try:
        broker.start()
        with Producer(broker.produce) as producer:
            producer.create_topic(TOPIC, QUEUES)
        load = Load("p1", broker.produce, rate=300)
        for endpoint, make in (
            (broker.produce, produce_request),
            (broker.consume, consume_request),
        ):
            sent = throw(endpoint, (bend(make(dice), dice) for _ in range(FRAMES)))
            chaos.report.add_fault("bent frame", sent)
            for _ in range(GARBAGE):
                throw_garbage(endpoint, dice)
            chaos.report.add_fault("garbage on a socket", GARBAGE)
            chaos.moved()
        load.finish()
        restarts = {each["name"]: each["restarts"] for each in broker.status()["actors"]}
        wrong = [f"{name} was restarted" for name, count in restarts.items() if count]
        wrong += [f"a send failed: {error}" for error in load.failed[:1]]
        broker.await_dispatched()
        stored = read_all(broker.consume)
        wrong += check_acknowledged(load.acked, stored, "messages are lost")
        chaos.report.acknowledged += load.count()
        chaos.report.add_violations(wrong, replay)
        broker.stop()
    finally:
        if load is not None:
            load.abandon()
        broker.clear()
    shutil.rmtree(room)


@contextmanager
def _filled_store(room: Path, dice: random.Random) -> Iterator[tuple[Path, Config]]:
    """A store that a broker has filled, and all of which is on disk: stopped, or killed."""
    broker = Broker(room, _settings(dice))
    load: Load | None = None
    try:
        broker.start()
        with Producer(broker.produce) as producer:
            producer.create_topic(TOPIC, QUEUES)
        load = Load("p1", broker.produce, rate=1000)
        time.sleep(dice.uniform(0.2, 0.8))
        load.finish()
        broker.await_dispatched()
        if dice.random() < 0.5:
            broker.await_checkpoint()
            broker.kill()
            broker.forget_memory()
        else:
            broker.stop()
        yield broker.store, broker.config
    finally:
        if load is not None:
            load.abandon()
        broker.clear()


def _missing(chaos: Chaos, dice: random.Random, replay: str) -> None:
    room = chaos.room()
    with _filled_store(room, dice) as (store, config):
        wrong = check_missing(store, config, room / "copy", chaos.moved)
    chaos.report.add_violations(wrong, replay)
    chaos.report.add_fault("missing files", len(subsets()))
    shutil.rmtree(room)


def _damage(chaos: Chaos, dice: random.Random, replay: str) -> None:
    room = chaos.room()
    with _filled_store(room, dice) as (store, config):
        original = read_placed(store)
        for _ in range(DAMAGES):
            copy = room / "copy"
            shutil.copytree(store, copy)
            hit = (flip_bit if dice.random() < FLIPPED_SHARE else change_size)(copy, dice)
            wrong = check_damaged(copy, config, original, hit)
            place = f"{hit.what} in {hit.file.relative_to(copy)}, {hit.start} to {hit.end}"
            chaos.report.add_violations([f"{place}: {each}" for each in wrong], replay)
            chaos.report.add_fault(hit.what)
            shutil.rmtree(copy)
            chaos.moved()
    shutil.rmtree(room)


def _disk(chaos: Chaos, dice: random.Random, replay: str) -> None:
    for _ in range(FAILING_DISKS):
        room, once = chaos.room(), dice.random() < 0.5
        # a flusher that would try again is seen where it was at work
        nth = dice.randint(30, 100) if once else round(2 ** dice.uniform(0, 8))
        wrong, acked = check_failing_disk(room, chaos.library, _settings(dice), nth, once)
        chaos.report.add_violations([f"EIO at flush {nth}: {each}" for each in wrong], replay)
        chaos.report.add_fault("failed flush")
        chaos.report.acknowledged += acked
        chaos.moved()
        shutil.rmtree(room)


KINDS: dict[str, tuple[Round, str]] = {
    "kills": (_kills, "actors and the whole broker killed and frozen under load"),
    "power": (_power, "every disk that a power failure might leave (needs a C compiler)"),
    "disk": (_disk, "EIO at any flush (needs a C compiler)"),
    "frames": (_frames, "malformed requests at both endpoints"),
    "damage": (_damage, "bits that flip, files that are cut, grow, or hold something else"),
    "missing": (_missing, "files missing, in every combination"),
    "points": (_points, "actors killed at named points of their work, and from outside"),
    "bells": (_bells, "doorbells lost and repeated, while actors are killed"),
}


def run_chaos(chaos: Chaos, kinds: Sequence[str], *, seconds: float, rounds: int) -> None:
    """Rounds of these kinds in turn, until the time is over or so many were run."""
    until = time.monotonic() + seconds
    dice = random.Random(chaos.report.seed)
    done = 0
    while done < rounds and (done < len(kinds) or time.monotonic() < until):
        kind = kinds[done % len(kinds)]
        # the first seed is the run's own, so that one round can be asked for by its seed
        seed = chaos.report.seed if done < len(kinds) else dice.getrandbits(32)
        replay = f"penstock chaos --faults {kind} --seed {seed} --rounds 1"
        try:
            KINDS[kind][0](chaos, random.Random(seed), replay)
        except PenstockError as error:
            chaos.report.add_violations([str(error)], replay)
        done += 1
