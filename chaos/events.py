"""A broker stepped in one process, and a power failure at every event of its disk.

One round is one trace of a few messages, with files so small that every kind of file ends in it: a
first start, and then stops, kills of everything and of single actors, starts with memory and
without. Behind each event the states that the disk may be in are started, caught up, stopped and
checked: all of them while they are few, a choice where they are many. Each different state is
started once, and held to the promises of every moment at which it may be found.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.chaos.arena import Arena
from penstock.chaos.history import (
    Sent,
    Stored,
    check_acknowledged,
    check_order,
    read_stored,
)
from penstock.chaos.replay import in_memory, settle
from penstock.chaos.stepped import (
    ACTORS,
    SteppedBroker,
    SteppedConsumer,
    SteppedProducer,
    create_topic,
)
from penstock.chaos.tap import Killed, Tap
from penstock.chaos.uncertain_disk import Event, Image, UncertainDisk
from penstock.shared.clock import ManualClock
from penstock.shared.config import Config
from penstock.shared.errors import PenstockError
from penstock.shared.index_files import index_geometry
from penstock.shared.layout import StorePaths
from penstock.shared.verify import verify_store

TOPIC, QUEUES = "chaos", 2

class Depth(NamedTuple):
    """How many states are looked at behind one event: all of up to `few`, of more all of the
    pieces that changed last, and so many `chosen` among all."""

    few: int
    chosen: int


ROUND, THOROUGH = Depth(8, 1), Depth(4096, 64)
# Every so many states are started twice, to see that the second start changes nothing.
_TWICE = 8
_SETTLE_STEPS = 4000
# So many broken promises tell enough of one trace.
_ENOUGH = 5


class Trace(NamedTuple):
    """What happened to the disk, and what clients were told, stamped with the events until then."""

    config: Config
    events: list[Event]
    acked: list[Sent]
    seen: list[Sent]
    wrong: list[str]


def small_config(store: Path, dice: random.Random) -> Config:
    """Files so small that a few messages fill them."""
    return Config(
        store_path_root_dir=str(store),
        mapped_file_size_commit_log_bytes=4096,
        mapped_file_size_consume_queue_bytes=20 * 4,
        max_message_size_bytes=2048,
        max_hash_slot_num=5,
        max_index_num=6,
        max_queues=8,
        transient_store_pool_bytes=16 << 10,
        transient_store_pool_enable=dice.random() < 0.5,
        flush_disk_type=dice.choice(("sync", "async")),
        flush_interval_commit_log_ms=100,
        flush_interval_consume_queue_ms=50,
        flush_consume_queue_least_pages=0,
        produce_port=0,
        consume_port=0,
    )


def record_trace(place: Path, dice: random.Random) -> Trace:
    """Run a broker in a few acts on a disk at `place`, and take down every event."""
    root = place / "disk"
    root.mkdir()
    tap = Tap(root)
    player = _Player(small_config(root / "store", dice), tap, dice)
    wrong = []
    with tap.open():
        try:
            for _ in range(dice.randint(2, 3)):
                player.act()
        except PenstockError as error:
            wrong.append(f"the broker fails while nothing does: {error}")
    player.forget_memory()
    wrong += [f"not seen by the tap: {each}" for each in tap.check()]
    seen = player.consumer.seen if player.config.sync_flush else []
    return Trace(player.config, tap.events, player.producer.acked, seen, wrong)


class _Player:
    """Plays the acts of a trace; every act begins with a start, and ends with a stop or a kill."""

    def __init__(self, config: Config, tap: Tap, dice: random.Random) -> None:
        self.config = config
        self._tap, self._dice = tap, dice
        self._clock = ManualClock()
        self.producer = SteppedProducer("p1", TOPIC, QUEUES, "durable")
        self.consumer = SteppedConsumer(TOPIC)
        self._broker: SteppedBroker | None = None

    def act(self) -> None:
        dice, tap = self._dice, self._tap
        end = dice.choice(("stop", "kill", "killed", "power"))
        if end == "killed":
            tap.kill_at = len(tap.events) + dice.randint(1, 200)
        try:
            self._play()
            if end == "stop" and self._broker is not None:
                self._broker.stop()
                self._broker = None
        except Killed:
            pass
        tap.kill_at = -1
        if self._broker is not None:
            self._broker.kill()
            if end == "power":
                self._broker.forget_memory()
            self._broker = None
        tap.close_handles()
        self.producer.forget()
        self.consumer.forget()

    def _play(self) -> None:
        dice = self._dice
        broker = self._broker = SteppedBroker(self.config, self._clock, dice)
        create_topic(broker, TOPIC, QUEUES)
        for _ in range(dice.randint(1, 6)):
            for _ in range(dice.randint(1, 4)):
                self.producer.send(dice.choice((0, 30, 300, 1200)))
            if dice.random() < 0.2:
                broker.restart(dice.choice(list(ACTORS)))
            self._steps(dice.randint(0, 60))
        if dice.random() < 0.7:
            for _ in range(_SETTLE_STEPS):
                if not self.producer.waits:
                    break
                self._steps(1)
            self._steps(dice.randint(0, 200))

    def _steps(self, count: int) -> None:
        assert self._broker is not None
        for _ in range(count):
            self.producer.step(self._broker, len(self._tap.events))
            self.consumer.step(self._broker, len(self._tap.events))
            self._broker.step()

    def forget_memory(self) -> None:
        from penstock.shared.run_directory import read_run, remove_run_directory

        run = read_run(StorePaths(self.config.store))
        if run is not None:
            remove_run_directory(run)


class Outcome(NamedTuple):
    """A state of the disk, started and stopped again: what it holds, and what is wrong with it."""

    stored: Stored
    wrong: list[str]


class Judge:
    """Starts each different state of a disk once, and remembers what came of it."""

    def __init__(self, scratch: Path, config: Config) -> None:
        self._scratch = scratch
        self._config = config
        self._known: dict[bytes, Outcome] = {}

    @property
    def started(self) -> int:
        return len(self._known)

    def wrong(self, image: Image, acked: Sequence[Sent], seen: Sequence[Sent]) -> list[str]:
        """How this state breaks a promise."""
        digest = image.digest()
        outcome = self._known.get(digest)
        if outcome is None:
            outcome = self._known[digest] = self._start(image)
        return [
            *outcome.wrong,
            *check_acknowledged(acked, outcome.stored, "acknowledged messages are lost"),
            *check_acknowledged(seen, outcome.stored, "messages that a consumer saw are gone"),
        ]

    def _start(self, image: Image) -> Outcome:
        disk = self._scratch / "disk"
        image.write(disk)
        store = disk / "store"
        try:
            settle(store, self._config)
            outcome = self._look(store)
            if not outcome.wrong and len(self._known) % _TWICE == 0:
                outcome.wrong.extend(self._again(store))
            return outcome
        except PenstockError as error:
            return Outcome({}, [f"a start or a look is refused: {error}"])
        finally:
            shutil.rmtree(disk)

    def _look(self, store: Path) -> Outcome:
        report = verify_store(store, index=index_geometry(self._config))
        wrong = [f"{each.kind}: {each.detail}" for each in report.problems[:3]]
        if not report.clean:
            wrong.append("the store is not clean")
        stored, complaints = read_stored(str(store), TOPIC)
        return Outcome(stored, [*wrong, *complaints, *check_order(stored)])

    def _again(self, store: Path) -> list[str]:
        """A start of a store that is whole changes not a byte of RocketMQ's files."""
        before = _contents(store)
        settle(store, self._config)
        after = _contents(store)
        changed = [p for p in before.keys() | after.keys() if before.get(p) != after.get(p)]
        return [f"a second start changes {path}" for path in sorted(changed)]


