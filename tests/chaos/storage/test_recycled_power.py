"""Segments that are used again over a power failure: no disk has a record at another's place.

RocketMQ's recovery does not compare the place that a record names with where it stands. So wherever
a walk from record to record comes on any disk that a failure may leave, the record must be the one
of that place; and a segment that is still in the log has not lost what it had.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from penstock.chaos.broker import SMALL_SEGMENT_BYTES
from penstock.chaos.crashes.expiry import EXPIRING
from penstock.chaos.interposed.preload import build_library
from penstock.chaos.interposed.recorder import SOURCE
from penstock.chaos.storage.power import choose_images, images, record_run
from penstock.shared.formats.record_check import Kind, examine
from penstock.shared.formats.record_layout import AT_PHYSICAL_OFFSET

IMAGES = 80
# Of these a record may be on its way: the one that is written, the one before, and the next.
LATEST = 3


@pytest.mark.takes(20)
@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_no_disk_has_a_record_of_a_segments_earlier_life_nor_one_that_lost_its_own(
    tmp_path: Path,
) -> None:
    dice = random.Random(20261127)
    bundle = tmp_path / "run"
    library = build_library(SOURCE, tmp_path)
    # the log grows faster than it goes, so that most of it is whole
    slow = {"clean_resource_interval_ms": 400, "delete_file_batch_max": 1}
    settings = EXPIRING | slow | {"flush_disk_type": "sync"}
    record_run(bundle, library, settings, "durable", 6.0, dice, orderly=False)
    names = sorted(choose_images(bundle, IMAGES, dice))
    whole, lives = set(), set()
    with tempfile.TemporaryDirectory(dir=tmp_path) as scratch:
        for number, (name, disk) in enumerate(images(bundle, names)):
            root = Path(scratch) / str(number)
            disk.write(root)
            log = disk.names.get(f"{disk.root}/commitlog", {})
            lives |= set(log.items())
            segments = [root / "commitlog" / name for name in sorted(log)]
            for segment in segments[:-LATEST]:
                assert _walk(segment) == SMALL_SEGMENT_BYTES, f"image {name}: {segment.name}"
                whole.add(segment.name)
            for segment in segments[-LATEST:]:
                _walk(segment)
            shutil.rmtree(root)
    assert whole
    again = Counter(file for _, file in lives)
    assert max(again.values()) > 1, "no segment was used again"


def _walk(segment: Path) -> int:
    """Go from record to record, as RocketMQ does; where that ends in the segment."""
    content, at = segment.read_bytes(), 0
    while at < len(content):
        kind, size, _ = examine(content, at, len(content))
        if kind is Kind.BLANK:
            return len(content)
        if kind is not Kind.RECORD:
            break  # zeros, or a record of which the failure has left a part
        named = int.from_bytes(content[at + AT_PHYSICAL_OFFSET :][:8], "big")
        assert named == int(segment.name) + at, f"a record of {named} at {at} of {segment.name}"
        at += size
    return at
