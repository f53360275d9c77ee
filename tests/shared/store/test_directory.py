"""The read-only view: what it lists, reads and walks, and what it does at the edges."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.shared.errors import ConfigError, OffsetOutOfRange, PenstockError, StoreDamaged
from penstock.shared.formats.record import Record, decode_record, encode_record, pack_host
from penstock.shared.formats.record_check import Kind
from penstock.shared.layout import segment_name
from penstock.shared.log import scan
from penstock.shared.store.directory import StoreDirectory

Builder = Callable[..., Path]
Maker = Callable[..., Record]
RETRY = "%RETRY%" + "g" * 130


@pytest.fixture
def mixed(make_record: Maker) -> list[Record]:
    """Records of every form: IPv6 hosts, version 2, empty bodies, rolled back ones."""
    forms: list[dict[str, Any]] = [
        {},
        {"topic": RETRY, "body": b"retry"},
        {"born_host": pack_host("2001:db8::1", 1), "queue_id": 1},
        {"born_host": pack_host("::1", 9), "store_host": pack_host("::2", 8), "body": b""},
        {"sys_flag": 0xC, "body": b"rolled back"},
        {"body": bytes(range(256)), "sys_flag": 8},
    ]
    return [make_record(**forms[number % len(forms)], flag=number) for number in range(60)]


def _flags(store: StoreDirectory, **options: bool) -> list[int]:
    return [
        decode_record(view).flag
        for _, found, _, view, _ in store.scan_log(**options)
        if found is Kind.RECORD
    ]


def test_a_directory_that_is_no_store_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)):
        StoreDirectory(tmp_path)


def test_the_walk_yields_every_record_once_blanks_between_and_the_end_last(
    store_builder: Builder, mixed: list[Record]
) -> None:
    root = store_builder(mixed)
    with StoreDirectory(root) as store:
        steps = list(store.scan_log())
        assert _flags(store) == list(range(60))
        assert len(store.segments) == 3
    kinds = [found for _, found, _, _, _ in steps]
    assert kinds.count(Kind.BLANK) == len(store.segments) - 1
    assert kinds.count(Kind.END) == 1 and kinds[-1] is Kind.END
    place = 0
    for position, _, size, _, _ in steps:
        assert position == place
        place += size


@pytest.mark.parametrize("window_bytes", [400, 401, 1000, 5000])
def test_a_record_may_cross_windows_or_be_larger_than_one(
    store_builder: Builder,
    mixed: list[Record],
    monkeypatch: pytest.MonkeyPatch,
    window_bytes: int,
) -> None:
    monkeypatch.setattr(scan, "WINDOW_BYTES", window_bytes)
    with StoreDirectory(store_builder(mixed)) as store:
        assert _flags(store) == list(range(60))


def test_a_record_is_read_at_its_offset_and_nowhere_else(
    store_builder: Builder, mixed: list[Record]
) -> None:
    with StoreDirectory(store_builder(mixed)) as store:
        for position, found, size, view, _ in list(store.scan_log()):
            if found is not Kind.RECORD:
                continue
            assert store.record_at(position) == decode_record(view)
            assert store.read_log(position, size) == bytes(view)
            with pytest.raises(StoreDamaged, match="commitlog"):
                store.record_at(position + 1)


@pytest.mark.parametrize(
    ("position", "size"), [(-1, 8), (4096 * 99, 8), (0, 0), (0, 4097), (4090, 8)]
)
def test_a_read_outside_a_segment_is_refused(
    store_builder: Builder, mixed: list[Record], position: int, size: int
) -> None:
    with StoreDirectory(store_builder(mixed)) as store, pytest.raises(OffsetOutOfRange):
        store.read_log(position, size)


def test_queues_have_their_offsets_and_entries(store_builder: Builder, make_record: Maker) -> None:
    """120 entries in files of 50: two borders, and a tail of zeros."""
    records = [make_record(queue_id=number % 2) for number in range(240)]
    with StoreDirectory(store_builder([*records, make_record(topic=RETRY)])) as store:
        queues = store.queues()
        assert [(queue.topic, queue.queue_id) for queue in queues] == [
            (RETRY, 0),
            ("orders", 0),
            ("orders", 1),
        ]
        queue = queues[1]
        assert (queue.min_offset, queue.max_offset, len(queue.segments)) == (0, 120, 3)
        table = queue.entries(45, 105)
        for slot, (position, size) in enumerate(table[["offset", "size"]].tolist(), start=45):
            record = store.record_at(position)
            assert (record.queue_id, record.queue_offset, record.total_size) == (0, slot, size)
        assert len(queue.entries(7, 7)) == 0
        for start, stop in ((-1, 3), (5, 4), (0, 121)):
            with pytest.raises(OffsetOutOfRange):
                queue.entries(start, stop)


@pytest.mark.parametrize("count", [1, 7, 49, 50, 51, 100])
def test_the_last_entry_is_found_wherever_the_file_ends(
    store_builder: Builder, make_record: Maker, count: int
) -> None:
    with StoreDirectory(store_builder([make_record()] * count)) as store:
        (queue,) = store.queues()
        assert (queue.min_offset, queue.max_offset) == (0, count)


@pytest.mark.parametrize("first", [0, 1, 30, 50, 77])
def test_blanks_before_the_first_entry_do_not_count(
    store_builder: Builder, make_record: Maker, first: int
) -> None:
    root = store_builder([make_record()] * 40, first_offsets={("orders", 0): first})
    with StoreDirectory(root) as store:
        (queue,) = store.queues()
        assert (queue.min_offset, queue.max_offset) == (first, first + 40)


def test_entries_of_expired_segments_do_not_count(
    store_builder: Builder, make_record: Maker
) -> None:
    root = store_builder([make_record()] * 200)
    (root / "commitlog" / segment_name(0)).unlink()
    with StoreDirectory(root) as store:
        (queue,) = store.queues()
        first = next(store.scan_log())[3]
        assert queue.min_offset == decode_record(first).queue_offset > 0


def test_directories_that_are_no_queues_are_ignored(
    store_builder: Builder, make_record: Maker
) -> None:
    root = store_builder([make_record()])
    for name in ("orders/x", "orders/01", "a b/0", "orders/-1"):
        (root / "consumequeue" / name).mkdir(parents=True)
    with StoreDirectory(root) as store:
        assert [(queue.topic, queue.queue_id) for queue in store.queues()] == [("orders", 0)]


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("note.txt", b"x", "stray-file"),
        (segment_name(4096 * 40), b"", "empty-segment"),
        (segment_name(4096 * 40), bytes(4096), "log-segment-gap"),
        (segment_name(4096 * 40), bytes(100), "log-segment-size"),
        (segment_name(4096 * 40 + 1), bytes(4096), "log-segment-name"),
    ],
)
def test_a_file_that_does_not_belong_is_a_problem_and_no_error(
    store_builder: Builder, mixed: list[Record], name: str, content: bytes, kind: str
) -> None:
    root = store_builder(mixed)
    path = root / "commitlog" / name
    path.write_bytes(content)
    with StoreDirectory(root) as store:
        assert (kind, str(path)) in [(each.kind, each.file) for each in store.problems]
        of_log = [each for each in store.problems if each.kind.startswith("log-segment")]
        assert all(each.position == int(path.name) for each in of_log)
        assert _flags(store) == list(range(60))


def test_a_link_in_a_segments_place_is_not_followed(
    store_builder: Builder, mixed: list[Record], tmp_path: Path
) -> None:
    root = store_builder(mixed)
    path = root / "commitlog" / segment_name(0)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with StoreDirectory(root) as store:
        assert store.segments[0].base == 4096
        assert [each.kind for each in store.problems] == ["stray-file"]


def test_refresh_shows_what_a_running_store_has_added(
    store_builder: Builder, make_record: Maker
) -> None:
    root = store_builder([make_record()])
    with StoreDirectory(root) as store:
        assert len(list(store.scan_log())) == 2
        size = store.record_at(0).total_size
        with (root / "commitlog" / segment_name(0)).open("r+b") as file:
            file.seek(size)
            file.write(encode_record(make_record(physical_offset=size, queue_offset=1)))
        (root / "commitlog" / segment_name(4096)).write_bytes(bytes(4096))
        store.refresh()
        assert len(store.segments) == 2
        assert len(list(store.scan_log(size))) == 2


def test_a_segment_that_expires_during_the_walk_is_passed_over(
    store_builder: Builder, mixed: list[Record]
) -> None:
    root = store_builder(mixed)
    with StoreDirectory(root) as store:
        (root / "commitlog" / segment_name(0)).unlink()
        flags = _flags(store)
        assert flags == list(range(flags[0], 60))
        with pytest.raises(OffsetOutOfRange, match="(?i)refresh"):
            store.read_log(0, 8)


def test_a_store_without_anything_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    with StoreDirectory(tmp_path) as store:
        assert [step[1] for step in store.scan_log()] == [Kind.END]
        assert store.queues() == []


def test_an_empty_preallocated_segment_does_not_hide_the_end(
    store_builder: Builder, make_record: Maker
) -> None:
    root = store_builder([make_record()] * 3)
    (root / "commitlog" / segment_name(4096)).write_bytes(bytes(4096))
    with StoreDirectory(root) as store:
        steps = list(store.scan_log())
        assert [step[1] for step in steps] == [Kind.RECORD] * 3 + [Kind.END]
        assert store.problems == []


few = settings(
    max_examples=60, suppress_health_check=list(HealthCheck), deadline=None, derandomize=True
)


@few
@given(st.data())
def test_the_walk_goes_on_after_damage_and_loses_only_what_was_touched(
    store_builder: Builder,
    mixed: list[Record],
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    data: st.DataObject,
) -> None:
    root = tmp_path / "store"
    if not root.exists():
        store_builder(mixed)
    with StoreDirectory(root) as store:
        whole = [(step[0], step[2]) for step in store.scan_log() if step[1] is Kind.RECORD]
    last_end = whole[-1][0] + whole[-1][1]
    start = data.draw(st.integers(0, last_end - 1))
    stop = min(start + data.draw(st.integers(1, 900)), last_end, start - start % 4096 + 4096)
    path = root / "commitlog" / segment_name(start - start % 4096)
    before = path.read_bytes()
    junk = data.draw(st.sampled_from([b"\0", b"\xff", b"\xda\xa3\x20\xa7"])) * 900
    with path.open("r+b") as file:
        file.seek(start % 4096)
        file.write(junk[: stop - start])
    try:
        with StoreDirectory(root) as store:
            steps = list(store.scan_log())
    finally:
        path.write_bytes(before)
    survived = {(step[0], step[2]) for step in steps if step[1] is Kind.RECORD}
    untouched = {(at, size) for at, size in whole if at + size <= start or at >= stop}
    assert untouched <= survived <= set(whole)
    place = 0
    for position, _, size, _, _ in steps:  # the steps cover the log without a gap or an overlap
        assert position == place
        place += size


def test_zeros_with_records_behind_them_are_damage_and_not_the_end(
    store_builder: Builder, mixed: list[Record]
) -> None:
    root = store_builder(mixed)
    with StoreDirectory(root) as store:
        (first, second, third) = [step[0] for step in store.scan_log()][:3]
    with (root / "commitlog" / segment_name(0)).open("r+b") as file:
        file.seek(second)
        file.write(bytes(third - second))
    with StoreDirectory(root) as store:
        damage = [step for step in store.scan_log() if step[1] is Kind.DAMAGED]
        assert [(step[0], step[2]) for step in damage] == [(second, third - second)]
        assert first == 0


def test_reading_keeps_few_files_open(store_builder: Builder, make_record: Maker) -> None:
    with StoreDirectory(store_builder([make_record()] * 900)) as store:
        before = len(os.listdir("/proc/self/fd"))
        assert len(store.segments) == 25
        for segment in store.segments:
            store.read_log(segment.base, 8)
        assert len(os.listdir("/proc/self/fd")) <= before + 16
    assert len(os.listdir("/proc/self/fd")) <= before


def test_every_error_of_a_broken_queue_is_typed(store_builder: Builder, make_record: Maker) -> None:
    root = store_builder([make_record()] * 160)
    (root / "consumequeue" / "orders" / "0" / segment_name(1000)).unlink()
    with StoreDirectory(root) as store:
        (queue,) = store.queues()
        found = [(each.kind, each.position) for each in queue.problems]
        assert found == [("queue-segment-gap", None)], "it has no place in the log"
        assert (queue.min_offset, queue.max_offset) == (0, 160)
        with pytest.raises(PenstockError, match="50"):
            queue.entries(0, 160)
        assert np.all(queue.entries(100, 160)["size"] > 0)
