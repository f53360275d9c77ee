"""Members of groups are killed, freeze, leave and join, and so does what they talk to: no message
is lost to a group, none is repeated whose end was answered, and keys stay in order.

PENSTOCK_CHAOS_MEMBERS sets how many strikes (6 without it), PENSTOCK_CHAOS_SEED which: the same
ones each time without it.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from penstock.chaos.arena import any_settings
from penstock.chaos.running.members import run_members

STRIKES = int(os.environ.get("PENSTOCK_CHAOS_MEMBERS", "6"))


@pytest.mark.takes(20)
@pytest.mark.timeout(600 + 30 * STRIKES)
def test_groups_keep_their_promises_whoever_is_struck(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_CHAOS_SEED", "5"))
    dice = random.Random(seed)
    found = run_members(tmp_path, any_settings(dice), STRIKES, dice)
    print(f"\nPENSTOCK_CHAOS_SEED={seed} PENSTOCK_CHAOS_MEMBERS={STRIKES}: {found}")
    for what, times in found.handed_over.items():
        print(f"{what}: {len(times)} queues, at most {max(times):.2f} s")
    assert found.wrong == []
    assert found.struck.total() == STRIKES and found.acknowledged and found.handled
