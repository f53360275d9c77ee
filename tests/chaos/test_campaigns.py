"""Rounds of chaos, one after the other: what a round ends by is in the report."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.chaos.arena import Arena
from penstock.chaos.campaigns import KINDS, Kind, run_chaos
from penstock.chaos.clients.attack import room_in_memory
from penstock.chaos.report import Report
from penstock.shared.errors import StoreUnavailable


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), StoreUnavailable("a rule", "a value")]
)
def test_a_round_that_cannot_go_on_is_reported_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    seen = []

    def fails_once(arena: Arena, dice: random.Random, replay: str) -> None:
        seen.append(replay)
        if len(seen) == 1:
            raise error

    monkeypatch.setitem(KINDS, "kills", Kind(fails_once, 1))
    arena = Arena(tmp_path, Report(seed=7), lambda: None)
    for _ in run_chaos(arena, ["kills"], seconds=60, rounds=2):
        pass
    arena.close()
    (violation,) = arena.report.violations
    assert str(error) in violation.what and len(seen) == 2
    assert arena.report.not_compared == 1, "nobody knows what of its messages was lost"
    assert violation.replay == seen[0] == "penstock chaos --faults kills --seed 7 --rounds 1"


@pytest.mark.parametrize("ending", ["a broken promise", "an error", "all is well"])
def test_an_attacked_store_in_memory_is_kept_where_others_are_if_a_promise_was_broken(
    tmp_path: Path, ending: str
) -> None:
    arena = Arena(tmp_path, Report(seed=7), lambda: None)
    with suppress(StoreUnavailable), room_in_memory(arena) as room:
        (room / "store").mkdir()
        (room / "store" / "log").write_bytes(b"what shows it again")
        if ending == "a broken promise":
            arena.report.add_violations(["a message was lost"], "penstock chaos")
        elif ending == "an error":
            raise StoreUnavailable("a rule", "a value")
    kept = tmp_path / "round-1" / "store" / "log"
    assert kept.exists() == (ending != "all is well") and not room.exists()
    assert not kept.exists() or kept.read_bytes() == b"what shows it again"
