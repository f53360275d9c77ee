"""Traces: what a broker does to its disk in a few acts, event by event, and what clients are told.

An act is a start, some messages, and an end: a stop, a kill of all processes between two turns or
between two events, or a power failure, after which the disk is in one of the states that may be
left. The producer outlives half of these failures, and sends unanswered messages to the next
broker. A trace may close with a repair of damage. Files are so small that a few messages fill them.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

from penstock.chaos.history import Sent
from penstock.chaos.load import TOPIC
from penstock.chaos.stepped.placed import read_placed
from penstock.chaos.stepped.replay import in_another_boot
from penstock.chaos.stepped.seen_files import Killed
from penstock.chaos.stepped.stepped import (
    ACTORS,
    SteppedBroker,
    SteppedConsumer,
    SteppedProducer,
    create_topic,
)
from penstock.chaos.stepped.tap import Tap
from penstock.chaos.stepped.uncertain_disk import Event
from penstock.maintenance.repair import repair_store
from penstock.shared.clock import ManualClock
from penstock.shared.config import Config
from penstock.shared.errors import PenstockError
from penstock.shared.formats.record_layout import body_span
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.memory.run_directory import remove_strays
from penstock.shared.store.lock import stopped_store

QUEUES = 2
# An act ends when every message has an answer, or after this many turns.
_TURNS = 4000
_NEVER = 1 << 62


class Trace(NamedTuple):
    """What happened to the disk, and what clients were told, stamped with the events so far."""

    config: Config
    events: list[Event]
    acked: list[Sent]
    seen: list[Sent]
    created: int  # the stamp of the topic's creation
    repaired: int  # from this event on the store has damage, and is under repair
    lost: frozenset[tuple[int, int]]  # (queue, offset) of messages that the damage hit
    wrong: list[str]


def small_config(store: Path, dice: random.Random) -> Config:
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
        group_port=0,
        transaction_port=0,
        gateway_enable=False,
        monitor_enable=False,
    )


def record_trace(place: Path, dice: random.Random, acts: int) -> Trace:
    """Play `acts` acts on a disk that is made at `place`."""
    root = place / "disk"
    root.mkdir()
    tap = Tap(root)
    player = _Player(small_config(root / "store", dice), tap, dice)
    wrong = []
    with tap.open():
        try:
            for _ in range(acts):
                clean = player.act()
            if clean and dice.random() < 0.5:
                player.repair()
        except PenstockError as error:
            wrong.append(f"the broker fails while nothing else does: {error}")
        wrong += [f"a send fails: {each}" for each in player.producer.failed[:1]]
        wrong += [f"not seen by the tap: {each}" for each in tap.check()]
    player.forget_memory()
    return Trace(
        player.config,
        tap.events,
        player.producer.acked,
        # with async flushing consumers see what is not on disk yet, and were told so
        player.consumer.seen if player.config.sync_flush else [],
        player.created,
        player.repaired,
        player.lost,
        wrong,
    )


class _Player:
    """Plays acts; between two of them nothing is open, and nothing runs."""

    def __init__(self, config: Config, tap: Tap, dice: random.Random) -> None:
        self.config = config
        self._tap, self._dice = tap, dice
        self._clock = ManualClock()
        self._paths = StorePaths(config.store)
        self.producer = SteppedProducer("p1", TOPIC, QUEUES, "durable")
        # Its messages put the log ahead of the disk when the other producer begins a session: after
        # a power failure that offset may be beyond the log's end. It is promised nothing.
        self._ahead = SteppedProducer("p2", TOPIC, QUEUES, "written")
        self.consumer = SteppedConsumer(TOPIC)
        self.created = self.repaired = _NEVER
        self.lost: frozenset[tuple[int, int]] = frozenset()
        self._broker: SteppedBroker | None = None

    def act(self) -> bool:
        """Play one act; return whether the store is clean after it."""
        dice, tap = self._dice, self._tap
        end = dice.choice(("stop", "kill", "killed", "power"))
        if end == "killed":
            tap.kill_at = len(tap.events) + dice.randint(1, 200)
        clean = False
        try:
            self._play()
            if end == "stop" and self._broker is not None:
                clean, self._broker = self._broker.stop(), None
        except Killed:  # the actor at work is gone in the middle of it
            assert end == "killed", "a death that nobody has ordered"
        tap.kill_at = -1
        tap.look()  # it may have stored into other files before the event that ended it
        if self._broker is not None:
            self._broker.kill()
            self._broker = None
        tap.close_handles()
        if end == "power":
            self.forget_memory()
            tap.fail_power(in_another_boot(tap.disk.any_image(dice)))
        if end == "power" and dice.random() < 0.5:
            for each in (self.producer, self._ahead):
                each.outlive(self._clock.monotonic_ms())
        else:
            self.producer.forget()
            self._ahead.forget()
        self.consumer.forget()
        return clean

    def _play(self) -> None:
        dice = self._dice
        broker = self._broker = SteppedBroker(self.config, self._clock, dice)
        create_topic(broker, TOPIC, QUEUES)
        self.created = min(self.created, len(self._tap.events))
        for _ in range(dice.randint(1, 6)):
            if not self.producer.waits and dice.random() < 0.3:
                self.producer.forget()  # a new producer, which begins at the log's end by then
            for _ in range(dice.randint(1, 4)):
                sender = self.producer if dice.random() < 0.7 else self._ahead
                sender.send(dice.choice((0, 30, 300, 1200)), self._clock.now_ms())
            if dice.random() < 0.2:
                broker.restart(dice.choice(list(ACTORS)))
            self._turns(dice.randint(0, 60))
        if dice.random() < 0.7:
            for _ in range(_TURNS):
                if not self.producer.waits:
                    break
                self._turns(1)
            self._turns(dice.randint(0, 200))

    def _turns(self, count: int) -> None:
        assert self._broker is not None
        for _ in range(count):
            stamp = len(self._tap.events)
            self.producer.step(self._broker, stamp)
            self._ahead.step(self._broker, stamp)
            self.consumer.step(self._broker, stamp)
            self._broker.step()

    def repair(self) -> None:
        """Spoil some bytes of a message's body on the disk, and repair the store."""
        placed = read_placed(self.config.store)
        if not placed:
            return
        hit = self._dice.choice(placed)
        self._tap.age()
        self.repaired = len(self._tap.events) + 1
        base = hit.position - hit.position % self.config.mapped_file_size_commit_log_bytes
        with (self._paths.commit_log / segment_name(base)).open("r+b") as file:
            file.seek(hit.position - base)
            body_at, _ = body_span(file.read(hit.end - hit.position), 0)
            file.seek(hit.position - base + body_at)
            file.write(self._dice.randbytes(4))
        self._tap.age()
        self.lost = frozenset({(hit.sent.queue_id, hit.sent.queue_offset)})
        with stopped_store(self.config.store) as (paths, last_run):
            repair_store(paths, self.config, self._clock, last_run)

    def forget_memory(self) -> None:
        """Remove shared memory, which goes down with the machine."""
        remove_strays(self._paths.root, None)
