"""A rebuild in parts makes the files that a rebuild without Spark makes, byte for byte."""

from __future__ import annotations

import random
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from penstock.maintenance.rebuild import rebuild_store
from penstock.maintenance.verify.check import verify_store
from penstock.shared.clock import SystemClock
from penstock.shared.config_sources import load_config
from penstock.shared.formats.record import encode_record
from penstock.shared.layout import StorePaths
from penstock.shared.store.geometry import settled_but_index
from penstock.shared.store.lock import stopped_store
from penstock.spark.jobs.rebuild import rebuild_on

GOLDEN = Path(__file__).parent.parent.parent / "golden"
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def contents(root: Path) -> dict[str, bytes]:
    return {str(at.relative_to(root)): at.read_bytes() for at in root.rglob("*") if at.is_file()}


def in_order(index: Path) -> list[bytes]:
    """Index files are named by the time at which they were made."""
    return [path.read_bytes() for path in sorted(index.iterdir())] if index.is_dir() else []


class Told:
    """How much of all steps was told of last; a stage of Spark's begins at 0."""

    def __init__(self) -> None:
        self.share = 0.0

    def add(self, done: int, total: int) -> None:
        assert done <= total
        self.share = done / total if total else self.share


def rebuilt_both_ways(
    spark: SparkSession, root: Path, part_bytes: int, **wanted: bool
) -> StorePaths:
    """Rebuild a store with Spark, and a copy without; the store, of which both are the same."""
    copy = shutil.copytree(root, root.parent / "copy", symlinks=True)
    done, told = [], Told()
    for place in (root, copy):
        flags = {"store_path_root_dir": str(place)}
        config = load_config(None, flags, {}, settled_but_index).config
        with stopped_store(place) as (paths, _):
            if place is root:
                more: dict[str, Any] = {"part_bytes": part_bytes, **wanted}
                done.append(rebuild_on(spark, paths, config, progress=told.add, **more))
            else:
                both = {"queues": True, "index": True} | wanted
                done.append(rebuild_store(paths, config, SystemClock(), **both))
    assert replace(done[0], seconds=0.0) == replace(done[1], seconds=0.0)
    ours, theirs = StorePaths(root), StorePaths(copy)
    assert contents(ours.consume_queue) == contents(theirs.consume_queue)
    assert in_order(ours.index) == in_order(theirs.index)
    assert not ours.rebuild.exists()
    # the log is walked, and then gone through for queues, and for the index
    steps = 1 + (done[0].entries > 0) + (done[0].keys > 0)
    assert told.share > (steps - 1) / (1 + sum(({"queues": True, "index": True} | wanted).values()))
    return ours


@pytest.mark.parametrize("golden", sorted(GOLDEN.glob("*.tar.xz")), ids=lambda path: path.name)
def test_of_a_golden_store_the_queues_are_those_that_rocketmq_wrote(
    spark: SparkSession, tmp_path: Path, golden: Path
) -> None:
    with tarfile.open(golden) as packed:
        packed.extractall(tmp_path, **SAFELY)
    (root,) = [path.parent for path in tmp_path.rglob("commitlog")]
    before = contents(root / "consumequeue")
    rebuilt_both_ways(spark, root, 9000)
    assert contents(root / "consumequeue") == before
    assert verify_store(root).ok


def test_a_log_with_damage_and_records_in_bodies_comes_out_the_same(
    spark: SparkSession, store_builder: Callable[..., Path], make_record: Callable[..., Any]
) -> None:
    at = len(encode_record(make_record(body=b""))) - len("orders") - 1 - 2
    inner = encode_record(replace(make_record(body=b"x" * 300), physical_offset=at))
    records = [make_record(body=inner)]
    records += [make_record(queue_id=n % 3, body=b"%d" % n * 50) for n in range(150)]
    root = store_builder(records, segment_bytes=1 << 14)
    dice = random.Random(3)
    for file in sorted((root / "commitlog").iterdir())[:-1]:
        with file.open("r+b") as log:
            for _ in range(3):
                log.seek(dice.randrange(2000, 14_000))
                log.write(b"\xff")
    for wanted in ({}, {"index": False}, {"queues": False}):
        rebuilt_both_ways(spark, root, 700, **wanted)
        shutil.rmtree(root.parent / "copy")
