"""The report of a chaos run: what it counts, and how it sums up times."""

from __future__ import annotations

import msgspec
import pytest

from penstock.chaos.report import Report
from penstock.chaos.running.members import late_handovers


def test_percentiles_are_times_that_were_measured_and_err_to_the_longer() -> None:
    report = Report(seed=1)
    for number in range(1, 151):
        report.add_recovery("writer killed", number / 1000, 2 * number / 1000)
    recovery = report.recovery()["writer killed"]
    assert recovery.count == 150
    assert recovery.acknowledged == (75.0, 149.0, 150.0)
    assert recovery.consumed == (150.0, 298.0, 300.0)
    report.add_recovery("reader killed", 0.004, 0.2)
    assert report.recovery()["reader killed"].acknowledged == (4.0, 4.0, 4.0)


@pytest.mark.parametrize(("what", "bar_ms"), [("killed", 3000), ("left", 500)])
def test_queues_that_wait_too_long_for_an_owner_are_judged_over_all_rounds(
    what: str, bar_ms: int
) -> None:
    report = Report(seed=1)
    report.add_handover(f"{what} amid changes", 60.0)
    for _ in range(98):
        report.add_handover(what, 0.1)
    report.add_handover(what, bar_ms / 1000 + 0.001)
    assert late_handovers(report) == [], "of 99 it is one in a hundred"
    report.add_handover(what, 0.1)
    assert late_handovers(report) == [], "99 of 100 are in time"
    report.add_handover(what, bar_ms / 1000 + 0.001)
    ((line),) = late_handovers(report)
    assert what in line and f"at most {bar_ms} ms" in line


def test_faults_are_summed_and_a_violation_keeps_its_command() -> None:
    report = Report(seed=1)
    report.add_fault("actor killed")
    report.add_fault("actor killed", 2)
    report.add_violations(["lost"], "penstock chaos --seed 3")
    assert report.faults == {"actor killed": 3}
    shown = msgspec.json.decode(msgspec.json.encode(report.violations))
    assert shown == [{"what": "lost", "replay": "penstock chaos --seed 3"}]


def test_that_nothing_is_lost_is_not_said_of_rounds_whose_messages_were_not_compared() -> None:
    report = Report(seed=1, acknowledged=7)
    assert report.of_messages() == "7 messages acknowledged, 0 lost, 0 twice; 0 followed"
    report.add_failed_round("No space left on device", "penstock chaos --seed 3")
    assert report.of_messages().endswith("0 lost, 0 twice; 0 followed; rounds not compared: 1")
    assert [each.what for each in report.violations] == ["No space left on device"]
