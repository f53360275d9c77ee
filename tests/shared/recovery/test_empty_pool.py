"""What the last run wrote is in the segments after a start, and on the disk, whoever died when."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from penstock.shared.config import Config
from penstock.shared.layout import StorePaths, segment_name
from penstock.shared.memory.positions import Positions
from penstock.shared.memory.run_directory import Run
from penstock.shared.memory.transient_store_pool import TransientStorePool
from penstock.shared.recovery.empty_pool import empty_pool

SIZE = 16 << 10


class Writes:
    """Which bytes of which segment have been written, and are on the disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: dict[str, set[int]] = {}
        self.synced: dict[str, set[int]] = {}
        self._pwrite, self._fdatasync = os.pwrite, os.fdatasync
        monkeypatch.setattr(os, "pwrite", self._write)
        monkeypatch.setattr(os, "fdatasync", self._sync)

    def _write(self, handle: int, raw: bytes, at: int) -> int:
        count = self._pwrite(handle, raw, at)
        name = os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))
        self.written.setdefault(name, set()).update(range(at, at + count))
        return count

    def _sync(self, handle: int) -> None:
        self._fdatasync(handle)
        name = os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))
        self.synced[name] = set(self.written.get(name, ()))


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_all_that_was_written_is_durable_and_a_second_time_changes_nothing(
    make_config: Callable[..., Config],
    make_run: Callable[[Config], Run],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    pooled: bool,
) -> None:
    rng = random.Random(seed)
    config = make_config(
        mapped_file_size_commit_log_bytes=SIZE,
        transient_store_pool_enable=pooled,
        transient_store_pool_bytes=4 * SIZE,
    )
    run, paths = make_run(config), StorePaths(config.store)
    flushed, committed, wrote = sorted(rng.choices(range(5 * SIZE // 2, 6 * SIZE), k=3))
    committed, flushed = max(committed, wrote - 4 * SIZE), rng.choice([flushed, committed])
    if not pooled:
        committed = wrote
    log = rng.randbytes(wrote)
    for directory in (paths.commit_log, paths.staging):
        directory.mkdir(parents=True)
    for base in range(2 * SIZE, committed, SIZE):
        raw = log[base : min(base + SIZE, committed)].ljust(SIZE, b"\0")
        (paths.commit_log / segment_name(base)).write_bytes(raw)
    if pooled:
        pool = TransientStorePool(run.pool, writable=True)
        pool.write(committed, log[committed:])
        pool.close()
    positions = Positions(run.positions, owner="supervisor")
    for name, value in (("flushed", flushed), ("committed", committed), ("wrote", wrote)):
        positions.initialise(name, value)
    positions.close()
    for _ in range(2):
        with monkeypatch.context() as patched:
            writes = Writes(patched)
            assert empty_pool(paths, config, run) == (wrote, wrote - committed)
        found = b""
        for base in range(2 * SIZE, wrote, SIZE):
            name = segment_name(base)
            found += (paths.commit_log / name).read_bytes()
            wanted = {*range(max(flushed - base, 0), min(wrote - base, SIZE))}
            assert writes.synced.get(name, set()) >= wanted, name
            assert writes.written.get(name, set()) == writes.synced.get(name, set()), name
        assert found.rstrip(b"\0") == log[2 * SIZE :].rstrip(b"\0")
