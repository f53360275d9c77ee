"""A start that failed in a sync, and is tried again: the kernel tells of such an error once, so the
next start's sync may succeed and leave on the disk what was there before.

Whatever a start finds in order may be only in the page cache, where a start before it has put it.
So after a start that has succeeded, the disk must have what every process reads.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from penstock.chaos.history import Sent
from penstock.chaos.load import TOPIC
from penstock.chaos.stepped.event_trace import small_config
from penstock.chaos.stepped.replay import check_store, in_another_boot, in_memory
from penstock.chaos.stepped.stepped import SteppedBroker, SteppedProducer, create_topic
from penstock.chaos.stepped.tap import Tap
from penstock.chaos.stepped.uncertain_disk import Image
from penstock.shared.clock import ManualClock
from penstock.shared.config import Config
from penstock.shared.errors import StoreUnavailable
from penstock.shared.memory.run_directory import remove_strays
from penstock.shared.recovery.open_store import open_store
from penstock.shared.store.watermark import Watermark, decode_watermark, encode_watermark

pytestmark = pytest.mark.takes(25)

MOST_SYNCS = 80
SEEDS = range(int(os.environ.get("PENSTOCK_CHAOS_TRACES", "2")))


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory in memory, where a sync costs nothing."""
    with tempfile.TemporaryDirectory(prefix="starts-of-penstock-", dir=in_memory()) as made:
        yield Path(made)
        remove_strays(Path(made) / "disk" / "store", None)


def _tap(place: Path) -> Tap:
    (place / "disk").mkdir()
    return Tap(place / "disk")


def _start(config: Config) -> None:
    """Start, and end without a stop, as by kill -9. Raises StoreUnavailable."""
    store = open_store(config, ManualClock())
    store.listeners.close()
    store.positions.close()
    os.close(store.lock)


def _different(tap: Tap) -> list[str]:
    """Files of which not all is certain to be on the disk, or that may not be there."""
    certain = dict(next(tap.disk.some_images(0, random.Random(0))).entries)
    live = dict(tap.disk.live().entries)
    return sorted(
        path
        for path in certain.keys() | live.keys()
        if not path.endswith(("/lock", "/starting"))
        and "/half-made/" not in path
        and certain.get(path, b"?") != live.get(path, b"?")
    )


def _wreck(place: Path, seed: int) -> tuple[Config, Image]:
    """What a power failure leaves of a store under load, flushed now and then."""
    dice = random.Random(seed)
    tap = _tap(place)
    config = msgspec.structs.replace(
        small_config(place / "disk" / "store", dice), flush_disk_type="async"
    )
    clock = ManualClock()
    with tap.open():
        broker = SteppedBroker(config, clock, dice)
        create_topic(broker, TOPIC, 2)
        producer = SteppedProducer("p1", TOPIC, 2, "written")
        for _ in range(dice.randint(8, 30)):
            producer.send(dice.choice((0, 30, 300, 1200)), clock.now_ms())
            for _ in range(dice.randint(0, 40)):
                producer.step(broker, 0)
                broker.step()
        broker.kill()
        tap.close_handles()
    remove_strays(config.store, None)
    return config, tap.disk.any_image(dice)


def _fails_at(nth: int) -> tuple[Callable[[str], bool], list[str]]:
    """Let the nth sync fail; which one that was."""
    met: list[str] = []

    def fails(path: str) -> bool:
        met.append(path)
        return len(met) == nth

    return fails, met


def _fails_where(place: str) -> tuple[Callable[[str], bool], list[str]]:
    """Let the first sync of a file there fail; which one that was."""
    met: list[str] = []

    def fails(path: str) -> bool:
        is_first = not met and path.startswith(place)
        met.extend([path] * is_first)
        return is_first

    return fails, met


