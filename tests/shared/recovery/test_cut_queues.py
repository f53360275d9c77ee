"""Start-up of consume queues: entries that may have holes after them go, all others stay."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.maintenance.verify.check import verify_store
from penstock.shared.config import Config
from penstock.shared.errors import StoreDamaged
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record import Record
from penstock.shared.layout import segment_name
from penstock.shared.memory.queue_table import QueueKey, QueueTable, create_queue_table
from penstock.shared.queue.deleted_topics import (
    DeletedTopic,
    DeletedTopics,
    save_deleted_topics,
)
from penstock.shared.queue.earlier_entries import load_earlier_entries
from penstock.shared.queue.known_queues import QueueEnd, load_known_queues
from penstock.shared.recovery.cut_queues import forget_topics, recover_queues
from penstock.shared.store.survey import StoreSurvey

SEGMENT = 4096


@pytest.fixture
def table(tmp_path: Path) -> QueueTable:
    create_queue_table(tmp_path / "table", 8)
    return QueueTable(tmp_path / "table", writable=True)


def test_entries_from_the_scan_on_are_cut_and_segments_without_one_go(
    stopped_store: Callable[..., Any], twelve: list[Record], table: QueueTable
) -> None:
    store = stopped_store(twelve, unclean=True, queue_segment_bytes=60)
    *records, end = store.starts()
    config = Config(
        mapped_file_size_commit_log_bytes=SEGMENT, mapped_file_size_consume_queue_bytes=60
    )
    for cut_at in (end, *reversed(records)):
        number = len([start for start in records if start < cut_at])
        counts = {0: (number + 1) // 2, 1: number // 2}
        count = store.recover_queues(cut_at if cut_at < end else None, table, config)
        kept = {queue_id: kept for queue_id, kept in counts.items() if kept}
        found = {table.key(slot): table.max_offset(slot) for slot in range(count)}
        assert found == {QueueKey("orders", queue_id): kept[queue_id] for queue_id in kept}
        for queue_id, expected in counts.items():
            files = sorted(store.paths.queue("orders", queue_id).iterdir())
            assert len(files) == -(-expected // 3)
            raw = b"".join(path.read_bytes() for path in files)
            assert not any(raw[expected * 20 :]) and all(
                any(raw[i * 20 : i * 20 + 20]) for i in range(expected)
            )
        before = store.contents()
        store.recover_queues(cut_at if cut_at < end else None, table, config)
        assert store.contents() == before, "twice changes nothing"
    table.close()


@pytest.mark.parametrize("again", [False, True])
def test_names_that_a_start_has_removed_and_not_synced_are_synced_by_the_next(
    stopped_store: Callable[..., Any],
    twelve: list[Record],
    table: QueueTable,
    monkeypatch: pytest.MonkeyPatch,
    again: bool,
) -> None:
    """Of a queue without a file anybody may have died over it; of others a start that failed."""
    store = stopped_store(twelve, unclean=True)
    for file in store.paths.queue("orders", 1).iterdir():
        file.unlink()
    synced, sync = [], os.fsync

    def note(handle: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")))
        sync(handle)

    monkeypatch.setattr(os, "fsync", note)
    with StoreSurvey(store.paths, store.config) as survey:
        recover_queues(survey, store.starts()[-1], table, again=again)
    names = {path.name for path in synced if path.parent == store.paths.consume_queue / "orders"}
    assert names == ({"0", "1"} if again else {"1"})
    table.close()


@pytest.mark.parametrize("goes_on", [False, True], ids=["whole", "created again, with a message"])
def test_queues_of_a_deleted_topic_are_put_aside_and_every_name_of_that_is_on_disk(
    stopped_store: Callable[..., Any],
    twelve: list[Record],
    monkeypatch: pytest.MonkeyPatch,
    goes_on: bool,
) -> None:
    """What is synced is synced when it is as it stays: of a directory that has the old names, or
    has not the new ones, a power failure may bring the queues back, or lose them."""
    store = stopped_store(twelve, unclean=True)
    topic, aside = store.paths.queue("orders", 0).parent, store.paths.deleted_queues
    end = store.starts()[-2 if goes_on else -1]
    row = DeletedTopic(number=4, topic="orders", log_end=end, at_ms=5, is_done=True)
    save_deleted_topics(store.paths.deleted_topics, DeletedTopics(4, (row,)))
    synced, sync = dict[Path, set[str]](), os.fsync

    def note(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path.is_dir():
            synced[path] = {each.name for each in path.iterdir()}
        sync(handle)

    monkeypatch.setattr(os, "fsync", note)
    with StoreSurvey(store.paths, store.config) as survey:
        assert forget_topics(survey).rows == (row,)
        again = forget_topics(survey)
    assert again.rows == (row,)
    assert {each.name for each in aside.iterdir()} == ({"4-5-0"} if goes_on else {"4-5-0", "4-5-1"})
    assert topic.exists() == goes_on
    for path in (aside, store.paths.consume_queue, *([topic] if goes_on else [])):
        assert synced[path] == {each.name for each in path.iterdir()}, path
    assert aside.name in synced[aside.parent]


@pytest.mark.parametrize("cut_at", [4, 5, 12, None])
def test_what_queues_say_of_records_that_are_cut_from_the_log_is_not_kept(
    stopped_store: Callable[..., Any],
    twelve: list[Record],
    table: QueueTable,
    tmp_path: Path,
    cut_at: int | None,
) -> None:
    """Wherever the queues are cut: those of a damaged store stay up to the log's end."""
    store = stopped_store(twelve, unclean=True)
    starts, keep = store.starts(), tmp_path / "kept"
    # the log ends at the tenth record: two that the queues have are gone
    with StoreSurvey(store.paths, store.config) as survey:
        good_to = None if cut_at is None else starts[cut_at]
        recover_queues(survey, good_to, table, keep=keep, doubted=range(starts[4], starts[9]))
    table.close()
    kept = load_earlier_entries(keep)
    found = [ENTRY.unpack(entry)[0] for queue in kept for entry in _pieces(queue.entries)]
    assert sorted(found) == starts[4:9]
    assert [queue.first for queue in kept] == [2, 2]


