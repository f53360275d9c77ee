"""Delayed messages while the scheduler, the writer and the whole broker are killed: none is early,
none is lost, none comes twice.

PENSTOCK_CHAOS_KILLS sets how many kills (8 without it), PENSTOCK_CHAOS_SEED which.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from signal import SIGKILL

import pytest

from penstock.chaos.broker import Broker, fixed_ports
from penstock.chaos.crashes.armed import SMALL
from penstock.chaos.crashes.delays import DelayLoad, judge

pytestmark = pytest.mark.takes(30)

KILLS = int(os.environ.get("PENSTOCK_CHAOS_KILLS", "8"))


@pytest.mark.timeout(240 + 10 * KILLS)
def test_whoever_is_killed_delayed_messages_come_once_and_not_early(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_CHAOS_SEED", random.SystemRandom().getrandbits(32)))
    print(f"\nPENSTOCK_CHAOS_SEED={seed} PENSTOCK_CHAOS_KILLS={KILLS}")
    dice = random.Random(seed)
    broker = Broker(tmp_path, SMALL | fixed_ports())
    broker.start()
    load = DelayLoad(broker, dice)
    try:
        for _ in range(KILLS):
            for _ in range(dice.randint(1, 20)):
                load.step(10)
                time.sleep(0.02)
            struck = dice.choice(["scheduler", "scheduler", "writer", "broker"])
            if struck == "broker":
                broker.kill()
                broker.start()
            else:
                broker.strike(struck, SIGKILL)
        assert load.finish() == []
    finally:
        load.close()
        broker.clear()


def test_the_judge_sees_what_is_early_lost_and_twice() -> None:
    assert judge({"0 5 1"}, set(), []) == ["1 delayed messages are lost, such as 0 5 1"]
