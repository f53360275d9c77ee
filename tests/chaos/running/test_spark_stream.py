"""A streaming query is killed, and its workers, and the broker it reads: every row once.

PENSTOCK_CHAOS_STREAM sets how many kills (2 without it), PENSTOCK_CHAOS_SEED which, and
PENSTOCK_CHAOS_STREAM_INTO=topic has Penstock's sink write the rows on a cluster.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from penstock.chaos.running.spark_stream import run_spark_stream

INTO_TOPIC = os.environ.get("PENSTOCK_CHAOS_STREAM_INTO", "") == "topic"
KILLS = int(os.environ.get("PENSTOCK_CHAOS_STREAM", "2"))


@pytest.mark.takes(40)
@pytest.mark.timeout(900 + 60 * KILLS)
def test_each_message_is_one_row_whoever_is_killed(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_CHAOS_SEED", 1))
    print(f"\nPENSTOCK_CHAOS_SEED={seed} PENSTOCK_CHAOS_STREAM={KILLS}")
    dice = random.Random(seed)
    # acknowledged before it is on disk, and not: a stream waits for the disk in both
    settings = {"flush_disk_type": dice.choice(["sync", "async"])}
    found = run_spark_stream(
        tmp_path, settings, KILLS, dice, into_topic=INTO_TOPIC, cluster=INTO_TOPIC
    )
    print(found)
    assert (found.lost, found.repeated) == ([], [])
    assert found.struck.total() == KILLS and found.messages
