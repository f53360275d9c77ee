"""What RocketMQ finds of timers: the offset in config/timercheck, and no older wheel of its own."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.actors.scheduler.keeping import LOOK_MS
from penstock.actors.scheduler.rocketmq_timers import RocketMQTimers
from penstock.shared.layout import StorePaths
from penstock.shared.messaging.delayed import Delay
from penstock.shared.progress.timer_checkpoint import timer_queue_offset

Maker = Callable[..., Any]
HOUR_MS = 3_600_000


def _words(it: Any) -> tuple[int, ...]:
    raw = it.broker.paths.timer_checkpoint.read_bytes()
    assert len(raw) == 4096 and not any(raw[56:])
    return struct.unpack_from(">7q", raw)


def _offset(it: Any) -> int:
    """Where RocketMQ begins: of both words the lesser one counts, and they are equal."""
    _, _, own, master, _, _, _ = _words(it)
    assert own == master
    return own


def test_after_a_stop_with_nothing_that_waits_rocketmq_begins_at_the_queues_end(
    scene: Maker,
) -> None:
    it = scene()
    for at in range(3):
        it.send(Delay(out_ms=it.now_ms + 300 + at))
    it.await_bodies(3)
    it.stop()
    assert _offset(it) == 3


@pytest.mark.parametrize("wait_ms", [30_000, 40 * 60_000, 30 * HOUR_MS])
def test_rocketmq_begins_at_the_first_that_waits(scene: Maker, wait_ms: int) -> None:
    it = scene()
    it.send(Delay(out_ms=it.now_ms + 300))
    it.send(Delay(out_ms=it.now_ms + wait_ms))
    it.send(Delay(out_ms=it.now_ms + 300))
    it.await_bodies(2)
    it.stop()
    assert _offset(it) == 1


def test_what_is_found_too_late_and_has_no_answer_is_not_passed_over(scene: Maker) -> None:
    it = scene()
    it.send(Delay(out_ms=it.now_ms + 300))
    it.await_bodies(1)
    it.send(Delay(out_ms=it.now_ms - 10))
    it.until(lambda: it.actor._timers._on_way, "it is put")
    assert it.actor._timers.queue_offset(1 << 60) == 1
    it.await_bodies(2)
    assert it.actor._timers.queue_offset(1 << 60) == 2


def test_what_is_not_on_the_disk_counts_as_waiting(scene: Maker) -> None:
    """After a power failure its offset may be that of another message, which nobody has."""
    it = scene()
    for at in range(3):
        it.send(Delay(out_ms=it.now_ms + 300 + at))
    it.await_bodies(3)
    second = it.queue("rmq_sys_wheel_timer", 0)[1].physical_offset
    assert it.actor._timers.queue_offset(second) == 1


def test_a_store_without_timers_has_no_such_file(scene: Maker) -> None:
    it = scene()
    it.send(Delay(1))
    it.await_bodies(1)
    it.stop()
    assert not it.broker.paths.timer_checkpoint.exists()


def test_it_is_written_while_the_broker_runs_and_each_time_counted(scene: Maker) -> None:
    it = scene()
    it.send(Delay(out_ms=it.now_ms + 300))
    it.await_bodies(1)
    it.until(lambda: it.broker.paths.timer_checkpoint.exists() and _offset(it) == 1, "one", ms=500)
    counted = _words(it)[-1]
    it.send(Delay(out_ms=it.now_ms + 300))
    it.await_bodies(2)
    it.broker.clock.advance(LOOK_MS)
    it.until(lambda: _offset(it) == 2, "the next")
    assert _words(it)[-1] == counted + 1


def test_what_waits_is_not_gone_through_while_it_runs_where_that_is_much(
    scene: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.actors.scheduler.keeping.MOST_LOOKED_AT", 1)
    it = scene()
    it.send(Delay(out_ms=it.now_ms + 300))
    for at in range(2):
        it.send(Delay(out_ms=it.now_ms + HOUR_MS + at))
    it.await_bodies(1)
    asked = it.actor._keeping._hand_ms
    it.broker.clock.advance(LOOK_MS)
    it.until(lambda: it.actor._keeping._hand_ms != asked, "a minute has passed")
    assert not it.broker.paths.timer_checkpoint.exists() or _offset(it) == 0
    it.stop()
    assert _offset(it) == 1


def _leave_a_wheel(it: Any) -> None:
    """As RocketMQ leaves them, with an offset past all that waits: its wheel has that."""
    paths = it.broker.paths
    paths.timer_checkpoint.parent.mkdir(exist_ok=True)
    paths.timer_checkpoint.write_bytes(struct.pack(">7q", 7, 52, 9, 9, 0, 7, 41).ljust(4096, b"\0"))
    paths.timer_wheel.write_bytes(bytes(64))
    paths.timer_log.mkdir()
    (paths.timer_log / f"{0:020d}").write_bytes(bytes(52))


def test_the_wheel_of_rocketmq_goes_when_the_offset_stands_for_it(
    scene: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = scene()
    it.send(Delay(out_ms=it.now_ms + HOUR_MS))
    it.until(lambda: it.broker.positions["pending_delayed"] == 1, "it is read")
    it.stop()
    _leave_a_wheel(it)
    found = []

    def crash_point(name: str) -> None:
        """Whoever dies here leaves both, and RocketMQ begins at what waits."""
        found.append((name, _offset(it), it.broker.paths.timer_wheel.exists()))

    monkeypatch.setattr("penstock.actors.scheduler.rocketmq_timers.crash_point", crash_point)
    it.start()
    it.until(lambda: not it.broker.paths.timer_log.exists(), "the wheel is gone")
    assert found == [("schedule.before_wheel", 0, True)]
    assert not it.broker.paths.timer_wheel.exists()
    assert _offset(it) == 0 and _words(it)[1] == 0 and _words(it)[-1] == 42


@pytest.mark.parametrize("left", ["its wheel", "its log"])
def test_whatever_is_left_of_a_wheel_goes(tmp_path: Path, left: str) -> None:
    """RocketMQ, or a broker that is killed here, may have removed the other one."""
    paths = StorePaths(tmp_path)
    RocketMQTimers(paths).keep(3, 1)
    if left == "its wheel":
        paths.timer_wheel.write_bytes(bytes(64))
    else:
        paths.timer_log.mkdir()
    RocketMQTimers(paths).keep(3, 2)
    assert not paths.timer_wheel.exists() and not paths.timer_log.exists()
    assert timer_queue_offset(paths.timer_checkpoint.read_bytes()) == (3, 2)


def test_the_offset_is_written_where_the_file_has_another_and_not_while_it_is_unknown(
    tmp_path: Path,
) -> None:
    paths, file = StorePaths(tmp_path), StorePaths(tmp_path).timer_checkpoint
    timers = RocketMQTimers(paths)
    timers.keep(-1, 1)
    assert not file.exists()
    for number, offset in enumerate((0, 5, 4), 1):
        timers.keep(offset, 1)
        assert timer_queue_offset(file.read_bytes()) == (offset, number)
        for again in (timers, RocketMQTimers(paths)):
            again.keep(offset, 1)
            again.keep(-1, 1)
        assert timer_queue_offset(file.read_bytes()) == (offset, number)
