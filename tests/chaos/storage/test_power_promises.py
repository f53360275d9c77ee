"""Power fails over transactions, groups and blocks: what was promised holds on each disk left.

PENSTOCK_CHAOS_IMAGES sets how many disks (12 without it), PENSTOCK_CHAOS_SEED which.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from penstock.chaos.arena import any_settings
from penstock.chaos.interposed.preload import build_library
from penstock.chaos.interposed.recorder import SOURCE
from penstock.chaos.storage.power import choose_images
from penstock.chaos.storage.power_promises import NOTES, check_promises, record_promises

pytestmark = pytest.mark.takes(10)

IMAGES = int(os.environ.get("PENSTOCK_CHAOS_IMAGES", "12"))


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
@pytest.mark.timeout(600 + 5 * IMAGES)
def test_each_promise_holds_on_whatever_disk_a_power_failure_leaves(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_CHAOS_SEED", "7"))
    print(f"\nPENSTOCK_CHAOS_SEED={seed} PENSTOCK_CHAOS_IMAGES={IMAGES}")
    dice = random.Random(seed)
    settings = any_settings(dice) | {"flush_disk_type": "sync"}
    library = build_library(SOURCE, tmp_path)
    record_promises(tmp_path / "run", library, settings, 1.0, dice)
    names = choose_images(tmp_path / "run", IMAGES, dice)
    names[0] = names[0]._replace(seed=0)  # on which a broker goes on
    names.sort()
    assert check_promises((tmp_path / "run", names)) == []
    # promises that nobody made: each is missed, or the judge sees nothing
    with (tmp_path / "run" / NOTES).open("a") as notes:
        notes.write("half ghost 1\nended ghost 1\ndecided ghost commit\nblock 0 9999999 1\n")
    ((_, wrong),) = check_promises((tmp_path / "run", names[-1:]))
    for said in ("the half message ghost is lost", "ghost has ended", "a block up to 9999999"):
        assert any(said in each for each in wrong), said
