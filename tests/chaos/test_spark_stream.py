"""A streaming query is killed, and its workers, and the broker it reads: every row once.

PENSTOCK_CHAOS_STREAM sets how many kills (3 without it), PENSTOCK_CHAOS_SEED which.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from penstock.chaos.running.spark_stream import run_spark_stream

KILLS = int(os.environ.get("PENSTOCK_CHAOS_STREAM", "3"))


@pytest.mark.takes(60)
@pytest.mark.timeout(900 + 60 * KILLS)
def test_each_message_is_one_row_whoever_is_killed(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_CHAOS_SEED", random.SystemRandom().getrandbits(32)))
    print(f"\nPENSTOCK_CHAOS_SEED={seed} PENSTOCK_CHAOS_STREAM={KILLS}")
    dice = random.Random(seed)
    # acknowledged before it is on disk, and not: a stream waits for the disk in both
    settings = {"flush_disk_type": dice.choice(["sync", "async"])}
    found = run_spark_stream(tmp_path, settings, KILLS, dice)
    print(found)
    assert (found.lost, found.repeated) == ([], [])
    assert found.struck.total() == KILLS and found.messages
