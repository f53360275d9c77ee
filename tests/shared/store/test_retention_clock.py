"""The clock of retention: a jump deletes nothing, and a restart is no way round that."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.shared.clock import ManualClock
from penstock.shared.store import retention_clock
from penstock.shared.store.retention_clock import JUMP_MS, RetentionClock, held_ms

HOUR_MS = 3_600_000
RESERVED_MS = 72 * HOUR_MS
YEARS_MS = 10 * 365 * 24 * HOUR_MS


class Machine:
    """A store's file, and a clock."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.clock = ManualClock()
        self.newest_ms = self.clock.now_ms()
        self.said: list[str] = []

    def start(self) -> RetentionClock:
        return RetentionClock(self.file, self.clock, RESERVED_MS, self.newest_ms, self.said.append)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "retention.json")


def test_a_clock_that_does_not_jump_is_believed(machine: Machine) -> None:
    time = machine.start()
    for _ in range(10):
        machine.clock.advance(50 * HOUR_MS)
        machine.clock.jump(HOUR_MS // 2 - 1)
        machine.clock.jump(-HOUR_MS // 2)
        assert time.now_ms() == machine.clock.now_ms()
    assert machine.said == []


@pytest.mark.parametrize("jump_ms", [YEARS_MS, -YEARS_MS, 2 * HOUR_MS, -2 * HOUR_MS])
def test_after_a_jump_nothing_has_expired_until_the_reserved_time_has_passed(
    machine: Machine, jump_ms: int
) -> None:
    time = machine.start()
    machine.clock.jump(jump_ms)
    assert time.now_ms() == 0
    machine.clock.advance(RESERVED_MS - 1)
    assert time.now_ms() == 0
    machine.clock.advance(1)
    assert time.now_ms() == machine.clock.now_ms()
    assert len(machine.said) == 1 and "72 h" in machine.said[0]


def test_a_second_jump_begins_the_time_anew(machine: Machine) -> None:
    time = machine.start()
    machine.clock.jump(YEARS_MS)
    time.now_ms()
    machine.clock.advance(RESERVED_MS - 1)
    machine.clock.jump(-YEARS_MS)
    assert time.now_ms() == 0
    machine.clock.advance(RESERVED_MS - 1)
    assert time.now_ms() == 0


@pytest.mark.parametrize("jump_ms", [YEARS_MS, 2 * HOUR_MS])
def test_a_restart_knows_of_the_jump_before_it_and_sees_one_meanwhile(
    machine: Machine, jump_ms: int
) -> None:
    machine.start()
    machine.clock.jump(jump_ms)
    assert machine.start().now_ms() == 0
    machine.clock.advance(RESERVED_MS - 1)
    assert machine.start().now_ms() == 0
    machine.clock.advance(1)
    assert machine.start().now_ms() == machine.clock.now_ms()


@pytest.mark.parametrize("jump_ms", [YEARS_MS, -2 * HOUR_MS])
def test_after_a_boot_the_newest_message_says_whether_the_clock_is_right(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, jump_ms: int
) -> None:
    machine.start()
    monkeypatch.setattr(retention_clock, "boot_id", lambda: "another")
    machine.clock.jump(jump_ms)
    assert machine.start().now_ms() == 0
    # and when messages have come since, the next boot still knows
    machine.newest_ms = machine.clock.now_ms()
    monkeypatch.setattr(retention_clock, "boot_id", lambda: "a third")
    assert machine.start().now_ms() == 0


@pytest.mark.parametrize(
    ("jump_ms", "is_believed"),
    [
        (RESERVED_MS, True),
        (RESERVED_MS + 1, False),
        (-JUMP_MS, True),
        (-JUMP_MS - 1, False),
    ],
)
def test_after_a_boot_a_clock_is_believed_up_to_the_reserved_time_and_a_jump_back(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, jump_ms: int, is_believed: bool
) -> None:
    machine.start()
    monkeypatch.setattr(retention_clock, "boot_id", lambda: "another")
    machine.clock.jump(jump_ms)
    assert machine.start().now_ms() == (machine.clock.now_ms() if is_believed else 0)


def test_a_boot_with_a_right_clock_and_a_broken_file_are_nothing_special(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.start()
    monkeypatch.setattr(retention_clock, "boot_id", lambda: "another")
    machine.clock.jump(5 * HOUR_MS)
    assert machine.start().now_ms() == machine.clock.now_ms()
    machine.file.write_bytes(b"\xff{")
    assert machine.start().now_ms() == machine.clock.now_ms()


def test_a_disk_that_refuses_the_file_stops_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "nowhere" / "retention.json")
    time = machine.start()
    machine.clock.jump(YEARS_MS)
    assert time.now_ms() == 0
    assert any("cannot be written" in line for line in machine.said)


def test_others_are_told_for_how_long_the_clock_is_not_believed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert held_ms(machine.file, machine.clock) == 0
    time = machine.start()
    assert held_ms(machine.file, machine.clock) == 0
    machine.clock.jump(YEARS_MS)
    time.now_ms()
    assert held_ms(machine.file, machine.clock) == RESERVED_MS
    machine.clock.advance(RESERVED_MS - 7)
    assert held_ms(machine.file, machine.clock) == 7
    with monkeypatch.context() as patched:
        patched.setattr(retention_clock, "boot_id", lambda: "another")
        assert held_ms(machine.file, machine.clock) == 0
    machine.clock.advance(8)
    assert held_ms(machine.file, machine.clock) == 0
