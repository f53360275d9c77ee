"""`penstock bench core`: every loop is measured in each form that this installation has."""

from __future__ import annotations

import json

import pytest

from penstock.bench.log.core import bench_core
from penstock.cli.main import main
from penstock.shared.loops.active import why_pure

LOOPS = (
    "encode",
    "check",
    "check properties",
    "copy and stamp",
    "dispatch",
    "dispatch with keys",
    "scan",
    "messages",
    "messages and bodies",
    "bodies",
)


@pytest.mark.parametrize("body_bytes", [0, 100, 300_000])
def test_each_loop_has_its_cost_in_each_form(body_bytes: int) -> None:
    costs = list(bench_core(body_bytes, runs=1))
    forms = [False] if why_pure else [True, False]
    assert [(c.loop, c.native) for c in costs] == [(loop, form) for form in forms for loop in LOOPS]
    for cost in costs:
        per_message = cost.mb_per_s * cost.ns_per_message / 1000
        assert abs(per_message / (body_bytes + 147) - 1) < 0.1, cost


def test_the_command_prints_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "core", "--size", "50", "--runs", "1", "-o", "json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert ended.value.code == 0
    assert {(row["loop"], row["body_bytes"]) for row in rows} == {(loop, 50) for loop in LOOPS}
