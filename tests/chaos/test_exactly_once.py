"""Programs that copy exactly once are killed, and writer, coordinator, broker: the outputs
are the function of the inputs.

PENSTOCK_CHAOS_EXACTLY sets how many kills (20 without it), PENSTOCK_CHAOS_SEED which.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from penstock.chaos.running.exactly_once import run_exactly_once

KILLS = int(os.environ.get("PENSTOCK_CHAOS_EXACTLY", "20"))


@pytest.mark.takes(40)
@pytest.mark.timeout(240 + 4 * KILLS)
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_each_input_has_its_effect_once_whoever_is_killed(tmp_path: Path, flush: str) -> None:
    seed = int(os.environ.get("PENSTOCK_CHAOS_SEED", random.SystemRandom().getrandbits(32)))
    print(f"\nPENSTOCK_CHAOS_SEED={seed} PENSTOCK_CHAOS_EXACTLY={KILLS}")
    settings = {"flush_disk_type": flush}
    found = run_exactly_once(tmp_path, settings, KILLS, random.Random(seed))
    print(found)
    assert (found.missing, found.twice) == ([], [])
    assert found.struck.total() == KILLS and found.inputs
