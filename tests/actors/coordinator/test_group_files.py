"""When the files of groups are written, and what they are when a disk refuses, without a
coordinator."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.actors.coordinator import group_files
from penstock.actors.coordinator.group_files import SAVE_GROUPS_MS, GroupFiles
from penstock.shared.errors import StoreUnavailable
from penstock.shared.messaging.system_topics import HALF_TOPIC, TRANSACTION_GROUP
from penstock.shared.process.retry import RETRY_MS
from penstock.shared.progress.group_journal import Entry, Head, Row
from penstock.shared.store.transaction_progress import (
    TransactionProgress,
    save_transaction_progress,
)

EVERY_MS = 5000
HEAD = Head((), 9)


def row(offset: int) -> Row:
    return Row("g", "orders", 0, offset, 1, "a")


class Files:
    """The files of one coordinator after another."""

    def __init__(self, broker: Any) -> None:
        self.broker, self.clock, self.paths = broker, broker.clock, broker.paths
        self._stage = broker.stage("coordinator")
        self.it: Any = None
        self.begin()

    def begin(self) -> list[Entry]:
        """Another coordinator: what it finds in the journal."""
        if self.it is not None:
            self.it.close()
        self.it = GroupFiles(self._stage)
        _, found = self.it.load()
        rest = [entry for entry in found if isinstance(entry, Row)]
        self.it.begin(HEAD, rest)
        return rest

    def save(self, offset: int) -> None:
        self.it.save(lambda: {"g": {"orders": {0: offset}}}, HEAD, lambda: [row(offset)])

    def put(self, group: str, awaited: bool = False) -> None:
        self.it.groups.put(group, {}, 1)
        self.it.note_groups(awaited)

    def offsets(self) -> Any:
        return json.loads(self.paths.consumer_offsets.read_bytes())["offsetTable"]

    def groups(self) -> set[str]:
        document = json.loads(self.paths.subscription_groups.read_bytes())
        return set(document["subscriptionGroupTable"])


@pytest.fixture
def files(pipeline: Callable[..., Any]) -> Iterator[Files]:
    made = Files(pipeline(flush_consumer_offset_interval_ms=EVERY_MS))
    yield made
    made.it.close()


def test_offsets_are_saved_a_while_after_the_first_change_however_many_follow_it(
    files: Files,
) -> None:
    for offset in (1, 2, 3):
        files.it.write_down([row(offset)])
        files.clock.advance(EVERY_MS // 3)
        assert not files.it.due()
    files.clock.advance(EVERY_MS - 3 * (EVERY_MS // 3))
    assert files.it.due()
    files.save(3)
    assert files.offsets() == {"orders@g": {"0": 3}} and not files.it.due()


def test_groups_are_saved_a_while_after_the_first_of_them_was_made(files: Files) -> None:
    for group in "ghi":
        files.put(group)
        files.clock.advance(SAVE_GROUPS_MS // 4)
        assert not files.it.due()
    files.clock.advance(SAVE_GROUPS_MS // 4)
    assert files.it.due()
    files.save(0)
    assert files.groups() == {"g", "h", "i"} and not files.it.due()


def test_settings_that_a_caller_waits_for_are_saved_whoever_else_makes_a_group_meanwhile(
    files: Files,
) -> None:
    files.put("g", awaited=True)
    files.put("h")
    files.it.save_awaited()
    assert files.groups() == {"g", "h"}
    files.put("i")
    files.it.save_awaited()
    assert files.groups() == {"g", "h"}, "for this one nobody waits"


def test_what_a_disk_takes_of_a_block_is_taken_back_and_the_whole_is_tried_again_soon(
    files: Files,
) -> None:
    """Nobody would read what comes after a part of a block."""
    before, limits = files.paths.group_journal.stat(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before.st_size + 10, limits[1]))
    try:
        with pytest.raises(StoreUnavailable):
            files.it.write_down([row(1)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert files.paths.group_journal.stat().st_size == before.st_size
    assert files.it.refuses is not None and not files.it.due()
    files.clock.advance(RETRY_MS)
    assert files.it.due()
    files.save(1)
    assert files.it.refuses is None and files.begin() == [row(1)]


def test_a_disk_that_takes_no_file_is_asked_now_and_then_until_the_journal_is_full(
    files: Files, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(group_files, "FULL_JOURNAL_BYTES", 400)
    journal, began_with = files.paths.group_journal, files.paths.group_journal.stat().st_size
    files.paths.consumer_offsets.mkdir(parents=True)
    offset = 0
    while files.it.refuses is None:
        offset += 1
        assert journal.stat().st_size - began_with < 2 * 400
        files.it.write_down([row(offset)])
        files.clock.advance(RETRY_MS - 1)
        assert not files.broker.positions["group_error"] or not files.it.due()
        files.clock.advance(1)
        if files.it.due():
            files.save(offset)
            assert files.broker.positions["group_error"]
    assert capfd.readouterr().err.count("cannot be written") == 1, "it is not said at each try"
    files.paths.consumer_offsets.rmdir()
    files.clock.advance(RETRY_MS)
    assert files.it.due()
    files.save(offset)
    assert files.it.refuses is None and not files.broker.positions["group_error"]
    assert files.offsets() == {"orders@g": {"0": offset}} and files.begin() == [row(offset)]


def test_a_journal_is_replaced_beyond_its_size_and_takes_nothing_from_twice_that_on(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    began_with = files.paths.group_journal.stat().st_size
    files.it.write_down([row(1)])
    grown = files.paths.group_journal.stat().st_size - began_with
    monkeypatch.setattr(group_files, "FULL_JOURNAL_BYTES", grown)
    assert files.it.refuses is None and not files.it.due()
    files.it.write_down([row(1)])
    assert files.it.refuses is not None and files.it.due()
    files.save(1)
    assert files.it.refuses is None and not files.it.due()


@pytest.mark.parametrize("is_another", [False, True], ids=["the same life", "the next one"])
def test_that_the_disk_has_refused_is_told_until_it_takes_what_is_there_and_no_longer(
    files: Files, is_another: bool
) -> None:
    """Whoever asks whether the broker is healthy would be told so for as long as nobody commits."""
    files.paths.subscription_groups.mkdir(parents=True)
    files.put("g", awaited=True)
    with pytest.raises(StoreUnavailable):
        files.it.save_awaited()
    assert files.broker.positions["group_error"]
    files.paths.subscription_groups.rmdir()
    if is_another:
        files.begin()
    else:
        files.put("h", awaited=True)
        files.it.save_awaited()  # before it is time for another try
        assert files.groups() == {"g", "h"} and not files.it.due()
        files.clock.advance(RETRY_MS)
    assert files.it.due()
    files.save(0)
    assert not files.broker.positions["group_error"] and not files.it.due()


def test_how_far_half_messages_were_checked_is_saved_with_the_offsets_and_without_other_changes(
    files: Files,
) -> None:
    def checked(half: int) -> None:
        save_transaction_progress(files.paths.transactions, TransactionProgress(half, 1, 0, 0))

    def saved() -> Any:
        return files.offsets()[f"{HALF_TOPIC}@{TRANSACTION_GROUP}"]

    files.save(0)
    assert not files.paths.consumer_offsets.exists(), "nothing has changed"
    checked(3)
    files.clock.advance(EVERY_MS)
    assert not files.it.due(), "it is seen by now"
    files.clock.advance(EVERY_MS - 1)
    assert not files.it.due()
    files.clock.advance(1)
    assert files.it.due()
    files.save(0)
    assert saved() == {"0": 3}
    checked(4)
    assert not files.it.due()
    files.clock.advance(EVERY_MS)
    assert not files.it.due(), "it is not looked at each time"
    files.clock.advance(EVERY_MS)
    assert files.it.due()
    files.save(0)
    assert saved() == {"0": 4}
    checked(5)
    files.save(0)  # as a coordinator does that stops
    assert saved() == {"0": 5}


def test_a_file_from_before_that_somebody_has_restored_counts_without_the_journal(
    files: Files,
) -> None:
    files.it.write_down([row(1)])
    files.save(1)
    before = files.paths.consumer_offsets.read_bytes()
    assert files.begin() == [row(1)]
    for offset in (2, 3):
        files.it.write_down([row(offset)])
        files.save(offset)
    files.paths.consumer_offsets.write_bytes(before)
    (head,) = GroupFiles(files.broker.stage("coordinator")).load()[1]
    assert isinstance(head, Head) and head.next_epoch == HEAD.next_epoch, "no epoch comes twice"
    assert files.begin() == []
