"""`penstock clean`, and what `consume` and `status` tell of messages that are gone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _penstock(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "penstock.cli.main", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60)


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
    deadline = time.monotonic() + 20
    while not (done := json.loads(_penstock("clean", "--store", store, "-o", "json").stdout))[
        "segments"
    ]:
        assert time.monotonic() < deadline, "the checkpoint follows within a second"
    assert done["log_start"] == (1 << 20) * len(done["segments"]) < done["log_end"]
    assert done["queue_files"] > 0 and done["error"] == ""
    left = [path.name for path in (running.store / "commitlog").iterdir()]
    assert not set(done["segments"]) & set(left)
    retention = running.status()["retention"]
    assert retention["log_bytes"] == done["log_end"] - done["log_start"]
    assert 0 <= retention["disk_used_percent"] <= 100
    again = _penstock("clean", "--store", store)
    assert again.returncode == 0 and b"0 segments deleted" in again.stdout
    consumed = _penstock("consume", "old", "--from", "0", "--store", store)
    first = int(consumed.stdout.split()[0])
    assert first > 0 and consumed.stdout.count(b"\n") == 2500 - first
    assert b"%d messages passed over: expired or lost" % first in consumed.stderr


def test_without_a_broker_nobody_answers(tmp_path: Path) -> None:
    done = _penstock("clean", "--store", str(tmp_path))
    assert done.returncode == 3 and b"penstock up" in done.stderr
