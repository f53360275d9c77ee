"""Actors killed and frozen at random moments under load: nothing acknowledged is lost, all goes on.

PENSTOCK_CHAOS_KILLS sets how many in each mode (10 without it), PENSTOCK_CHAOS_SEED which. Both are
printed, with the times from a kill until a message was acknowledged, and until it was consumed.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from penstock.chaos.arena import Arena
from penstock.chaos.report import Report
from penstock.chaos.running.kills import run_kills

KILLS = int(os.environ.get("PENSTOCK_CHAOS_KILLS", "10"))


@pytest.mark.timeout(600 + 2 * KILLS)
@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("pool", [True, False], ids=["pool", "mapped"])
def test_nothing_acknowledged_is_lost_repeated_or_disordered_by_random_kills(
    tmp_path: Path, flush: str, pool: bool
) -> None:
    seed = int(os.environ.get("PENSTOCK_CHAOS_SEED", "7"))
    settings = {"flush_disk_type": flush, "transient_store_pool_enable": pool}
    arena = Arena(tmp_path, Report(seed), lambda: None)
    run_kills(arena, tmp_path / "broker", settings, KILLS, random.Random(seed), "")
    report = arena.report
    print(f"\nPENSTOCK_CHAOS_SEED={seed} PENSTOCK_CHAOS_KILLS={KILLS}", report.faults)
    print(*report.recovery().items(), sep="\n")
    assert report.violations == [] and sum(report.faults.values()) >= KILLS
    assert report.acknowledged > KILLS and report.consumed > KILLS
