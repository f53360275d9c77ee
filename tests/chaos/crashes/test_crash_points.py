"""Every named point in the product is reached by real brokers under load, and crashed at.

PENSTOCK_CHAOS_POINTS sets how often each point fires at least (1 without it), PENSTOCK_CHAOS_SEED
which moments. What has fired is printed.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from penstock.chaos.arena import Arena
from penstock.chaos.crashes.armed import BELLS, SPARK
from penstock.chaos.crashes.points import WAYS, run_way
from penstock.chaos.report import Report
from penstock.shared.faults import POINTS

pytestmark = pytest.mark.takes(60)

TIMES = int(os.environ.get("PENSTOCK_CHAOS_POINTS", "1"))


@pytest.mark.timeout(600 + 90 * TIMES)
@pytest.mark.parametrize("way", WAYS)
def test_who_dies_at_any_point_costs_nothing(tmp_path: Path, way: str) -> None:
    seed = int(os.environ.get("PENSTOCK_CHAOS_SEED", "7"))
    print(f"\nPENSTOCK_CHAOS_SEED={seed} PENSTOCK_CHAOS_POINTS={TIMES}")
    began = time.monotonic()
    arena = Arena(tmp_path, Report(seed), lambda: None, hits=TIMES)
    assert run_way(arena, tmp_path, random.Random(seed), WAYS[way]) == []
    fired = arena.report.points
    print(f"{time.monotonic() - began:.1f} s:", *(f"{n} {c}" for n, c in sorted(fired.items())))
    assert {name for name, count in fired.items() if count >= TIMES} >= WAYS[way].points


def test_all_ways_together_reach_every_point() -> None:
    assert (
        frozenset().union(*(way.points for way in WAYS.values())) == POINTS.keys() - BELLS - SPARK
    )
