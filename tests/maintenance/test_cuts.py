"""Where a log is cut: at records of it, and each place is looked at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.maintenance import cuts
from penstock.maintenance.cuts import between, costs_of, cuts_of, parts_of
from penstock.shared.formats.record import Record
from penstock.shared.formats.record_check import Kind
from penstock.shared.layout import segment_name
from penstock.shared.store.directory import StoreDirectory

Builder = Callable[..., Path]
Maker = Callable[..., Record]
SEGMENT, PART = 1 << 16, 4000


@pytest.fixture
def root(store_builder: Builder, make_record: Maker) -> Path:
    """Three segments, the last one not full."""
    return store_builder([make_record(body=b"b" * 300)] * 400, segment_bytes=SEGMENT)


def _starts(store: StoreDirectory) -> list[int]:
    return [at for at, found, *_ in store.scan_log() if found is Kind.RECORD]


def test_parts_follow_each_other_and_begin_at_records(root: Path) -> None:
    with StoreDirectory(root) as store:
        starts, parts = _starts(store), list(parts_of(store, PART))
        assert len(store.segments) == 3 and len(parts) > 30
        assert [stop for _, stop in parts] == [*(start for start, _ in parts[1:]), store.files_end]
        assert {start for start, _ in parts} <= set(starts)
        # but for the last one of a segment, which may be half as long again
        assert all(stop - start < PART + 500 for start, stop in parts if stop % SEGMENT)


def test_from_a_record_on_the_first_part_begins_there(root: Path) -> None:
    with StoreDirectory(root) as store:
        start = _starts(store)[210]
        parts = list(parts_of(store, PART, start))
        assert parts[0][0] == start and parts[-1][1] == store.files_end
        assert list(cuts_of(store, PART, start)) == [at for at, _ in parts]


def test_of_a_file_that_is_too_long_only_its_own_part_of_the_log_is_cut(root: Path) -> None:
    with (root / "commitlog" / segment_name(0)).open("ab") as file:
        file.write(bytes(SEGMENT))
    with StoreDirectory(root) as store:
        found = list(cuts_of(store, PART))
        assert found == sorted(set(found)) and SEGMENT in found


@pytest.mark.parametrize("part_bytes", [PART, 300, 97])
def test_records_of_the_next_file_behind_a_file_s_own_are_cut_once(
    root: Path, part_bytes: int
) -> None:
    with StoreDirectory(root) as store:
        whole = list(cuts_of(store, part_bytes))
    log = root / "commitlog"
    with (log / segment_name(0)).open("ab") as file:
        file.write((log / segment_name(SEGMENT)).read_bytes())
    with StoreDirectory(root) as store:
        assert list(cuts_of(store, part_bytes)) == whole


def test_what_has_no_record_is_looked_through_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StoreDirectory(root) as store:
        starts = _starts(store)
        whole, low, high = list(cuts_of(store, PART)), starts[20], starts[110]
    with (root / "commitlog" / segment_name(0)).open("r+b") as file:
        file.seek(low)
        file.write(b"x" * (high - low))
    looked, find = [], cuts._record_after

    def counted(*asked: object) -> int | None:
        looked.append(asked[-1])
        return find(*asked)  # type: ignore[arg-type]  # handed on as it came

    monkeypatch.setattr(cuts, "_record_after", counted)
    with StoreDirectory(root) as store:
        found = list(cuts_of(store, PART))
    # of all places between them one led to the first record after the damage
    assert [at for at in found if low <= at <= high] == [high]
    assert set(found) - {high} < set(whole)
    assert len(looked) < len(whole) - (high - low) // PART + 3


def test_a_log_without_a_segment_has_no_parts(store_builder: Builder) -> None:
    with StoreDirectory(store_builder([])) as store:
        assert list(cuts_of(store, PART)) == []
        assert between([]) == [] and costs_of(store, []) == []
    assert between([0, 5, 9]) == [(0, 5), (5, 9), (9, None)]
