"""A listing in parts is that of one walk, whatever the log has and wherever it was cut."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cli.printing.output import json_line
from penstock.cli.printing.records import row
from penstock.cli.store import log_parts
from penstock.cli.store.log_parts import Listing, Selection, Task
from penstock.cli.store.record_parts import Form
from penstock.shared.formats.record import Record, decode_record, encode_record
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_layout import AT_BODY_V4
from penstock.shared.store.directory import StoreDirectory
from tests.wrecks import SEGMENT, WRECKS, wreck

JSON = Form("json", False, "utf-8", False)
# rows, how many records were asked for, and damage
Shown = tuple[list[bytes], int, list[tuple[int, int, str]]]


def _by_one_walk(root: Path, selection: Selection, most: int, ends: bool) -> Shown:
    """Step by step, as nothing here makes rows: what a listing is to give."""
    rows, count, damage = [], 0, []
    with StoreDirectory(root) as store:
        for position, found, size, raw, reason in store.scan_log():
            if found is Kind.DAMAGED:
                damage.append((position, size, reason))
            if found is not Kind.RECORD:
                continue
            record = decode_record(raw)
            if selection.topic not in (None, record.topic):
                continue
            if selection.queue_id not in (None, record.queue_id):
                continue
            if record.queue_offset < selection.first_offset:
                continue
            count += 1
            if count <= most:
                rows.append(f"{json_line(row(record, with_body=False), 'utf-8')}\n".encode())
            if ends and count == most:
                break
    return rows, count, damage


def _in_parts(root: Path, selection: Selection, most: int, ends: bool, processes: int = 1) -> Shown:
    rows, count, damage, left = [], 0, [], most
    with StoreDirectory(root) as store:
        at, end = store.log_start, store.files_end
        task = Task(str(root), at, end, selection, JSON, most, ends)
        with closing(Listing(store, task, processes).parts()) as parts:
            for part in parts:
                # where others are only counted a part does not know how many were before it
                some = bytes(part.rows).splitlines(keepends=True)[:left]
                rows += some
                left -= len(some)
                count += part.count
                damage += part.damage
    return rows, count, damage


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Parts, and windows of the log, of this many bytes."""

    def set_sizes(part_bytes: int, window_bytes: int) -> None:
        monkeypatch.setattr(log_parts, "PART_BYTES", part_bytes)
        monkeypatch.setattr(log_parts, "WINDOW_BYTES", window_bytes)
        monkeypatch.setattr(log_parts, "AHEAD_BYTES", part_bytes)

    return set_sizes


selections = st.sampled_from(
    [
        Selection(),
        Selection("orders"),
        Selection(None, 1),
        Selection("orders", 1, 2),
        Selection("nothing"),
    ]
)


@settings(max_examples=150)
@given(st.data())
def test_whatever_is_damaged_parts_are_one_walk(
    wreckable: Callable[..., Any],
    small_parts: Callable[[int, int], None],
    data: st.DataObject,
) -> None:
    """Flips, zeros, pieces and segments that change places, segments that are gone, too long or too
    short; of all that is listed, or up to a record of it."""
    store = wreckable(Path(tempfile.mkdtemp(prefix="parts-", dir="/dev/shm")))
    starts, log = store.starts(), store.log()
    dice = random.Random(data.draw(st.integers(0, 1 << 32)))
    for _ in range(data.draw(st.integers(0, 4))):
        wreck(data.draw(st.sampled_from(WRECKS)), log, starts, dice)
    store.write_log(log)
    segments = sorted(store.paths.commit_log.iterdir())
    file = dice.choice(segments)
    match data.draw(st.sampled_from(["", "", "", "gone", "long", "short"])):
        case "gone":
            file.unlink()
        case "long":
            file.write_bytes(file.read_bytes() + dice.choice([bytes(300), bytes(log[:300])]))
        case "short":
            file.write_bytes(file.read_bytes()[: dice.randrange(1, SEGMENT)])
    selection = data.draw(selections)
    most, ends = data.draw(
        st.sampled_from([(sys.maxsize, False), (3, False), (1, True), (5, True)])
    )
    expected = _by_one_walk(store.paths.root, selection, most, ends)
    small_parts(
        data.draw(st.sampled_from([300, 700, 1500, SEGMENT, 1 << 20])),
        data.draw(st.sampled_from([300, 600, 2000, 1 << 20])),
    )
    assert _in_parts(store.paths.root, selection, most, ends) == expected
    shutil.rmtree(store.paths.root.parent)


