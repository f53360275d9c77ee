"""Starts that are killed while they recover, at every point and at any moment, end as one start."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from penstock.chaos.arena import Arena
from penstock.chaos.armed import RECOVERY
from penstock.chaos.recovery import check_recovery
from penstock.chaos.report import Report


@pytest.mark.parametrize("pool", [True, False], ids=["pool", "mapped"])
def test_a_recovery_killed_five_times_in_a_row_ends_in_the_same_bytes(
    tmp_path: Path, pool: bool
) -> None:
    seed = int(os.environ.get("PENSTOCK_CHAOS_SEED", random.SystemRandom().getrandbits(32)))
    arena = Arena(tmp_path, Report(seed), lambda: None)
    wrong = check_recovery(arena, tmp_path / "broker", random.Random(seed), pool=pool)
    print(f"\nPENSTOCK_CHAOS_SEED={seed}", arena.report.faults, arena.report.points)
    assert wrong == []
    assert arena.report.points.keys() >= RECOVERY - (set() if pool else {"recover.mid_pool"})
    assert arena.report.faults["start killed at some moment"] >= 2
