"""`penstock clean`, and what `consume` and `status` tell of messages that are gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.shared.layout import StorePaths
from penstock.shared.store.checkpoint_file import load_checkpoint


def _penstock(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "penstock.cli.main", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60)


def _await_checkpoint(store: Path, offset: int) -> None:
    """What the next start would read again stays; below this offset it is nothing."""
    deadline = time.monotonic() + 60
    while load_checkpoint(StorePaths(store).checkpoint).confirm_offset < offset:
        assert time.monotonic() < deadline, "the checkpoint follows within a second"
        time.sleep(0.01)


def test_old_messages_go_at_once_and_their_readers_are_told(
    start_broker: Callable[..., Any],
) -> None:
    running = start_broker(
        file_reserved_time_h=0,
        delete_when='"00"',
        clean_resource_interval_ms=10**8,
        flush_interval_consume_queue_ms=50,
        flush_consume_queue_thorough_interval_ms=50,
    )
    store = str(running.store)
    lines = b"".join(b"%d %s\n" % (number, b"x" * 1000) for number in range(2500))
    assert (
        _penstock("produce", "old", "--queue", "0", "--store", store, stdin=lines).returncode == 0
    )
    _await_checkpoint(running.store, 2 << 20)
    done = json.loads(_penstock("clean", "--store", store, "-o", "json").stdout)
    assert done["log_start"] == (1 << 20) * len(done["segments"]) < done["log_end"]
    assert done["queue_files"] > 0 and done["error"] == ""
    left = [path.name for path in (running.store / "commitlog").iterdir()]
    assert not set(done["segments"]) & set(left)
    status = running.status()
    assert sum(row["messages"] for row in status["deletions"]) == done["messages"] > 0
    assert {row["why"] for row in status["deletions"]} == {"asked"}
    said = running.said.read_text()
    assert said.count("somebody asked for it (penstock clean)") == len(status["deletions"])
    table = _penstock("status", "--store", store, "--all").stdout.decode()
    assert "stored before" in table and "asked" in table
    retention = status["retention"]
    assert retention["log_bytes"] == done["log_end"] - done["log_start"]
    assert 0 <= retention["disk_used_percent"] <= 100
    again = _penstock("clean", "--store", store)
    assert again.returncode == 0 and b"0 segments deleted with 0 messages" in again.stdout
    consumed = _penstock("consume", "old", "--from", "0", "--store", store)
    first = int(consumed.stdout.split()[0])
    assert first == done["messages"] and consumed.stdout.count(b"\n") == 2500 - first
    assert b"%d messages passed over: expired or lost" % first in consumed.stderr


def test_a_store_that_was_started_again_still_tells_what_it_deleted(
    broker_in: Callable[..., Any], tmp_path: Path
) -> None:
    quick = {"flush_consume_queue_thorough_interval_ms": 50, "file_reserved_time_h": 0}
    running = broker_in(tmp_path, flush_interval_consume_queue_ms=50, **quick)
    store = str(running.store)
    lines = b"".join(b"%d %s\n" % (number, b"x" * 1000) for number in range(2500))
    assert _penstock("produce", "old", "--store", store, stdin=lines).returncode == 0
    _await_checkpoint(running.store, 2 << 20)
    assert json.loads(_penstock("clean", "--store", store, "-o", "json").stdout)["segments"]
    before = running.status()["deletions"]
    running.stop()
    again = broker_in(tmp_path)
    assert again.status()["deletions"][: len(before)] == before != []


def test_after_a_jump_of_the_clock_it_says_that_nothing_counts_as_old(
    start_broker: Callable[..., Any],
) -> None:
    """What the cleaner knows of a jump stands in its file; here it is put there by hand."""
    running = start_broker()
    file = StorePaths(running.store).retention
    seen = json.loads(file.read_bytes())
    held_ms = 5 * 3_600_000
    seen["kept_until_ms"] = time.monotonic_ns() // 1_000_000 + held_ms
    file.write_text(json.dumps(seen))
    done = _penstock("clean", "--store", str(running.store))
    assert b"the clock has jumped" in done.stderr and b"--trust-clock" in done.stderr
    found = running.status()["retention"]
    assert held_ms - 60_000 < found["clock_held_ms"] <= held_ms
    trusting = _penstock("clean", "--trust-clock", "--store", str(running.store))
    assert trusting.returncode == 0 and b"jumped" not in trusting.stderr


def test_without_a_broker_nobody_answers(tmp_path: Path) -> None:
    done = _penstock("clean", "--store", str(tmp_path))
    assert done.returncode == 3 and b"penstock up" in done.stderr


def test_it_says_that_delayed_messages_keep_what_is_old(start_broker: Callable[..., Any]) -> None:
    running = start_broker(
        file_reserved_time_h=1,
        delete_when='"00"',
        clean_resource_interval_ms=10**8,
        flush_interval_consume_queue_ms=50,
        flush_consume_queue_thorough_interval_ms=50,
    )
    store = str(running.store)
    late = _penstock("produce", "late", "--delay", "1h", "--store", store, stdin=b"waits")
    assert late.returncode == 0, late.stderr
    lines = b"".join(b"%d %s\n" % (number, b"x" * 1000) for number in range(2500))
    assert _penstock("produce", "old", "--store", store, stdin=lines).returncode == 0
    old_s = time.time() - 7200
    for segment in sorted((running.store / "commitlog").iterdir())[:2]:
        os.utime(segment, (old_s, old_s))
    done = _penstock("clean", "--store", store)
    assert done.returncode == 0 and done.stdout.startswith(b"0 segments"), done.stdout
    assert b"delayed messages wait" in done.stderr
    found = json.loads(_penstock("clean", "--store", store, "-o", "json").stdout)
    assert found["segments"] == [] and found["held_by_delayed"] is True
