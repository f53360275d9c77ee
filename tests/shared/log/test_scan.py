"""What a walk over damage costs: reads do not grow with the number of damaged places."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.maintenance.repair import plan_repair
from penstock.shared.files.file_cache import FileCache
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_crc import Checksum
from penstock.shared.formats.record_layout import BLANK, MAGIC_BLANK
from penstock.shared.layout import segment_name
from penstock.shared.log import scan
from penstock.shared.store.directory import StoreDirectory

COUNT = 2000
SEGMENT = 1 << 20


@pytest.fixture
def damaged(
    store_builder: Callable[..., Path], make_record: Callable[..., Record]
) -> Callable[[int, int], Path]:
    """A store of 2000 records, of which every `step`th has a byte changed at `index` in it."""

    def make(step: int, index: int) -> Path:
        root = store_builder(
            [make_record(body=bytes([n % 251]) * 200) for n in range(COUNT)], segment_bytes=SEGMENT
        )
        with StoreDirectory(root) as store:
            starts = [at for at, found, _, _, _ in store.scan_log() if found is Kind.RECORD]
        assert len(starts) == COUNT
        with (root / "commitlog" / segment_name(0)).open("r+b") as file:
            for at in starts[::step]:
                file.seek(at + index)
                byte = file.read(1)[0]
                file.seek(at + index)
                file.write(bytes([byte ^ 1]))
        return root

    return make


@pytest.mark.parametrize("index", [5, 29, 100], ids=["magic", "own offset", "body"])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_log_that_is_damaged_all_over_is_read_a_few_times_at_most(
    damaged: Callable[[int, int], Path],
    monkeypatch: pytest.MonkeyPatch,
    step: int,
    index: int,
) -> None:
    root = damaged(step, index)
    reads = 0
    read = FileCache.read

    def counted(files: FileCache, path: Path, offset: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        return read(files, path, offset, size)

    monkeypatch.setattr(FileCache, "read", counted)
    with StoreDirectory(root) as store:
        steps = list(store.scan_log())
        assert store.bytes_read <= 6 * SEGMENT and reads < 20
    found = [each for _, each, _, _, _ in steps]
    assert found.count(Kind.RECORD) == COUNT - len(range(0, COUNT, step))
    assert found.count(Kind.DAMAGED) == (1 if step == 1 else len(range(0, COUNT, step)))


def test_records_without_a_checksum_of_their_own_are_read_once(
    damaged: Callable[[int, int], Path],
) -> None:
    with StoreDirectory(damaged(COUNT, 5)) as store:
        steps = list(store.scan_log(checksum=Checksum.RECORD))
        assert store.bytes_read <= 3 * SEGMENT
    assert [each for _, each, _, _, _ in steps].count(Kind.RECORD) == COUNT - 1


@pytest.mark.parametrize("window_bytes", [300, 1000, 4096])
def test_small_windows_find_the_same_damage(
    damaged: Callable[[int, int], Path], monkeypatch: pytest.MonkeyPatch, window_bytes: int
) -> None:
    def seen() -> list[tuple[Any, ...]]:
        with StoreDirectory(root) as store:
            return [(*each[:3], bytes(each[3]), each[4]) for each in store.scan_log()]

    root = damaged(3, 100)
    whole = seen()
    monkeypatch.setattr(scan, "WINDOW_BYTES", window_bytes)
    monkeypatch.setattr(scan, "_SHORT_STRIDE", 64)
    assert seen() == whole


def test_what_is_written_while_a_window_is_looked_at_is_no_damage(
    damaged: Callable[[int, int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer puts the first byte of a record last: between the first look and the second."""
    root = damaged(2, 100)
    with StoreDirectory(root) as store:
        whole = [(at, size) for at, found, size, _, _ in store.scan_log() if found is Kind.RECORD]
    path = root / "commitlog" / segment_name(0)
    at = whole[3][0]
    raw = path.read_bytes()[at : at + 8]
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), bytes(8), at)
    read, windows = FileCache.read, 0

    def late(files: FileCache, file: Path, offset: int, size: int) -> bytes:
        nonlocal windows
        windows += size > 4096
        if windows == 2:
            with path.open("r+b") as writing:
                os.pwrite(writing.fileno(), raw, at)
        return read(files, file, offset, size)

    monkeypatch.setattr(FileCache, "read", late)
    with StoreDirectory(root) as store:
        seen = [(at, size) for at, found, size, _, _ in store.scan_log() if found is Kind.RECORD]
    assert windows >= 2 and seen == whole


def test_a_repair_of_damage_all_over_is_planned_by_one_pass(
    damaged: Callable[[int, int], Path], make_config: Callable[..., Any]
) -> None:
    root = damaged(2, 100)
    config = make_config(mapped_file_size_commit_log_bytes=SEGMENT)
    with StoreDirectory(root) as store:
        plan = plan_repair(store.paths, config)
    assert len(plan.ranges) == COUNT // 2
    assert [lost.queue_offset for each in plan.ranges for lost in each.lost] == list(
        range(0, COUNT, 2)
    )


@pytest.mark.parametrize("left", [8, 9, 16])
def test_a_blank_of_the_last_bytes_of_a_segment_is_a_blank(
    store_builder: Callable[..., Path], make_record: Callable[..., Record], left: int
) -> None:
    """Its header is eight bytes, so it may be all that fits."""
    shorter = len(encode_record(make_record(body=b"")))
    first = make_record(body=bytes(4096 - left - shorter))
    root = store_builder([first, make_record(body=b"x" * 300)], segment_bytes=4096)
    with StoreDirectory(root) as store:
        steps = [(at, found, size) for at, found, size, _, _ in store.scan_log()]
    assert steps[:3] == [
        (0, Kind.RECORD, 4096 - left),
        (4096 - left, Kind.BLANK, left),
        (4096, Kind.RECORD, shorter + 300),
    ]