@pytest.mark.filterwarnings("ignore:unclosed <socket")  # the process of a start that fails ends
@pytest.mark.parametrize("rebooted", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_behind_a_start_that_succeeds_nothing_is_only_in_memory_whichever_sync_failed_before(
    place: Path, seed: int, rebooted: bool
) -> None:
    (place / "wreck").mkdir()
    config, image = _wreck(place / "wreck", seed)
    image = in_another_boot(image) if rebooted else image
    config = msgspec.structs.replace(config, store_path_root_dir=str(place / "disk" / "store"))
    tap = _tap(place)
    wrong, failed = [], True
    for nth in range(1, MOST_SYNCS):
        remove_strays(config.store, None)
        tap.fail_power(image)
        with tap.open():
            tap.sync_fails, met = _fails_at(nth)
            with suppress(StoreUnavailable):
                _start(config)
            failed = len(met) >= nth
            tap.close_handles()
            tap.sync_fails = lambda path: False
            _start(config)
            tap.close_handles()
        # a copy of a torn tail that failed stays as it is, and the next start makes another one
        left = {met[-1]} if "/quarantine/torn-" in met[-1] else set()
        if different := [path for path in _different(tap) if path not in left]:
            wrong.append(f"sync {nth}, {met[-1]}: {different}")
        if not failed:
            break
    assert not failed, "each sync of a start had its turn"
    assert wrong == []


def _torn_behind_the_third(image: Image) -> Image:
    """The disk as another boot finds it: of the log's first page a part was never written, whole
    records stand after it, and neither checkpoint nor watermark knows of any."""
    files = dict(in_another_boot(image).entries)
    log = bytearray(files["store/commitlog/00000000000000000000"] or b"")
    log[1000:1400] = bytes(400)
    mark = decode_watermark(files["store/penstock/watermark"] or b"")
    assert mark is not None
    changed = {
        "store/commitlog/00000000000000000000": bytes(log),
        "store/checkpoint": bytes(4096),
        "store/penstock/watermark": encode_watermark(Watermark(mark.run_id, False, 0)),
    }
    del files["store/penstock/queues"]  # it says what the watermark said
    return Image(tuple((path, changed.get(path, content)) for path, content in files.items()))


def test_messages_that_a_failed_start_has_cut_do_not_come_back_behind_later_ones(
    place: Path,
) -> None:
    """They would look like what a checkpoint knows of, after damage: the store read-only."""
    config = msgspec.structs.replace(
        small_config(place / "disk" / "store", random.Random(1)),
        mapped_file_size_commit_log_bytes=64 << 10,
        mapped_file_size_consume_queue_bytes=20 * 400,
        flush_disk_type="sync",
    )
    tap, clock = _tap(place), ManualClock()
    with tap.open():
        broker = SteppedBroker(config, clock, random.Random(5))
        _run(broker, 30)
        broker.kill()
        tap.close_handles()
        remove_strays(config.store, None)
        tap.fail_power(_torn_behind_the_third(tap.disk.live()))
        tap.sync_fails, failed = _fails_where("store/commitlog/0")
        with pytest.raises(StoreUnavailable, match="Input/output error"):
            _start(config)
        assert failed
        tap.close_handles()
        tap.sync_fails = lambda path: False
        broker = SteppedBroker(config, clock, random.Random(6))
        assert broker.store.recovered.messages < 5
        acked = _run(broker, 3, "p2")
        broker.kill()
        tap.close_handles()
    remove_strays(config.store, None)
    assert len(acked) == 3
    (place / "after").mkdir()
    next(tap.disk.some_images(0, random.Random(0))).write(place / "after")
    after = msgspec.structs.replace(config, store_path_root_dir=str(place / "after" / "store"))
    assert check_store(place / "after" / "store", after, TOPIC, acked, []) == []


def test_a_log_that_a_run_could_not_flush_is_on_the_disk_behind_a_start_without_its_memory(
    place: Path,
) -> None:
    """As where a container is made again: the page cache is the same, /dev/shm is not."""
    dice = random.Random(3)
    config = small_config(place / "disk" / "store", dice)
    config = msgspec.structs.replace(config, flush_disk_type="sync")
    tap, clock = _tap(place), ManualClock()
    with tap.open():
        broker = SteppedBroker(config, clock, dice)
        create_topic(broker, TOPIC, 2)
        producer = SteppedProducer("p1", TOPIC, 2, "durable")
        tap.sync_fails, failed = _fails_where("store/commitlog/")
        for _ in range(8):
            producer.send(1200, clock.now_ms())  # three segments of them
        while not broker.store.positions["flush_error"]:
            producer.step(broker, 0)
            broker.step()
        assert failed and not producer.acked
        broker.kill()
        tap.close_handles()
        remove_strays(config.store, None)
        tap.sync_fails = lambda path: False
        assert _different(tap), "there is something to lose"
        _start(config)
        tap.close_handles()
    assert _different(tap) == []


def test_behind_a_stop_in_good_order_nothing_is_only_in_memory_whichever_flush_failed_before(
    place: Path,
) -> None:
    """A run ends by it, and is killed; the next one works on with its memory, and is stopped."""
    config = msgspec.structs.replace(
        small_config(place / "disk" / "store", random.Random(1)),
        flush_disk_type="sync",
        # more than a page of slots, which are all over their pages
        max_hash_slot_num=8000,
        max_index_num=300,
    )
    tap = _tap(place)
    wrong, failed = [], True
    nothing = tap.disk.live()
    for nth in range(1, MOST_SYNCS):
        tap.fail_power(nothing)
        with tap.open():
            broker = SteppedBroker(config, ManualClock(), random.Random(5))
            tap.sync_fails, met = _fails_at(nth)
            _run(broker, 5)
            failed = len(met) >= nth
            broker.kill()
            tap.close_handles()
            tap.sync_fails = lambda path: False
            broker = SteppedBroker(config, ManualClock(), random.Random(5))
            _run(broker, 1)
            assert broker.stop()
            tap.close_handles()
        if different := _different(tap):
            wrong.append(f"sync {nth}, {met[-1]}: {different}")
        if not failed:
            break
    assert not failed and wrong == []


def _run(broker: SteppedBroker, messages: int, name: str = "p1") -> list[Sent]:
    """Some messages and what follows them, as far as the disk lets it; the acknowledged ones."""
    create_topic(broker, TOPIC, 2)
    producer = SteppedProducer(name, TOPIC, 2, "durable")
    for _ in range(messages):
        producer.send(300, broker.clock.now_ms())
        for _ in range(40):
            producer.step(broker, 0)
            broker.step()
    return producer.acked