def _contents(store: Path) -> dict[str, bytes]:
    """All files but those that say who used the store last."""
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in store.rglob("*")
        if path.is_file() and path.parent.name != "penstock"
    }


class Judged(NamedTuple):
    """What a trace came to."""

    images: int
    started: int
    whole: int  # events behind which all states were looked at
    wrong: list[str]


def judge_trace(
    trace: Trace, scratch: Path, dice: random.Random, depth: Depth, moved: Callable[[], None]
) -> Judged:
    """Crash at every event; how many states there were, and what is wrong, told once per event."""
    judge = Judge(scratch, trace.config)
    disk = UncertainDisk()
    wrong, images, whole = list(trace.wrong), 0, 0
    acked, seen = _by_stamp(trace.acked), _by_stamp(trace.seen)
    told: list[Sent] = []
    shown: list[Sent] = []
    for number, event in enumerate(trace.events, 1):
        disk.take(event)
        told += acked.get(number, [])
        shown += seen.get(number, [])
        is_whole = disk.count() <= depth.few
        whole += is_whole
        possible = disk.images_of_youngest(depth.few, dice)
        if not is_whole:
            possible = chain(possible, disk.some_images(depth.chosen, dice))
        for image in possible:
            images += 1
            found = judge.wrong(image, told, shown)
            if found:
                wrong += [f"after event {number}, {event.what}: {each}" for each in found]
                break
        if len(wrong) >= _ENOUGH:
            break
        moved()
    return Judged(images, judge.started, whole, wrong)


def _by_stamp(sent: Sequence[Sent]) -> dict[int, list[Sent]]:
    found: dict[int, list[Sent]] = {}
    for each in sent:
        found.setdefault(each.flushes, []).append(each)
    return found


def events_round(arena: Arena, dice: random.Random, replay: str) -> None:
    """One trace, crashed at each of its events."""
    with tempfile.TemporaryDirectory(prefix="events-of-penstock-", dir=in_memory()) as scratch:
        trace = record_trace(Path(scratch), dice)
        judged = judge_trace(trace, Path(scratch) / "image", dice, ROUND, arena.moved)
    arena.report.add_violations(judged.wrong, replay)
