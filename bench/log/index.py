"""How many keys a second can be put into an index, hashing included?"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.shared.clock import SystemClock
from penstock.shared.formats.index_chains import KeyBatch
from penstock.shared.formats.index_layout import Geometry
from penstock.shared.index.index_file import IndexFiles

TOPIC = b"bench"
RECORD_BYTES = 1200


class IndexResult(msgspec.Struct, frozen=True):
    """The measurement of one run. Files are written, but not synced."""

    keys: int
    batch: int
    slots: int
    seconds: float
    keys_per_second: float


def bench_index(
    keys: int, batch: int, geometry: Geometry, moved: Callable[[int, int], None]
) -> IndexResult:
    """Put distinct unique keys into new index files; gathering the keys is not measured."""
    place = Path(tempfile.mkdtemp(prefix="penstock-index-"))
    clock = SystemClock()
    now_ms = clock.now_ms()
    seconds = 0.0
    try:
        files = IndexFiles(place / "index", place, geometry, clock.now_ms)
        for start in range(0, keys, batch):
            gathered = KeyBatch()
            for number in range(start, min(start + batch, keys)):
                # spread out like those of many producers
                unique = b"%032X" % (number * 0x9E3779B97F4A7C15 % (1 << 128))
                gathered.add(TOPIC, unique, b"", number * RECORD_BYTES, now_ms + number // 100)
            began = time.monotonic()
            files.put(gathered.entries())
            seconds += time.monotonic() - began
            moved(start, keys)
        files.close()
    finally:
        shutil.rmtree(place)
    return IndexResult(keys, batch, geometry.slots, seconds, keys / seconds)
