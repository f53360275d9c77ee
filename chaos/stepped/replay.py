"""Starts, catches up and stops a store after a failure, all in this process, and then checks it.

What runs is the product's own recovery, reput and verification.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from penstock.actors.cleaner import Cleaner
from penstock.actors.flusher import Flusher
from penstock.actors.reput import Reput
from penstock.chaos.history import SHOWN, Sent, check_acknowledged, check_order, read_stored
from penstock.chaos.stepped.stepped_wire import Wire
from penstock.chaos.stepped.uncertain_disk import Image
from penstock.maintenance.verify.check import verify_store
from penstock.shared.clock import SystemClock
from penstock.shared.config import Config
from penstock.shared.errors import PenstockError
from penstock.shared.index.directory import index_files, index_geometry
from penstock.shared.layout import StorePaths
from penstock.shared.memory.run_directory import boot_id
from penstock.shared.process.actor import Stage
from penstock.shared.recovery.build_index import rebuild_index
from penstock.shared.recovery.close_store import close_store
from penstock.shared.recovery.open_store import open_store
from penstock.shared.recovery.recover_log import Recovered
from penstock.shared.store.directory import StoreDirectory

_ANOTHER_BOOT = b"-" * 36


def in_memory() -> str | None:
    """A directory for copies that no power failure will meet: there a flush costs nothing."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextmanager
def copied(original: Path) -> Iterator[Path]:
    """A copy of a store, in memory where possible; it is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="copy-of-penstock-", dir=in_memory()) as scratch:
        yield Path(shutil.copytree(original, Path(scratch) / "store"))


def reboot(root: Path) -> None:
    """Make a copy of a store what another boot finds: nothing in it names this boot any more."""
    for file in (StorePaths(root).run, StorePaths(root).starting):
        if file.exists():
            file.write_bytes(file.read_bytes().replace(boot_id().encode(), _ANOTHER_BOOT))


def in_another_boot(image: Image) -> Image:
    """The same state of a disk, as another boot finds it."""
    return image.replacing(boot_id().encode(), _ANOTHER_BOOT)


def settle(root: Path, config: Config, *, with_cleaner: bool = False) -> Recovered:
    """Start on the store, dispatch everything, and leave it clean. Raises PenstockError.

    With a cleaner, what an earlier one had begun is completed.
    """
    settings = msgspec.structs.replace(
        config,
        store_path_root_dir=str(root),
        produce_port=0,
        consume_port=0,
        group_port=0,
        transaction_port=0,
        gateway_enable=False,
        monitor_enable=False,
        transient_store_pool_enable=False,
    )
    clock = SystemClock()
    store = open_store(settings, clock)
    wire = Wire(random.Random(0))  # no client uses it
    for name, build in (("reput", Reput), ("flusher", Flusher)):
        stage = Stage(name, settings, store.run, clock, context=wire.context(name))
        actor = build(stage)
        actor.start()
        while not actor.drained():
            actor.work()
        actor.close()
        stage.close()
    if with_cleaner:
        _clean(Stage("cleaner", settings, store.run, clock, context=wire.context("cleaner")))
    close_store(store, settings)
    store.listeners.close()
    store.positions.close()
    os.close(store.lock)
    return store.recovered


def _clean(stage: Stage) -> None:
    """Run the first round of a cleaner. No disk is full here: files only expire."""
    try:
        cleaner = Cleaner(stage, lambda path, ahead_bytes: 0)
        cleaner.start()
        while cleaner.work():
            pass
        cleaner.close()
    finally:
        stage.close()  # or the next start would wait for this actor to end


def check_store(
    root: Path, config: Config, topic: str, acked: Sequence[Sent], seen: Sequence[Sent]
) -> list[str]:
    """What is wrong with a store after a failure, given all that clients were told before it."""
    try:
        settle(root, config)
    except PenstockError as error:
        return [f"the start is refused: {error}"]
    try:
        return _check_settled(root, config, topic, acked, seen)
    except PenstockError as error:
        return [f"the store cannot be read: {error}"]


def _check_settled(
    root: Path, config: Config, topic: str, acked: Sequence[Sent], seen: Sequence[Sent]
) -> list[str]:
    wrong = check_whole(root, config)
    stored, complaints = read_stored(str(root), topic)
    wrong += complaints
    wrong += check_acknowledged(acked, stored, "which were acknowledged")
    wrong += check_acknowledged(seen, stored, "which a consumer saw")
    return wrong + check_order(stored)


def check_whole(root: Path, config: Config) -> list[str]:
    """What the checker of store directories reports about a stopped store."""
    report = verify_store(root, index=index_geometry(config))
    wrong = [f"{each.kind}: {each.detail}" for each in report.problems[:SHOWN]]
    wrong += [note for note in report.notes if "repeat a UNIQ_KEY" in note][:SHOWN]
    if not report.clean:
        wrong.append("the store is not clean")
    return wrong


def check_index(root: Path, config: Config) -> list[str]:
    """Check that the index is byte for byte the one the whole log gives: each key in it once."""
    geometry = index_geometry(config)
    with tempfile.TemporaryDirectory(dir=root.parent) as place, StoreDirectory(root) as store:
        if store.log_start:
            return []  # index files also hold keys of records that have expired
        again = Path(place)
        rebuild_index(store, again / "index", again, geometry, lambda: 0)
        kept, rebuilt = index_files(root / "index"), index_files(again / "index")
        if len(kept) != len(rebuilt):
            return [f"{len(kept)} index files, where the log gives {len(rebuilt)}"]
        return [
            f"index file {ours.name} is not what the log gives"
            for ours, expected in zip(kept, rebuilt, strict=True)
            if ours.read_bytes() != expected.read_bytes()
        ][:SHOWN]
