"""Power failures at every event of a work that closes: a rebuild, and a stop that has a backlog.

What a disk may hold then is old or new, and never something in between that looks finished.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import msgspec
import pytest

from penstock.chaos.load import TOPIC
from penstock.chaos.stepped.event_trace import small_config
from penstock.chaos.stepped.replay import in_memory
from penstock.chaos.stepped.stepped import SteppedBroker, SteppedProducer, create_topic
from penstock.chaos.stepped.tap import Tap
from penstock.chaos.stepped.uncertain_disk import Image, UncertainDisk
from penstock.maintenance.rebuild import rebuild_store
from penstock.shared.clock import ManualClock
from penstock.shared.config import Config
from penstock.shared.layout import StorePaths
from penstock.shared.memory.run_directory import remove_strays

QUEUES, MESSAGES = 2, 14
# After each event this many states by chance, and up to this many of what changed last.
CHOSEN, FEW = 3, 8
OF_ROCKETMQ = ("store/commitlog/", "store/consumequeue/", "store/index/", "store/checkpoint")


@pytest.fixture
def tap() -> Iterator[Tap]:
    """A disk in memory, where a sync costs nothing."""
    with tempfile.TemporaryDirectory(prefix="power-of-penstock-", dir=in_memory()) as made:
        disk = Path(made) / "disk"
        disk.mkdir()
        yield Tap(disk)
        remove_strays(disk / "store", None)


def small(tap: Tap, **settings: object) -> Config:
    config = small_config(Path(tap.root) / "store", random.Random(2))
    return msgspec.structs.replace(config, **settings)


def loaded(config: Config) -> SteppedBroker:
    """A broker that has acknowledged some messages, which need not be on the disk."""
    broker = SteppedBroker(config, ManualClock(), random.Random(7))
    create_topic(broker, TOPIC, QUEUES)
    producer = SteppedProducer("p1", TOPIC, QUEUES, "written")
    for number in range(MESSAGES):
        producer.send((30, 300, 1200)[number % 3], broker.clock.now_ms())
    while producer.waits:
        producer.step(broker, 0)
        broker.step()
    assert len(producer.acked) == MESSAGES
    return broker


def files(image: Image, *places: str) -> dict[str, bytes | None]:
    return {path: content for path, content in image.entries if path.startswith(places)}


def images_behind(tap: Tap, began: int) -> Iterator[tuple[str, Image]]:
    """What a power failure may leave behind each event from there on."""
    disk, dice = UncertainDisk(), random.Random(3)
    for number, event in enumerate(tap.events, 1):
        disk.take(event)
        if number > began:
            some = chain(disk.images_of_youngest(FEW, dice), disk.some_images(CHOSEN, dice))
            for image in some:
                yield f"event {number}, {event.what}", image


def certain(tap: Tap) -> Image:
    """What is there whatever is lost."""
    return next(tap.disk.some_images(0, random.Random(0)))


def test_a_rebuild_leaves_the_old_or_the_new_at_any_event(tap: Tap) -> None:
    config = small(tap, flush_disk_type="async")
    parts = ("store/consumequeue/", "store/index/")
    with tap.open():
        assert loaded(config).stop()
        tap.close_handles()
        paths = StorePaths(config.store)
        for place in (paths.queue(TOPIC, 1), paths.index):
            with max(place.iterdir()).open("r+b") as file:
                file.write(b"wrong")
        tap.age()
        old, began = tap.disk.live(), len(tap.events)
        rebuild_store(paths, config, ManualClock(), queues=True, index=True)
        new = tap.disk.live()
    for part in parts:
        before, after = files(old, part), files(new, part)
        # an index file is named after the time at which it was made
        assert before != after and len(before) == len(after)
        met = set()
        for place, image in images_behind(tap, began):
            found = files(image, part)
            assert found in (before, after), f"{part} after {place}"
            met.add(found == after)
        assert met == {False, True}
        assert files(certain(tap), part) == after


def test_a_stop_with_a_backlog_calls_nothing_clean_that_is_not_on_the_disk(tap: Tap) -> None:
    """The log lags by far, and the queues with it: all of it is synced before `abort` goes."""
    never = 1 << 40
    config = small(
        tap,
        flush_disk_type="async",
        flush_interval_commit_log_ms=never,
        flush_commit_log_thorough_interval_ms=never,
        flush_interval_consume_queue_ms=never,
    )
    with tap.open():
        broker = loaded(config)
        positions = broker.store.positions
        assert positions["flushed"] == 0 and positions["wrote"] > 8000
        began = len(tap.events)
        assert broker.stop()
        tap.close_handles()
    stopped = files(tap.disk.live(), *OF_ROCKETMQ)
    clean = 0
    for place, image in images_behind(tap, began):
        if "store/abort" not in dict(image.entries):
            clean += 1
            assert files(image, *OF_ROCKETMQ) == stopped, place
    assert clean
    assert files(certain(tap), *OF_ROCKETMQ) == stopped
    assert "store/abort" not in dict(certain(tap).entries)