@pytest.mark.parametrize("junk", [1, 2, 3, 91])
def test_a_record_is_found_next_to_damage_of_any_length(
    tmp_path: Path, make_record: Callable[..., Record], junk: int
) -> None:
    first = encode_record(make_record())
    at = len(first) + junk
    second = encode_record(make_record(queue_offset=1, physical_offset=at))
    log = tmp_path / "commitlog"
    log.mkdir()
    (log / segment_name(0)).write_bytes((first + b"\x7f" * junk + second).ljust(SEGMENT, b"\0"))
    with StoreDirectory(tmp_path) as store:
        steps = [(at, found, size) for at, found, size, _, _ in store.scan_log()]
    assert steps[:3] == [
        (0, Kind.RECORD, len(first)),
        (len(first), Kind.DAMAGED, junk),
        (at, Kind.RECORD, len(second)),
    ]


def test_a_record_up_to_its_segment_s_end_is_found_next_to_damage(
    tmp_path: Path, make_record: Callable[..., Record]
) -> None:
    first = encode_record(make_record())
    at = len(first) + 10
    left = SEGMENT - at
    empty = len(encode_record(make_record(body=b"")))
    last = make_record(body=bytes(left - empty), queue_offset=1, physical_offset=at)
    log = tmp_path / "commitlog"
    log.mkdir()
    (log / segment_name(0)).write_bytes(first + b"\x7f" * 10 + encode_record(last))
    with StoreDirectory(tmp_path) as store:
        steps = [(at, found, size) for at, found, size, _, _ in store.scan_log()]
    assert steps == [
        (0, Kind.RECORD, len(first)),
        (len(first), Kind.DAMAGED, 10),
        (at, Kind.RECORD, left),
        (SEGMENT, Kind.END, 0),
    ]


@pytest.mark.parametrize("off", [0, -1, 1])
def test_a_walk_over_damage_goes_on_at_a_blank_that_ends_where_its_segment_does(
    tmp_path: Path, make_record: Callable[..., Record], off: int
) -> None:
    """Nothing else tells it from bytes of a body."""
    first = encode_record(make_record())
    at = len(first) + 60
    left = SEGMENT - at
    blank = BLANK.pack(left + off, MAGIC_BLANK)
    (log := tmp_path / "commitlog").mkdir()
    (log / segment_name(0)).write_bytes((first + b"\x7f" * 60 + blank).ljust(SEGMENT, b"\0"))
    with StoreDirectory(tmp_path) as store:
        steps = [(at, found, size) for at, found, size, _, _ in store.scan_log()]
    if off:
        assert steps[1] == (len(first), Kind.DAMAGED, 60 + len(blank))
    else:
        assert steps[1:3] == [(len(first), Kind.DAMAGED, 60), (at, Kind.BLANK, left)]


def test_zeros_over_a_border_of_segments_are_damage_where_records_follow(
    store_builder: Callable[..., Path], make_record: Callable[..., Record]
) -> None:
    """Only a later segment without any record says that a log ends at zeros."""
    root = store_builder([make_record(body=bytes([n]) * 1000) for n in range(1, 7)])
    with StoreDirectory(root) as store:
        starts = [at for at, found, _, _, _ in store.scan_log() if found is Kind.RECORD]
    first, second = (root / "commitlog" / segment_name(at) for at in (0, 4096))
    os.truncate(first, starts[2])
    os.truncate(first, 4096)
    second.write_bytes(bytes(8) + second.read_bytes()[8:])
    with StoreDirectory(root) as store:
        seen = [at for at, found, _, _, _ in store.scan_log() if found is Kind.RECORD]
    assert seen == [at for at in starts if at < starts[2] or at > 4096]
    second.write_bytes(bytes(4096))
    with StoreDirectory(root) as store:
        steps = [(at, found) for at, found, _, _, _ in store.scan_log()]
    assert steps == [(at, Kind.RECORD) for at in starts[:2]] + [(starts[2], Kind.END)]


def test_between_what_was_written_holes_are_not_read_but_for_the_rest_of_a_window(
    tmp_path: Path, make_record: Callable[..., Record]
) -> None:
    """What is read of a page makes all of it count as data, and a segment may be a gigabyte."""
    mib, window = 1 << 20, scan.WINDOW_BYTES
    first = encode_record(make_record())
    islands = [at * mib for at in (30, 60, 90, 126)]
    (log := tmp_path / "commitlog").mkdir()
    with (log / segment_name(0)).open("wb") as file:
        file.truncate(128 * mib)
        file.write(first + b"\x7f" * 100)
        for at in islands:
            file.seek(at)
            file.write(b"\x7f" * 4096)
    with StoreDirectory(tmp_path) as store:
        steps = [(at, found) for at, found, _, _, _ in store.scan_log()]
        rests = sum(window - at % window for at in islands)
        # the first window, and a look for the end of what was written
        assert store.bytes_read <= rests + 3 * window
    end = islands[-1] + 4096
    assert steps == [(0, Kind.RECORD), (len(first), Kind.DAMAGED), (end, Kind.END)]
