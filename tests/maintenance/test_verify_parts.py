"""A check side by side says what one process says, and ends when a part of it fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.maintenance.verify import verify_store
from penstock.maintenance.verify_parts import SideBySide, Task
from penstock.maintenance.verify_report import VerifyReport
from penstock.maintenance.verify_walk import How
from penstock.shared.errors import StoreUnavailable
from penstock.shared.layout import segment_name


def _told(report: VerifyReport) -> dict[str, Any]:
    return {**msgspec.to_builtins(report), "seconds": 0}


@pytest.fixture
def store(store_builder: Callable[..., Path], make_record: Callable[..., Any]) -> Path:
    records = [make_record(queue_id=number % 3, body=b"b" * 300) for number in range(200)]
    return store_builder(records, segment_bytes=1 << 14)


def test_parts_come_to_the_report_of_the_whole(store: Path) -> None:
    moved: list[tuple[int, int]] = []
    whole = verify_store(store)
    assert whole.ok and whole.segments > 3
    parts = verify_store(
        store, processes=2, part_bytes=1 << 15, progress=lambda *each: moved.append(each)
    )
    assert _told(parts) == _told(whole)
    assert moved[-1][0] == moved[-1][1] and moved == sorted(moved)
    second = store / "commitlog" / segment_name(1 << 14)
    with second.open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff\x00\xff")
    whole = verify_store(store)
    assert not whole.ok and whole.log_damaged
    assert _told(verify_store(store, processes=2, part_bytes=1 << 14)) == _told(whole)


def test_a_worker_that_fails_ends_the_check_with_what_it_said(tmp_path: Path) -> None:
    task = Task(str(tmp_path / "gone"), How())
    with (
        SideBySide(2, None, 1) as workers,
        pytest.raises(StoreUnavailable, match="a part of the check ended with code 1.*gone"),
    ):
        workers.run([task, task])
    assert not workers._workers
