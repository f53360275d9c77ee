"""Delayed messages while the scheduler, the writer and the whole broker are killed: none is early,
none is lost, none comes twice.

PENSTOCK_CHAOS_KILLS sets how many kills (8 without it), PENSTOCK_CHAOS_SEED which.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from penstock.bench.delay import bench_delay
from penstock.chaos.crashes.delays import judge
from penstock.chaos.running.delays import run_delays

pytestmark = pytest.mark.takes(30)

KILLS = int(os.environ.get("PENSTOCK_CHAOS_KILLS", "8"))


@pytest.mark.timeout(240 + 10 * KILLS)
def test_whoever_is_killed_delayed_messages_come_once_and_not_early(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_CHAOS_SEED", random.SystemRandom().getrandbits(32)))
    print(f"\nPENSTOCK_CHAOS_SEED={seed} PENSTOCK_CHAOS_KILLS={KILLS}")
    struck, wrong = run_delays(tmp_path, {}, KILLS, random.Random(seed))
    assert wrong == [], struck
    assert struck.total() == KILLS


@pytest.mark.timeout(300)
def test_thousands_that_are_due_together_come_once_whoever_is_killed() -> None:
    """The bench with 50 kills and a million messages, in short: batches and not single ones."""
    found = bench_delay(20_000, 5, 1_000, 4, 100, lambda done, of: None)
    assert (found.early, found.lost, found.twice) == (0, 0, 0), found
    assert found.start_s > 0 and found.memory_mb < 300


def test_the_judge_sees_what_is_early_lost_and_twice() -> None:
    assert judge({"0 5 1"}, set(), []) == ["1 delayed messages are lost, such as 0 5 1"]
