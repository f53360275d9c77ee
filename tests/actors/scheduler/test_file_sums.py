"""The timers' files are compared with what was noted of them: what a disk has taken comes all the
same, as the log has it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from penstock.actors.scheduler.file_sums import FileSums, load_sums, save_sums
from penstock.actors.scheduler.timer_files import ENTRY, MESSAGE, TimerFiles
from penstock.shared.messaging.delayed import Delay

Maker = Callable[..., Any]
HOUR_MS = 3_600_000


def _flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[5] ^= 1
    file.write_bytes(raw)


HARM: dict[str, Callable[[Path], object]] = {
    "gone": lambda file: file.unlink(),
    "cut": lambda file: os.truncate(file, 24),
    "zeroed": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "bent": _flip,
}


def _in_another_run(it: Any) -> None:
    """The broker is started again, as far as the scheduler can see."""
    it.progress(run="an earlier one")
    it.start()


def _waiting(it: Any) -> list[str]:
    """Timers in a minute's file, and in that of an hour."""
    keys = [it.send(Delay(out_ms=it.now_ms + 90_000 + at)) for at in range(3)]
    keys += [it.send(Delay(out_ms=it.now_ms + 3 * HOUR_MS + at)) for at in range(3)]
    it.until(lambda: it.broker.positions["pending_delayed"] == 6, "the files")
    return keys


@pytest.mark.parametrize("is_noted_at", ["a stop", "a sync"])
@pytest.mark.parametrize("harm", HARM)
def test_what_a_file_has_lost_while_no_broker_ran_is_read_again_from_the_log(
    scene: Maker, harm: str, is_noted_at: str
) -> None:
    it = scene()
    keys = _waiting(it)
    if is_noted_at == "a stop":
        it.stop()
    else:
        it.until(lambda: it.actor._progress.synced == 6, "a sync", ms=500)
        it.broker.crash(it.actor)
    files = sorted(it.broker.paths.timers.iterdir())
    assert len(files) > 1
    for file in files:
        HARM[harm](file)
    _in_another_run(it)
    assert [each.body.decode() for each in it.await_bodies(6, ms=20_000)] == keys


def test_of_files_that_are_as_a_stop_has_left_them_nothing_is_read_again(scene: Maker) -> None:
    it = scene()
    keys = _waiting(it)
    it.stop()
    before = {file.name: file.read_bytes() for file in it.broker.paths.timers.iterdir()}
    _in_another_run(it)
    assert it.actor._timers.indexed == 6
    for _ in range(30):
        it.turn(20)
    assert {file.name: file.read_bytes() for file in it.broker.paths.timers.iterdir()} == before
    assert it.broker.positions["pending_delayed"] == 6
    assert [each.body.decode() for each in it.await_bodies(6, ms=20_000)] == keys


def test_what_was_compared_is_not_read_again_whatever_is_appended_to_it(tmp_path: Path) -> None:
    files, other = TimerFiles(tmp_path / "timers"), TimerFiles(tmp_path / "timers")
    files.append(np.array([(60_000, 0, 100, MESSAGE), (HOUR_MS, 100, 100, MESSAGE)], ENTRY))
    noted = files.sums()
    assert len(noted) == 2 and other.begin_with(noted, 0) and other._sums == noted
    other.append(np.array([(60_001, 200, 100, MESSAGE)], ENTRY))
    found = TimerFiles(tmp_path / "timers").sums()
    assert other.sums() == found != noted
    # of a file that has more than was noted, the rest is unknown
    longer = TimerFiles(tmp_path / "timers")
    assert longer.begin_with(noted, 0) and len(longer._sums) == 1
    assert longer.sums() == found


def test_files_whose_time_is_over_may_be_gone(scene: Maker) -> None:
    it = scene()
    _waiting(it)
    it.until(lambda: it.actor._progress.synced == 6, "a sync", ms=500)
    noted = load_sums(it.broker.paths.timer_sums).files
    files, (minute, _) = it.actor._files, sorted(noted, key=len, reverse=True)
    end_ms = (int(minute) + 1) * 60_000
    (it.broker.paths.timers / minute).unlink()
    assert files.begin_with(noted, end_ms) and not files.begin_with(noted, end_ms - 1)


@pytest.mark.parametrize("raw", [b"", b"[]", b"\xff", b'{"files": {"7": [1]}}', b"[" * 100_000])
def test_a_note_that_is_none_vouches_for_nothing(tmp_path: Path, raw: bytes) -> None:
    file = tmp_path / "penstock" / "timer-sums"
    sums = FileSums(7, {"1": (24, 5)})
    save_sums(file, sums)
    assert load_sums(file) == sums
    file.write_bytes(raw)
    assert load_sums(file) == FileSums()
    file.write_bytes(msgspec.json.encode({"files": {"../x": [1, 2]}}))
    assert not load_sums(file).indexed
