"""What a crash in the middle of a deletion leaves in the list is decided once."""

from __future__ import annotations

from pathlib import Path

from penstock.shared.queue.deleted_topics import (
    DeletedTopics,
    keep_needed,
    load_deleted_topics,
    save_deleted_topics,
    settle_deleted_topics,
)


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
