"""What a crash in the middle of a deletion leaves in the list is decided once."""

from __future__ import annotations

from pathlib import Path

from penstock.shared.queue.deleted_topics import (
    DeletedTopics,
    keep_needed,
    load_deleted_topics,
    save_deleted_topics,
    settle_deleted_topics,
    without_deleted,
)
from penstock.shared.queue.known_queues import UNKNOWN, QueueEnd


def test_what_is_settled_stays_so_when_a_topic_of_the_name_is_created_again(tmp_path: Path) -> None:
    file = tmp_path / "deleted-topics.json"
    save_deleted_topics(file, DeletedTopics().with_rows(["gone", "kept"], 1000, 5))
    settled = settle_deleted_topics(file, {"kept"})
    assert settled.ends() == {"gone": 1000}
    assert load_deleted_topics(file) == settled
    assert settle_deleted_topics(file, {"kept", "gone"}) == settled


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
    }
    deleted = DeletedTopics().with_rows(["gone"], 1000, 5)
    assert without_deleted(known, deleted) == known, "it is not done"
    left = {name: end for name, end in known.items() if name not in ("gone/0", "gone/2")}
    assert without_deleted(known, deleted.settled(set())) == left
