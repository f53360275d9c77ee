"""Programs with transactions are killed, and actors, and the broker: messages agree with the local
transactions in the end.

PENSTOCK_CHAOS_TRANSACTIONS sets how many there are at least (300 without it), PENSTOCK_CHAOS_KILLS
how many kills (8), PENSTOCK_CHAOS_SEED which. All are printed with what came of it.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from penstock.chaos.arena import any_settings
from penstock.chaos.running.transactions import run_transactions

KILLS = int(os.environ.get("PENSTOCK_CHAOS_KILLS", "8"))
TRANSACTIONS = int(os.environ.get("PENSTOCK_CHAOS_TRANSACTIONS", "300"))


@pytest.mark.timeout(600 + 5 * KILLS + TRANSACTIONS // 10)
def test_messages_agree_with_local_transactions_whoever_is_killed(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_CHAOS_SEED", "7"))
    dice = random.Random(seed)
    found = run_transactions(tmp_path, any_settings(dice), KILLS, TRANSACTIONS, dice)
    print(f"\nPENSTOCK_CHAOS_SEED={seed} PENSTOCK_CHAOS_KILLS={KILLS}: {found}")
    assert found.wrong == []
    assert found.committed > TRANSACTIONS // 10 and found.rolled_back > TRANSACTIONS // 20
