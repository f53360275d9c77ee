"""A check side by side says what one process says, and ends when a part of it fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.maintenance.verify.check import verify_store
from penstock.maintenance.verify.parts import tasks_of
from penstock.maintenance.verify.report import VerifyReport
from penstock.maintenance.verify.walk import How
from penstock.shared.formats.index_layout import ITEM, Geometry
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import encode_record
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_layout import AT_BODY_V4
from penstock.shared.layout import segment_name
from penstock.shared.recovery.build_index import rebuild_index
from penstock.shared.store.directory import StoreDirectory


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


def test_a_log_of_one_segment_is_cut_too(
    store_builder: Callable[..., Path], make_record: Callable[..., Any]
) -> None:
    """Where records begin, also where the first place that is tried lies in damage."""
    records = [make_record(queue_id=number % 3, body=b"b" * 300) for number in range(400)]
    root = store_builder(records, segment_bytes=1 << 18)
    segment = root / "commitlog" / segment_name(0)
    sound = segment.read_bytes()
    for damage in (b"", b"\xff" * 900):
        place = (1 << 15) - 400
        segment.write_bytes(sound[:place] + damage + sound[place + len(damage) :])
        with StoreDirectory(root) as store:
            assert len(store.segments) == 1
            tasks = tasks_of(store, str(root), How(), 0, 1 << 15)
            starts = {at for at, found, *_ in store.scan_log() if found is Kind.RECORD}
        assert len(tasks) > 3 and {task.start for task in tasks} <= starts
        whole = verify_store(root)
        assert whole.ok == (not damage)
        assert _told(verify_store(root, processes=2, part_bytes=1 << 15)) == _told(whole)


def test_a_record_in_a_body_is_no_place_to_cut(
    store_builder: Callable[..., Path], make_record: Callable[..., Any]
) -> None:
    """It names the very place at which it stands; the part before it ends after it."""
    first = make_record(body=b"b" * 20_000)
    at = len(encode_record(first)) + AT_BODY_V4 + 200
    inside = encode_record(make_record(body=b"i" * 300, physical_offset=at))
    body = (bytes(200) + inside).ljust(20_000, b"b")
    root = store_builder([first, make_record(body=body), *[first] * 4], segment_bytes=1 << 18)
    with StoreDirectory(root) as store:
        tasks = tasks_of(store, str(root), How(), 0, at - 10)
    assert at in {task.start for task in tasks}
    whole = verify_store(root)
    assert whole.ok and whole.messages == 6
    assert _told(verify_store(root, processes=2, part_bytes=at - 10)) == _told(whole)


@pytest.mark.parametrize("processes", [1, 2])
def test_progress_is_over_when_the_index_has_been_looked_at_too(
    store_builder: Callable[..., Path], make_record: Callable[..., Any], processes: int
) -> None:
    """One count of both; the chains of 200 keys in files of 50 are compared last."""
    keys = [encode_properties({"UNIQ_KEY": f"u{number}"}) for number in range(200)]
    records = [make_record(body=b"b" * 300, properties=each) for each in keys]
    root = store_builder(records, segment_bytes=1 << 14)
    (root / "half-made").mkdir()
    with StoreDirectory(root) as opened:
        rebuild_index(opened, root / "index", root / "half-made", Geometry(50, 51), lambda: 0)
        log_bytes = sum(segment.size for segment in opened.segments)
    moved: list[tuple[int, int]] = []
    report = verify_store(
        root,
        index=Geometry(50, 51),
        processes=processes,
        part_bytes=1 << 15,
        progress=lambda *each: moved.append(each),
    )
    assert report.ok
    total = log_bytes + 200 * ITEM.size
    assert {of for _, of in moved} == {total}
    assert moved == sorted(moved) and moved[-1][0] == total
    if processes == 1:  # else parts of both are told of in between
        assert len([done for done, _ in moved if log_bytes <= done < total]) > 2