def _pieces(raw: bytes) -> list[bytes]:
    return [raw[at : at + ENTRY.size] for at in range(0, len(raw), ENTRY.size)]


def test_when_all_is_dispatched_the_queues_are_only_counted(
    stopped_store: Callable[..., Any], twelve: list[Record], table: QueueTable
) -> None:
    store = stopped_store(twelve, first_offsets={("orders", 1): 7})
    before = store.contents()
    *records, _ = store.starts()
    assert store.recover_queues(None, table) == 2
    assert load_known_queues(store.paths.known_queues) == {
        "orders/0": QueueEnd(6, records[10]),
        "orders/1": QueueEnd(13, records[11]),
    }
    store.paths.known_queues.unlink()
    assert store.contents() == before
    ranges = {table.key(s)[1]: (table.min_offset(s), table.max_offset(s)) for s in (0, 1)}
    assert ranges == {0: (0, 6), 1: (7, 13)}
    table.close()


def test_files_of_a_queue_go_from_the_last_one_back_and_each_is_gone_before_the_next_goes(
    stopped_store: Callable[..., Any],
    twelve: list[Record],
    table: QueueTable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = stopped_store(twelve, unclean=True, queue_segment_bytes=40)
    config = msgspec.structs.replace(store.config, mapped_file_size_consume_queue_bytes=40)
    queue, synced, sync = store.paths.queue("orders", 0), list[list[str]](), os.fsync

    def note(handle: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{handle}")) == queue:
            synced.append(sorted(os.listdir(queue)))
        sync(handle)

    monkeypatch.setattr(os, "fsync", note)
    names = [segment_name(base) for base in (0, 40, 80)]
    store.recover_queues(store.starts()[1], table, config)
    assert synced == [names[:2], names[:1]]
    table.close()


def test_holes_behind_a_power_failure_do_not_count(
    stopped_store: Callable[..., Any], twelve: list[Record], table: QueueTable
) -> None:
    store = stopped_store(twelve, unclean=True)
    records = store.starts()
    (file,) = store.paths.queue("orders", 0).iterdir()
    raw = bytearray(file.read_bytes())
    raw[60:80] = bytes(20)  # entry 3 is missing, 4 and 5 are there
    file.write_bytes(raw)
    store.recover_queues(records[6], table)
    assert table.max_offset(0) == 3
    assert file.read_bytes() == raw[:60] + bytes(len(raw) - 60)
    table.close()


def test_a_queue_segment_of_another_size_is_named(
    stopped_store: Callable[..., Any], twelve: list[Record], table: QueueTable
) -> None:
    store = stopped_store(twelve, queue_segment_bytes=60)
    with pytest.raises(StoreDamaged, match="consumequeue/orders/0"):
        store.recover_queues(None, table)
    table.close()


def test_a_recovered_store_passes_the_checker(
    stopped_store: Callable[..., Any], twelve: list[Record], table: QueueTable
) -> None:
    store = stopped_store(twelve, unclean=True)
    records = store.starts()
    log = store.log()
    log[records[-1] + 50 :] = bytes(len(log) - records[-1] - 50)
    store.write_log(log)
    found = store.recover()
    store.recover_queues(found.queues_good_to, table)
    table.close()
    store.paths.abort.unlink()
    report = verify_store(store.paths.root)
    kinds = {problem.kind for problem in report.problems}
    assert not any(kind.startswith("log") for kind in kinds), kinds


def test_entries_that_were_on_disk_before_the_first_record_of_the_log_are_cut(
    stopped_store: Callable[..., Any], twelve: list[Record], table: QueueTable
) -> None:
    store = stopped_store(twelve, unclean=True)
    store.write_log(bytes(len(store.log())))
    found = store.recover()
    assert found.log_end == 0
    assert store.recover_queues(found.queues_good_to, table) == 0
    table.close()
