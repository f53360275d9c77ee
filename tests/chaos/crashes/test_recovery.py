"""Starts that are killed while they recover, at every point and at any moment, end as one start."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from penstock.chaos.arena import Arena
from penstock.chaos.crashes.recovery import KINDS, check_recovery, points
from penstock.chaos.report import Report

pytestmark = pytest.mark.takes(45)


@pytest.mark.parametrize("pool, memory", KINDS, ids=["pool", "mapped", "mapped, no memory"])
def test_a_recovery_killed_five_times_in_a_row_ends_in_the_same_bytes(
    tmp_path: Path, pool: bool, memory: bool
) -> None:
    seed = int(os.environ.get("PENSTOCK_CHAOS_SEED", "7"))
    arena = Arena(tmp_path, Report(seed), lambda: None)
    dice = random.Random(seed)
    wrong = check_recovery(arena, tmp_path / "broker", dice, pool=pool, memory=memory)
    print(f"\nPENSTOCK_CHAOS_SEED={seed}", arena.report.faults, arena.report.points)
    assert wrong == []
    assert arena.report.points.keys() >= points(pool, memory)
    assert arena.report.faults["start killed at some moment"] >= 2
