"""The checker: healthy stores of every kind pass, and each kind of damage is found and named."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.maintenance.verify.check import verify_store
from penstock.maintenance.verify.report import MAX_LISTED
from penstock.shared.errors import ConfigError
from penstock.shared.files.segments import Problem
from penstock.shared.formats.checkpoint import Checkpoint, encode_checkpoint
from penstock.shared.formats.delay_levels import SCHEDULE_TOPIC
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.formats.record_check import Kind
from penstock.shared.formats.record_crc import Checksum
from penstock.shared.layout import segment_name
from penstock.shared.store.directory import StoreDirectory

Builder = Callable[..., Path]
Maker = Callable[..., Record]
STORED_MS = 1700000001456


@pytest.fixture
def records(make_record: Maker) -> list[Record]:
    """100 records in five queues, with every form that a check treats differently."""
    delayed = encode_properties({"TAGS": "TagA", "DELAY": "3", "REAL_TOPIC": "orders"})
    forms: list[dict[str, Any]] = [
        {"properties": encode_properties({"TAGS": "TagA"})},
        {"queue_id": 1, "properties": encode_properties({"TAGS": "中文标签"})},
        {"topic": SCHEDULE_TOPIC, "queue_id": 2, "properties": delayed},
        {"topic": "%RETRY%" + "g" * 130},
        {"sys_flag": 4, "body": b"prepared"},
        {"sys_flag": 8, "body": b"committed"},
        {"born_host": pack_host("::1", 1), "store_host": pack_host("::2", 2), "queue_id": 5},
    ]
    return [make_record(**forms[number % len(forms)]) for number in range(100)]


def _places(root: Path) -> list[tuple[int, int]]:
    with StoreDirectory(root) as store:
        return [(step[0], step[2]) for step in store.scan_log() if step[1] is Kind.RECORD]


def _patch(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def _log(root: Path, position: int) -> tuple[Path, int]:
    """The file of a log offset and the byte in it."""
    return root / "commitlog" / segment_name(position - position % 4096), position % 4096


def _only(problems: list[Problem], kind: str) -> Problem:
    (found,) = [problem for problem in problems if problem.kind == kind]
    return found


@pytest.mark.parametrize("unclean", [False, True])
def test_a_healthy_store_is_ok_and_counted(
    store_builder: Builder, records: list[Record], unclean: bool
) -> None:
    root = store_builder(records, unclean=unclean)
    report = verify_store(root)
    assert (report.ok, report.problems, report.notes) == (True, [], [])
    assert report.messages == 100
    assert report.bytes == sum(size for _, size in _places(root))
    assert report.clean is not unclean
    assert (report.log_start, report.log_end) == (0, sum(_places(root)[-1]))
    assert report.segments == report.blanks + 1 > 2
    assert [(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in report.queues] == [
        ("%RETRY%" + "g" * 130, 0, 0, 14),
        (SCHEDULE_TOPIC, 2, 0, 14),
        ("orders", 0, 0, 29),
        ("orders", 1, 0, 15),
        ("orders", 5, 0, 14),
    ]
    assert sum(queue.messages for queue in report.queues) == 86  # 14 are prepared


def test_a_store_that_begins_mid_way_is_ok(store_builder: Builder, make_record: Maker) -> None:
    root = store_builder([make_record()] * 90, base=40960, first_offsets={("orders", 0): 77})
    report = verify_store(root)
    assert report.problems == []
    assert (report.log_start, report.queues[0].min_offset) == (40960, 77)


def test_a_store_whose_first_segments_expired_is_ok(
    store_builder: Builder, records: list[Record]
) -> None:
    root = store_builder(records)
    (root / "commitlog" / segment_name(0)).unlink()
    report = verify_store(root)
    assert report.problems == []
    assert report.messages < 100


def test_a_preallocated_segment_at_the_logs_end_is_ok(
    store_builder: Builder, records: list[Record]
) -> None:
    root = store_builder(records)
    end = 4096 * len(list((root / "commitlog").iterdir()))
    (root / "commitlog" / segment_name(end)).write_bytes(bytes(4096))
    assert verify_store(root).problems == []


def test_an_empty_store_is_ok(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    report = verify_store(tmp_path)
    assert (report.ok, report.messages, report.queues) == (True, 0, [])


def test_only_a_log_and_abort_is_ok_with_a_note(
    store_builder: Builder, records: list[Record]
) -> None:
    root = store_builder(records, queues=False, checkpoint=False, unclean=True)
    report = verify_store(root)
    assert report.ok
    assert report.notes == ["86 records not yet dispatched to their queues"]
    assert [queue.max_offset for queue in report.queues] == [14, 14, 29, 15, 14]


def test_a_clean_store_without_queues_is_not(store_builder: Builder, records: list[Record]) -> None:
    report = verify_store(store_builder(records, queues=False))
    assert {problem.kind for problem in report.problems} == {"queue-entries-missing"}
    assert len(report.problems) == 5
    assert not report.log_damaged


def test_a_flipped_bit_is_named_with_file_and_offset(
    store_builder: Builder, records: list[Record]
) -> None:
    root = store_builder(records)
    position, size = _places(root)[40]
    path, at = _log(root, position)
    _patch(path, at + 90, b"\xff")
    report = verify_store(root)
    problem = _only(report.problems, "log-damaged")
    assert (problem.file, problem.offset, problem.position) == (str(path), at, position)
    assert f"{size} bytes" in problem.detail
    assert report.log_damaged and not report.ok
    assert report.messages == 99
    orphan = _only(report.problems, "queue-entry-without-record")
    assert orphan.position == position


def test_without_checksums_a_flipped_bit_in_a_body_goes_unseen(
    store_builder: Builder, records: list[Record]
) -> None:
    root = store_builder(records)
    path, at = _log(root, _places(root)[40][0])
    _patch(path, at + 90, b"\xff")
    assert verify_store(root, checksum=Checksum.NONE).ok


@pytest.mark.parametrize("unclean", [False, True])
def test_a_torn_record_at_the_end_is_damage_only_where_no_crash_explains_it(
    store_builder: Builder, make_record: Maker, unclean: bool
) -> None:
    root = store_builder([make_record()] * 9, unclean=unclean)
    position, size = _places(root)[-1]
    path, at = _log(root, position)
    # the tenth record, cut off after 50 bytes
    whole = path.read_bytes()[at : at + 50]
    _patch(path, at + size, whole[:28] + (position + size).to_bytes(8, "big") + whole[36:])
    report = verify_store(root)
    assert report.torn_tail_bytes == 50
    assert report.messages == 9
    assert report.log_end == position + size
    assert report.ok is unclean
    if unclean:
        assert "torn write" in report.notes[0]
    else:
        problem = _only(report.problems, "log-torn-tail")
        assert (problem.file, problem.offset) == (str(path), at + size)


def test_a_hole_in_the_log_is_damage_even_after_a_crash(
    store_builder: Builder, records: list[Record]
) -> None:
    root = store_builder(records, unclean=True)
    position, size = _places(root)[10]
    path, at = _log(root, position)
    _patch(path, at, bytes(size))
    problem = _only(verify_store(root).problems, "log-damaged")
    assert (problem.file, problem.offset) == (str(path), at)


def test_a_missing_segment_is_damage(store_builder: Builder, records: list[Record]) -> None:
    root = store_builder(records)
    (root / "commitlog" / segment_name(4096)).unlink()
    report = verify_store(root)
    problem = _only(report.problems, "log-segment-gap")
    assert problem.file.endswith(segment_name(8192))
    assert report.log_damaged


def test_a_shortened_segment_is_damage(store_builder: Builder, records: list[Record]) -> None:
    root = store_builder(records)
    path = root / "commitlog" / segment_name(4096)
    path.write_bytes(path.read_bytes()[:3000])
    assert _only(verify_store(root).problems, "log-segment-size").file == str(path)


@pytest.mark.parametrize("where", ["commitlog", "consumequeue/orders/0"])
def test_a_stray_file_is_a_problem_but_no_damage(
    store_builder: Builder, records: list[Record], where: str
) -> None:
    root = store_builder(records)
    (root / where / "note.txt").write_bytes(b"x" * 4096)
    report = verify_store(root)
    assert [problem.kind for problem in report.problems] == ["stray-file"]
    assert report.problems[0].file == str(root / where / "note.txt")
    assert not report.log_damaged


def test_an_empty_file_at_the_logs_end_is_only_noted(
    store_builder: Builder, records: list[Record]
) -> None:
    root = store_builder(records)
    (root / "commitlog" / segment_name(4096 * 99)).touch()
    report = verify_store(root)
    assert report.ok
    assert "RocketMQ deletes it" in report.notes[0]


@pytest.mark.parametrize(
    ("at", "data"),
    [(0, (7).to_bytes(8, "big")), (8, (9).to_bytes(4, "big")), (12, (5).to_bytes(8, "big"))],
    ids=["offset", "size", "tags code"],
)
def test_a_changed_entry_is_named_with_file_and_offset(
    store_builder: Builder, records: list[Record], at: int, data: bytes
) -> None:
    root = store_builder(records)
    path = root / "consumequeue" / "orders" / "0" / segment_name(0)
    _patch(path, 20 * 11 + at, data)
    report = verify_store(root)
    problem = _only(report.problems, "queue-entry-differs")
    assert (problem.file, problem.offset) == (str(path), 220)
    assert "entry 11 of orders/0" in problem.detail
    assert len(report.problems) == 1


def test_a_wrong_due_time_is_found(store_builder: Builder, records: list[Record]) -> None:
    root = store_builder(records)
    path = root / "consumequeue" / SCHEDULE_TOPIC / "2" / segment_name(0)
    _patch(path, 12, (STORED_MS + 2).to_bytes(8, "big"))
    assert _only(verify_store(root).problems, "queue-entry-differs").offset == 0


@pytest.mark.parametrize("unclean", [False, True])
def test_entries_that_lag_behind_are_a_problem_only_in_a_clean_store(
    store_builder: Builder, records: list[Record], unclean: bool
) -> None:
    root = store_builder(records, unclean=unclean)
    path = root / "consumequeue" / "orders" / "0" / segment_name(0)
    _patch(path, 20 * 25, bytes(20 * 4))
    report = verify_store(root)
    if unclean:
        assert report.notes == ["4 records not yet dispatched to their queues"]
        assert report.ok
    else:
        problem = _only(report.problems, "queue-entries-missing")
        assert (problem.file, problem.offset) == (str(path), 500)
        assert "4 records from offset 25" in problem.detail


def test_an_erased_entry_in_the_middle_is_found_after_a_crash_too(
    store_builder: Builder, records: list[Record]
) -> None:
    root = store_builder(records, unclean=True)
    path = root / "consumequeue" / "orders" / "0" / segment_name(0)
    for slot in range(29 - 1):
        before = path.read_bytes()
        _patch(path, 20 * slot, bytes(20))
        report = verify_store(root)
        assert {problem.offset for problem in report.problems} == {20 * slot}
        path.write_bytes(before)


def test_entries_past_the_logs_end_are_a_problem(
    store_builder: Builder, records: list[Record]
) -> None:
    root = store_builder(records)
    path = root / "consumequeue" / "orders" / "0" / segment_name(0)
    _patch(path, 20 * 29, struct.pack(">qiq", 10**6, 99, 0) * 3)
    problem = _only(verify_store(root).problems, "queue-entry-past-log-end")
    assert (problem.file, problem.offset, problem.position) == (str(path), 580, 10**6)
    assert problem.detail.startswith("3 entries")


def test_a_queue_without_any_record_is_a_problem(
    store_builder: Builder, records: list[Record]
) -> None:
    root = store_builder(records)
    directory = root / "consumequeue" / "ghosts" / "0"
    directory.mkdir(parents=True)
    path = directory / segment_name(0)
    path.write_bytes(struct.pack(">qiq", 0, 99, 0).ljust(1000, b"\0"))
    problem = _only(verify_store(root).problems, "queue-entry-without-record")
    assert (problem.file, problem.offset) == (str(path), 0)


def test_an_empty_file_of_zeros_at_a_queues_end_is_a_problem(
    store_builder: Builder, records: list[Record]
) -> None:
    root = store_builder(records)
    path = root / "consumequeue" / "orders" / "0" / segment_name(1000)
    path.write_bytes(bytes(1000))
    problem = _only(verify_store(root).problems, "queue-segment-empty")
    assert (problem.file, problem.offset) == (str(path), 0)


def test_a_queue_offset_out_of_line_is_found(store_builder: Builder, records: list[Record]) -> None:
    root = store_builder(records)
    with StoreDirectory(root) as store:
        (position, _, _) = store.queues()[2].entries(9, 10)[0].tolist()
    path, at = _log(root, position)
    _patch(path, at + 20, (3).to_bytes(8, "big"))
    problems = verify_store(root).problems
    assert position in [problem.position for problem in problems if problem.kind == "queue-offset"]


def test_a_missing_queue_file_is_a_problem(store_builder: Builder, make_record: Maker) -> None:
    root = store_builder([make_record()] * 160)
    (root / "consumequeue" / "orders" / "0" / segment_name(1000)).unlink()
    report = verify_store(root)
    assert [problem.kind for problem in report.problems] == ["queue-segment-gap"]


@pytest.mark.parametrize(("word", "at"), [("physic", 0), ("logics", 8)])
def test_a_checkpoint_ahead_of_the_log_is_a_problem(
    store_builder: Builder, records: list[Record], word: str, at: int
) -> None:
    root = store_builder(records)
    ahead = Checkpoint(**{f"{word}_timestamp_ms": STORED_MS + 100})
    (root / "checkpoint").write_bytes(encode_checkpoint(ahead))
    problem = _only(verify_store(root).problems, "checkpoint-ahead")
    assert (problem.file, problem.offset) == (str(root / "checkpoint"), at)
    assert word in problem.detail


def test_a_checkpoint_of_another_length_is_a_problem(
    store_builder: Builder, records: list[Record]
) -> None:
    root = store_builder(records)
    (root / "checkpoint").write_bytes(bytes(40))
    assert _only(verify_store(root).problems, "checkpoint-size").file == str(root / "checkpoint")


@pytest.mark.parametrize(
    ("header", "offset"),
    [((0, 0, 0, 0, 0, 99), 36), ((0, 0, 0, 0, 5, 2), 32), ((0, 0, 9, 1, 1, 2), 16)]
    + [((0, 0, 0, 0, 1, 1), 32)]
    + [((0, 0, 0, 10**6, 1, 2), 24)],
)
def test_an_index_header_without_sense_is_a_problem(
    store_builder: Builder, records: list[Record], header: tuple[int, ...], offset: int
) -> None:
    root = store_builder(records)
    (root / "index").mkdir()
    path = root / "index" / "20231114221321456"
    path.write_bytes(struct.pack(">qqqqii", *header).ljust(40 + 4 * 10 + 20 * 8, b"\0"))
    problem = _only(verify_store(root).problems, "index-header")
    assert (problem.file, problem.offset) == (str(path), offset)


def test_repeated_unique_keys_and_clocks_that_went_back_are_noted(
    store_builder: Builder, make_record: Maker
) -> None:
    keyed = make_record(properties=encode_properties({"UNIQ_KEY": "0A"}))
    early = make_record(store_timestamp_ms=5)
    report = verify_store(store_builder([keyed, keyed, early, keyed]))
    assert report.ok
    assert report.notes == [
        "1 records have an earlier store time than one before them",
        "2 messages of orders/0 repeat a UNIQ_KEY",
    ]


def test_the_list_of_problems_is_bounded_but_all_are_counted(
    store_builder: Builder, make_record: Maker
) -> None:
    count = MAX_LISTED + 200
    root = store_builder([make_record()] * count, queue_segment_bytes=20 * count)
    path = root / "consumequeue" / "orders" / "0" / segment_name(0)
    path.write_bytes(struct.pack(">qiq", 1, 1, 0) * count)
    report = verify_store(root)
    assert (len(report.problems), report.problem_count) == (MAX_LISTED, count)


def test_progress_ends_with_everything(store_builder: Builder, records: list[Record]) -> None:
    told: list[tuple[int, int]] = []
    verify_store(store_builder(records), progress=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] > 0


def test_a_directory_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="commitlog"):
        verify_store(tmp_path)


@pytest.mark.parametrize("extended", [False, True])
def test_a_tags_code_is_an_extension_address_only_beside_extension_files(
    store_builder: Builder, records: list[Record], extended: bool
) -> None:
    root = store_builder(records)
    if extended:
        (root / "consumequeue_ext").mkdir()
    _patch(root / "consumequeue" / "orders" / "0" / segment_name(0), 12, b"\x80" + bytes(7))
    report = verify_store(root)
    if extended:
        assert report.problems == []
    else:
        found = _only(report.problems, "queue-entry-differs")
        assert (Path(found.file).name, found.offset) == (segment_name(0), 0)


def test_a_log_whose_only_file_ends_with_a_record_is_read_to_there(
    store_builder: Callable[..., Path], make_record: Callable[..., Record]
) -> None:
    root = store_builder([make_record() for _ in range(3)])
    (file,) = (root / "commitlog").iterdir()
    os.truncate(file, 2 * len(encode_record(make_record())))
    report = verify_store(root)
    assert (report.messages, report.log_end) == (2, file.stat().st_size)
