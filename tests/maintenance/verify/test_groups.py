"""The check of groups' files: whole ones pass, broken ones are named, torn ends are of a crash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.maintenance.verify.check import verify_store
from penstock.shared.layout import StorePaths
from penstock.shared.messaging.system_topics import DELETIONS_GROUP, DELETIONS_TOPIC
from penstock.shared.progress.consumer_offsets import ConsumerOffsets
from penstock.shared.progress.group_journal import Head, Row, encode_journal
from penstock.shared.progress.subscription_groups import SubscriptionGroups


@pytest.fixture
def store(store_builder: Callable[..., Path]) -> StorePaths:
    """A store without a message, whose group CG is at offset 0 of a queue."""
    paths = StorePaths(store_builder([]))
    paths.own.mkdir(exist_ok=True)
    paths.topics.parent.mkdir(exist_ok=True)
    offsets, groups = ConsumerOffsets(), SubscriptionGroups()
    offsets.replace({"CG": {"orders": {0: 0}}}, 1)
    groups.put("CG", {}, 1)
    paths.consumer_offsets.write_bytes(offsets.encode())
    paths.subscription_groups.write_bytes(groups.encode())
    journal = encode_journal(Head((offsets.digest,), 2), [Row("CG", "orders", 0, 0, 1, "a")])
    paths.group_journal.write_bytes(journal)
    return paths


def test_whole_files_are_no_problem_and_a_torn_journal_is_of_a_crash(store: StorePaths) -> None:
    report = verify_store(store.root)
    assert report.ok and not any("group" in note for note in report.notes)
    store.group_journal.write_bytes(store.group_journal.read_bytes() + b"\0\0\0\x09torn")
    report = verify_store(store.root)
    assert report.ok and any("of a crash" in note for note in report.notes)


def test_what_cannot_be_read_is_a_problem(store: StorePaths) -> None:
    store.consumer_offsets.write_bytes(b'{"offsetTable": 7}')
    store.subscription_groups.write_bytes(b"{")
    store.delay_offsets.write_bytes(b"{")
    store.group_journal.write_bytes(b"something else")
    found = [(each.kind, Path(each.file).name) for each in verify_store(store.root).problems]
    assert found == [
        ("delay-file", "delayOffset.json"),
        ("group-file", "subscriptionGroup.json"),
        ("group-file", "consumerOffset.json"),
        ("group-journal", "groups"),
    ]


def test_an_offset_past_a_queues_end_is_noted(store: StorePaths) -> None:
    deletions = Row(DELETIONS_GROUP, DELETIONS_TOPIC, 0, 9, 0, "")
    rows = [Row("CG", "orders", 0, 7, 1, "a"), deletions]
    store.group_journal.write_bytes(encode_journal(Head(("x",), 2), rows))
    report = verify_store(store.root)
    assert report.ok
    said = "group CG is at 7 of topic orders, queue 0, which ends at 0"
    assert [note for note in report.notes if note.startswith("group")] == [said]
