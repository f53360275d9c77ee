"""Where rounds of faults take place: a directory for their files, and the report they add to.

A round takes some seconds, has its own seed and depends on no other, so it can be run again.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.chaos.broker import Broker
from penstock.chaos.interposed.preload import build_library
from penstock.chaos.load import TOPIC
from penstock.chaos.machine.workers import Result, Task, Workers
from penstock.chaos.report import Report
from penstock.chaos.under_load import one_load
from penstock.client.groups.consumer import GroupConsumer
from penstock.client.sending.producer import Producer
from penstock.shared.config import Config
from penstock.shared.layout import StorePaths


class Arena:
    """One run: its directory, its report, the function that hears of progress, and how often each
    crash point must be hit in a round. With `every`, what is usually chosen at random is all done
    in turn."""

    def __init__(
        self,
        place: Path,
        report: Report,
        moved: Callable[[], None],
        *,
        hits: int = 1,
        every: bool = False,
    ) -> None:
        self.place = place
        self.report = report
        self.moved = moved
        self.hits = hits
        self.every = every
        self._libraries: dict[Path, Path] = {}
        self._workers = Workers()
        self._rounds = 0

    def library(self, source: Path) -> Path:
        """The library made from a C file. Raises MissingDependency without a C compiler."""
        if source not in self._libraries:
            self._libraries[source] = build_library(source, self.place)
        return self._libraries[source]

    def check(self, check: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """The results of checks that several processes share, in the order of the tasks."""
        for result in self._workers.map(check, tasks):
            self.moved()
            yield result

    @contextmanager
    def room(self) -> Iterator[Path]:
        """A new directory for one round, which is kept if the round breaks a promise."""
        self._rounds += 1
        room = self.place / f"round-{self._rounds}"
        room.mkdir()
        before = len(self.report.violations)
        yield room
        if len(self.report.violations) == before:
            shutil.rmtree(room)

    def close(self) -> None:
        """End all processes, and remove everything except what is needed to reproduce a failure."""
        self._workers.close()
        if not self.report.violations:
            shutil.rmtree(self.place)


def any_settings(dice: random.Random) -> dict[str, object]:
    """How the log is flushed and buffered: each of the four ways leaves other states behind."""
    return {
        "flush_disk_type": dice.choice(("sync", "async")),
        "transient_store_pool_enable": dice.random() < 0.5,
        # Blocks of one page: so the committer also copies only a few messages, and has bytes in the
        # files that it has not announced yet.
        "commit_commit_log_least_pages": 1,
    }


@contextmanager
def filled_store(room: Path, dice: random.Random) -> Iterator[tuple[Path, Config]]:
    """A store that a broker has filled, and that is entirely on disk: stopped, or killed."""
    broker = Broker(room, any_settings(dice))
    with one_load(broker, rate=1000, most=dice.randrange(200, 800)) as load:
        load.await_most()
        load.finish()
        broker.await_dispatched()
        if dice.random() < 0.5:
            broker.await_checkpoint()
            broker.kill()
            broker.forget_memory()
        else:
            broker.stop()
        yield broker.store, broker.config


# so that there are several files of each kind, and a copy costs little
_SMALL: dict[str, object] = {
    "mapped_file_size_commit_log_bytes": 256 << 10,
    "mapped_file_size_consume_queue_bytes": 20 * 100,
    "max_hash_slot_num": 200,
    "max_index_num": 500,
}


@contextmanager
def growing_store(
    room: Path, dice: random.Random, left: str
) -> Iterator[tuple[Path, Path, Config]]:
    """A store that a broker has filled, an earlier copy of it, and its configuration.

    It is `left` "stopped", "killed", or without the memory of its run. All of it is on disk, and
    its own files say so. It has a group with offsets, delayed messages and a half message. In half
    of the stores the oldest segments have expired, some before the copy was made and some after it.
    The number of messages is random but does not depend on time: a seed makes the same ones again.
    """
    broker = Broker(room, any_settings(dice) | _SMALL)
    earlier = room / "earlier"
    expires = dice.random() < 0.5
    with one_load(broker, rate=1000, most=dice.randrange(200, 700)) as load:
        load.await_most()
        if expires:
            _expire(broker)
        else:  # a delayed message prevents what comes after it from expiring
            _leave_waiting(broker)
        broker.await_dispatched()
        shutil.copytree(broker.store, earlier, ignore=shutil.ignore_patterns("half-made", "*.tmp"))
        load.most += dice.randrange(200, 700)
        load.await_most()
        load.finish()
        if expires:
            broker.await_dispatched()
            broker.await_checkpoint()
            _expire(broker)
        _leave_waiting(broker)
        broker.await_dispatched()
        if left != "stopped":
            broker.await_checkpoint()
        if left == "stopped":
            broker.stop()
        else:
            broker.await_watermark()
            broker.kill()
        if left not in ("stopped", "killed"):
            broker.forget_memory()
        yield broker.store, earlier, broker.config


def _leave_waiting(broker: Broker) -> None:
    """Leave a group with some progress, messages that wait for their time, and a half message."""
    with Producer(store=broker.store, group="sellers", on_check=lambda _: "unknown") as producer:
        producer.send(TOPIC, b"waits/0/0/", queue=0, delay_level=18).result(30)
        producer.send(TOPIC, b"waits/1/0/", queue=1, delay=3600).result(30)
        producer.begin(TOPIC).send(b"half/0/0/")
    with GroupConsumer(
        store=broker.store, group="readers", topics=TOPIC, start="first"
    ) as consumer:
        while not consumer.poll():
            pass
        consumer.commit()


def _expire(broker: Broker) -> None:
    """Let the oldest of several segments expire, as if it was last written long enough ago."""
    first, *others = sorted(StorePaths(broker.store).commit_log.iterdir())
    if others:
        long_ago_s = time.time() - 2 * broker.config.file_reserved_time_h * 3600
        os.utime(first, (long_ago_s, long_ago_s))
        broker.clean()
