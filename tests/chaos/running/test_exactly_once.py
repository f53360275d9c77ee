"""Programs that copy exactly once are killed, and writer, coordinator, broker: the outputs
are the function of the inputs.

PENSTOCK_CHAOS_EXACTLY sets how many kills (20 without it), PENSTOCK_CHAOS_SEED which.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from penstock.chaos.running import exactly_once
from penstock.chaos.running.exactly_once import run_exactly_once

KILLS = int(os.environ.get("PENSTOCK_CHAOS_EXACTLY", "20"))


@pytest.mark.takes(20)
@pytest.mark.timeout(600 + 4 * KILLS)
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_each_input_has_its_effect_once_whoever_is_killed(tmp_path: Path, flush: str) -> None:
    seed = int(os.environ.get("PENSTOCK_CHAOS_SEED", "7"))
    print(f"\nPENSTOCK_CHAOS_SEED={seed} PENSTOCK_CHAOS_EXACTLY={KILLS}")
    settings = {"flush_disk_type": flush}
    found = run_exactly_once(tmp_path, settings, KILLS, random.Random(seed))
    print(found)
    assert (found.ended, found.missing, found.twice) == ([], [], [])
    assert found.struck.total() == KILLS and found.inputs


@pytest.mark.takes(10)
def test_a_program_goes_on_that_was_told_of_a_late_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exactly_once, "STRUCK", {"frozen flusher": 1})
    settings = {"flush_disk_type": "sync", "sync_flush_timeout_ms": 1}
    said = ""
    for seed in range(1, 8):  # whether a block waits for the disk just then is chance
        place = tmp_path / str(seed)
        place.mkdir()
        found = run_exactly_once(place, settings, 3, random.Random(seed))
        assert (found.ended, found.missing, found.twice) == ([], [], [])
        said = "".join(each.read_text() for each in place.glob("copier-*"))
        if "FLUSH_DISK_TIMEOUT" in said:
            return
    raise AssertionError(f"nothing was late: {said}")
