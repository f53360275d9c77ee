"""What nobody uses: each process is counted, and whoever waits gets the message in the end."""

from __future__ import annotations

import os

import pytest

from penstock.bench.loads.target import Where
from penstock.bench.log import idle
from penstock.shared.memory.roster import ACTORS


def test_every_actor_that_runs_by_default_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    # what is small enough to be settled at once
    monkeypatch.setattr(idle, "SETTLE_S", 1.0)
    found = idle.bench_idle(2, 3.0, Where(), lambda done, total: None)
    assert {"supervisor", "writer", "reader"} <= {row.process for row in found.processes}
    assert {row.process for row in found.processes} <= {"supervisor", *ACTORS}
    assert found.consumers == 2 and found.woken_ms > 0
    assert 0 < found.percent < 100 * (os.cpu_count() or 1)
    assert all(row.wakes_per_s > 0 for row in found.processes), "each looks once a second"
