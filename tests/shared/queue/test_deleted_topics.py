"""What a crash in the middle of a deletion leaves in the list is decided once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.shared.errors import StoreDamaged
from penstock.shared.formats.record import Record
from penstock.shared.layout import StorePaths
from penstock.shared.queue.deleted_topics import (
    DeletedTopics,
    is_of_deleted,
    keep_needed,
    load_deleted_topics,
    move_queues_away,
    save_deleted_topics,
    settle_deleted_topics,
    without_deleted,
)
from penstock.shared.queue.known_queues import UNKNOWN, QueueEnd
from penstock.shared.store.directory import StoreDirectory


def test_what_is_settled_stays_so_when_a_topic_of_the_name_is_created_again(tmp_path: Path) -> None:
    file = tmp_path / "deleted-topics.json"
    save_deleted_topics(file, DeletedTopics().with_rows(["gone", "kept"], 1000, 5))
    settled = settle_deleted_topics(file, {"kept"})
    assert settled.ends() == {"gone": 1000}
    assert load_deleted_topics(file) == settled
    assert settle_deleted_topics(file, {"kept", "gone"}) == settled


def test_a_list_with_a_bent_digit_is_not_believed_and_one_of_an_older_version_is(
    tmp_path: Path,
) -> None:
    file = tmp_path / "deleted-topics.json"
    deleted = DeletedTopics().with_rows(["gone"], 1000, 5)
    save_deleted_topics(file, deleted)
    raw = file.read_bytes()
    file.write_bytes(raw.replace(b"1000", b"9000"))
    with pytest.raises(StoreDamaged, match="deleted topics cannot be read.*checksum"):
        load_deleted_topics(file)
    file.write_bytes(msgspec.json.encode(deleted))
    assert load_deleted_topics(file) == deleted


def test_a_row_goes_when_the_log_begins_at_its_end_and_ends_where_the_log_does() -> None:
    deleted = DeletedTopics().with_rows(["gone"], 1000, 5)
    assert deleted.within(1000, 5000) == DeletedTopics(1)
    assert deleted.within(999, 5000) == deleted
    (row,) = deleted.within(0, 700).rows
    assert row.log_end == 700


def test_what_the_log_needs_no_more_is_taken_off_the_list_and_else_nothing_is_written(
    tmp_path: Path,
) -> None:
    file = tmp_path / "deleted-topics.json"
    deleted = DeletedTopics().with_rows(["gone"], 1000, 5)
    assert keep_needed(file, deleted, 999, 5000) == deleted
    assert not file.exists()
    assert keep_needed(file, deleted, 1000, 5000) == DeletedTopics(1)
    assert load_deleted_topics(file) == DeletedTopics(1)


def test_deletions_are_counted_on_and_of_a_topic_the_last_one_stays() -> None:
    first = DeletedTopics().with_rows(["a", "b"], 1000, 5)
    assert [(row.number, row.topic, row.log_end, row.at_ms) for row in first.rows] == [
        (1, "a", 1000, 5),
        (2, "b", 1000, 5),
    ]
    second = first.with_rows(["c", "a"], 2000, 6)
    assert second.last == 4
    assert [(row.number, row.topic, row.log_end, row.at_ms) for row in second.rows] == [
        (2, "b", 1000, 5),
        (3, "c", 2000, 6),
        (4, "a", 2000, 6),
    ]
    done = second.settled({"b"})
    assert second.ends() == {}, "none is done"
    assert done.ends() == {"c": 2000, "a": 2000}
    assert done.ends(3) == {"a": 2000}


def test_what_is_known_of_queues_of_deleted_topics_is_that_of_new_ones_alone() -> None:
    known = {
        "gone/0": QueueEnd(5, 999),
        "gone/1": QueueEnd(5, 1000),
        "gone/2": QueueEnd(5, 0),
        "gone/3": QueueEnd(5, UNKNOWN),
        "other/0": QueueEnd(5, 1),
        "other/1": QueueEnd(1, 0),
    }
    deleted = DeletedTopics().with_rows(["gone"], 1000, 5)
    assert without_deleted(known, deleted) == known, "it is not done"
    left = {name: end for name, end in known.items() if name not in ("gone/0", "gone/2")}
    assert without_deleted(known, deleted.settled(set())) == left


@pytest.mark.parametrize("has_queues", [True, False])
def test_queues_of_a_deleted_topic_go_out_of_the_way_and_both_names_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_queues: bool
) -> None:
    paths, (row,) = StorePaths(tmp_path), DeletedTopics(6).with_rows(["gone"], 1000, 5).rows
    paths.queue("kept", 0).mkdir(parents=True)
    if has_queues:
        paths.queue("gone", 3).mkdir(parents=True)
    synced, sync = dict[Path, set[str]](), os.fsync

    def note(handle: int) -> None:
        place = Path(os.readlink(f"/proc/self/fd/{handle}"))
        synced[place] = {each.name for each in place.iterdir()}
        sync(handle)

    monkeypatch.setattr(os, "fsync", note)
    for _ in range(2):  # done again it changes nothing
        move_queues_away(paths, row)
        assert synced[paths.consume_queue] == {"kept"}
        order = list(synced)
        # else a power failure could leave them in neither
        assert order.index(paths.deleted_queues) < order.index(paths.consume_queue)
        assert synced[paths.deleted_queues] == ({"7-5"} if has_queues else set())
    if has_queues:
        assert [each.name for each in (paths.deleted_queues / "7-5").iterdir()] == ["3"]


@pytest.mark.parametrize("queue_segment_bytes", [20, 40, 1000])
def test_a_queue_is_a_deleted_topic_s_where_its_last_message_was_stored_before_the_end(
    stopped_store: Callable[..., Any], twelve: list[Record], queue_segment_bytes: int
) -> None:
    store = stopped_store(twelve, queue_segment_bytes=queue_segment_bytes)
    starts = store.starts()
    with StoreDirectory(store.paths.root) as directory:
        first, second = directory.queues()
        for log_end in (0, starts[9], starts[10], starts[10] + 1, starts[11], starts[11] + 1):
            assert is_of_deleted(first, {"orders": log_end}) == (log_end > starts[10])
            assert is_of_deleted(second, {"orders": log_end}) == (log_end > starts[11])
        assert not is_of_deleted(first, {"others": 1 << 40})
        for each in first.directory.iterdir():
            each.write_bytes(bytes(queue_segment_bytes))
        (empty, _) = directory.queues()
        assert not is_of_deleted(empty, {"orders": 1 << 40}), "it has no message"


def test_of_a_queue_that_cannot_be_read_nobody_says_that_it_is_a_deleted_topic_s(
    stopped_store: Callable[..., Any], twelve: list[Record]
) -> None:
    store = stopped_store(twelve)
    with StoreDirectory(store.paths.root) as directory:
        first, _ = directory.queues()
        (file,) = first.directory.iterdir()
        assert first.max_offset > 0
        os.truncate(file, 0)
        assert not is_of_deleted(first, {"orders": 1 << 40})


def test_where_nothing_was_deleted_there_is_no_list(tmp_path: Path) -> None:
    assert load_deleted_topics(tmp_path / "deleted-topics.json") == DeletedTopics()