def _with_copies_inside(make_record: Callable[..., Record]) -> tuple[Record, int]:
    """A record whose body has others that name the very places at which they stand, and where the
    first of these is, if it is the second one of a log after `make_record()`."""
    start = len(encode_record(make_record())) + AT_BODY_V4 + 200
    inside = b""
    for number in range(9):
        at = start + len(inside)
        copy = make_record(body=b"i" * 300, physical_offset=at, queue_offset=number + 2)
        inside += encode_record(copy)
    return make_record(body=(bytes(200) + inside).ljust(6000, b"b")), start


@pytest.mark.parametrize("most", [sys.maxsize, 2, 3])
@pytest.mark.parametrize("processes", [1, 3])
def test_records_in_a_body_are_no_rows(
    store_builder: Callable[..., Path],
    make_record: Callable[..., Record],
    small_parts: Callable[[int, int], None],
    monkeypatch: pytest.MonkeyPatch,
    processes: int,
    most: int,
) -> None:
    """The log is cut at some of them, and the part before goes on past these."""
    outer, start = _with_copies_inside(make_record)
    root = store_builder([make_record(), outer, *[make_record()] * 4], segment_bytes=1 << 16)
    small_parts(start - 10, 1 << 20)
    monkeypatch.setattr(log_parts, "ALONE", 0)
    with StoreDirectory(root) as store:
        cuts = [at for at, _ in log_parts.parts_of(store, log_parts.PART_BYTES)]
    assert start in cuts and len(cuts) > 3, "cut inside the record"
    ends = most < sys.maxsize
    expected = _by_one_walk(root, Selection(), most, ends)
    assert len(expected[0]) == min(most, 6)
    assert _in_parts(root, Selection(), most, ends, processes) == expected


def test_a_segment_that_expires_while_it_is_listed_is_left_out(
    store_builder: Callable[..., Path],
    make_record: Callable[..., Record],
    small_parts: Callable[[int, int], None],
) -> None:
    root = store_builder([make_record(body=b"b" * 300)] * 30, segment_bytes=SEGMENT)
    small_parts(1000, 1000)
    with StoreDirectory(root) as store:
        first, second, third = store.segments[:3]
        task = Task(str(root), 0, store.files_end, Selection(), JSON, sys.maxsize, False)
        with closing(Listing(store, task, 1).parts()) as parts:
            shown = [next(parts)]
            first.path.unlink()
            second.path.unlink()
            shown += parts
    with StoreDirectory(root) as store:
        left = _by_one_walk(root, Selection(), sys.maxsize, False)
    rows = b"".join(bytes(part.rows) for part in shown[1:])
    assert rows == b"".join(left[0]) and shown[0].count > 0
    assert [part.end for part in shown if part.count][1] > third.base


def test_a_log_without_a_record_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    assert _in_parts(tmp_path, Selection(), sys.maxsize, False) == ([], 0, [])
    (tmp_path / "commitlog" / "0".zfill(20)).write_bytes(bytes(SEGMENT))
    assert _in_parts(tmp_path, Selection(), sys.maxsize, False) == ([], 0, [])


def test_nothing_is_walked_again_where_parts_end_at_each_other(
    store_builder: Callable[..., Path],
    make_record: Callable[..., Record],
    small_parts: Callable[[int, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = store_builder([make_record(body=b"b" * 300)] * 30, segment_bytes=SEGMENT)
    small_parts(1000, 1000)
    walked, whole = [], log_parts.list_part

    def counted(raw: bytes) -> bytes:
        walked.append(raw)
        return whole(raw)

    monkeypatch.setattr(log_parts, "list_part", counted)
    assert len(_in_parts(root, Selection(), sys.maxsize, False)[0]) == 30
    with StoreDirectory(root) as store:
        assert len(walked) == len(list(log_parts.parts_of(store, 1000))) > 10
