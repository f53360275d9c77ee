"""Rounds of chaos: each failure comes with the command that shows it again, as it was run."""

from __future__ import annotations

import random
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.chaos import campaigns
from penstock.chaos.arena import Arena
from penstock.chaos.campaigns import Kind, run_chaos
from penstock.chaos.report import Report
from penstock.cli.chaos import chaos


@pytest.mark.parametrize(("hits", "every"), [(1, False), (20, False), (1, True), (3, True)])
def test_the_command_of_a_failure_runs_the_same_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hits: int, every: bool
) -> None:
    ran: list[tuple[int, int, bool]] = []

    def fail(arena: Arena, dice: random.Random, replay: str) -> None:
        ran.append((dice.getrandbits(32), arena.hits, arena.every))
        arena.report.add_violations(["a promise"], replay)

    monkeypatch.setitem(campaigns.KINDS, "kills", Kind(fail, 1))
    report = Report(seed=7)
    arena = Arena(tmp_path, report, lambda: None, hits=hits, every=every)
    for _ in run_chaos(arena, ["kills"], seconds=60, rounds=3):
        pass
    arena.close()
    first = list(ran)
    assert len(first) == 3 and len(set(first)) == 3
    for violation in report.violations:
        command = shlex.split(violation.replay)
        assert command[:2] == ["penstock", "chaos"]
        told = CliRunner().invoke(chaos, [*command[2:], "--place", str(tmp_path)])
        assert told.exit_code == 1 and violation.replay in told.output
    assert ran[3:] == first
