"""The log is on disk before it counts as flushed: each segment that has some of it is synced."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.actors.flusher import Flusher
from penstock.shared.layout import segment_name

SEGMENT_BYTES = 64 << 10


def test_what_counts_as_flushed_lies_in_segments_that_were_synced_before(
    pipeline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = pipeline(transient_store_pool_enable=False)
    flusher, sync = broker.start(Flusher), os.fdatasync
    synced: list[tuple[str, int]] = []

    def note(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path.parent == broker.paths.commit_log:
            synced.append((path.name, broker.positions["flushed"]))
        sync(handle)

    monkeypatch.setattr(os, "fdatasync", note)
    broker.append(20, 15_000)
    before = counted = 0
    for stop in (100, 200, SEGMENT_BYTES, 3 * SEGMENT_BYTES + 1, 4 * SEGMENT_BYTES):
        broker.positions.initialise("committed", stop)
        synced.clear()
        flusher.work()
        first = before - before % SEGMENT_BYTES
        names = [segment_name(base) for base in range(first, stop, SEGMENT_BYTES)]
        assert synced == [(name, before) for name in names]
        assert broker.positions["flushed"] == stop
        before, counted = stop, counted + len(synced)
    took_ns, buckets = broker.positions.durations("flush")
    assert sum(buckets) == counted and 0 < took_ns < 60 * 10**9
