"""A stopped store and the ways to look at it, for the tests of what a start does to it.

And what the kernel knows of this process.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.shared.config import Config
from penstock.shared.formats.record import Record
from penstock.shared.formats.record_check import Kind
from penstock.shared.layout import StorePaths
from penstock.shared.memory.run_directory import Run
from penstock.shared.recovery.recover_log import Recovered, recover_store
from penstock.shared.store.directory import StoreDirectory

SEGMENT = 4096
RECORD = Kind.RECORD


class StoppedStore(NamedTuple):
    """A store directory, and the ways to look at it."""

    paths: StorePaths
    config: Config

    def recover(self, last_run: Run | None = None) -> Recovered:
        return recover_store(self.paths, self.config, last_run)

    def contents(self) -> dict[str, bytes]:
        """Every file, by path, but for the note that a start has begun."""
        return {
            str(path.relative_to(self.paths.root)): path.read_bytes()
            for path in sorted(self.paths.root.rglob("*"))
            if path.is_file() and path != self.paths.starting
        }

    def log(self) -> bytearray:
        return bytearray(
            b"".join(path.read_bytes() for path in sorted(self.paths.commit_log.iterdir()))
        )

    def write_log(self, raw: bytes | bytearray) -> None:
        for number, path in enumerate(sorted(self.paths.commit_log.iterdir())):
            path.write_bytes(raw[number * SEGMENT : (number + 1) * SEGMENT])

    def starts(self) -> list[int]:
        """Where records begin, and where the last one ends."""
        with StoreDirectory(self.paths.root) as store:
            steps = [(at, size) for at, found, size, _, _ in store.scan_log() if found is RECORD]
        return [*(at for at, _ in steps), sum(steps[-1])]


@pytest.fixture
def stopped_store(
    store_builder: Callable[..., Path], make_config: Callable[..., Config]
) -> Callable[..., StoppedStore]:
    def make(records: list[Record], **layout: object) -> StoppedStore:
        paths = StorePaths(store_builder(records, segment_bytes=SEGMENT, **layout))
        paths.staging.mkdir(parents=True)
        return StoppedStore(paths, make_config())

    return make


@pytest.fixture
def twelve(make_record: Callable[..., Record]) -> list[Record]:
    """Records of two queues that fill a segment and begin another."""
    return [
        make_record(queue_id=number % 2, body=bytes([65 + number]) * 400) for number in range(12)
    ]


@pytest.fixture
def as_stopped() -> Callable[[StorePaths, Config], StoppedStore]:
    """Any directory as a stopped store."""
    return StoppedStore


@pytest.fixture
def wreckable(
    store_builder: Callable[..., Path],
    twelve: list[Record],
    as_stopped: Callable[..., StoppedStore],
) -> Callable[[Path], StoppedStore]:
    """An unclean store in a directory of its own, each time the same."""
    template = store_builder(twelve, segment_bytes=SEGMENT, unclean=True)

    def make(place: Path) -> StoppedStore:
        paths = StorePaths(shutil.copytree(template, place / "store"))
        paths.staging.mkdir(parents=True)
        small = Config(
            store_path_root_dir=str(paths.root),
            mapped_file_size_commit_log_bytes=SEGMENT,
            mapped_file_size_consume_queue_bytes=1000,
            max_hash_slot_num=20,
            max_index_num=50,
        )
        return StoppedStore(paths, small)

    return make


@pytest.fixture
def fetched_alone() -> Callable[[Path], list[bool]]:
    """For each mapping of a file: does a touch of a page leave the pages around it alone?"""

    def look(path: Path) -> list[bool]:
        lines = Path("/proc/self/smaps").read_text().splitlines()
        starts = [number for number, line in enumerate(lines) if line.endswith(f" {path}")]
        flags = [next(x for x in lines[at:] if x.startswith("VmFlags")) for at in starts]
        return [" rr " in each for each in flags]

    return look
