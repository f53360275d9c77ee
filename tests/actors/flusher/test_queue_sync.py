"""Queues are synced as they grow: every file, every name, and no more than that."""

from __future__ import annotations

import os
import random
import shutil

import pytest

from penstock.actors.flusher import queue_sync
from penstock.actors.flusher.queue_sync import ConsumeQueueSync
from penstock.shared.formats.checkpoint import Checkpoint, encode_checkpoint
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.layout import PAGE_BYTES, segment_name
from penstock.shared.loops.active import QueueNumbers
from penstock.shared.loops.forms import rows_of
from penstock.shared.memory.queue_table import QueueKey
from penstock.shared.queue.known_queues import (
    QueueEnd,
    load_known_queues,
)
from penstock.shared.queue.windows import QueueWindows
from tests.actors.flusher.conftest import Queues, entries, entry


def complete(sync: ConsumeQueueSync, least_pages: int) -> bool:
    """Run all steps; whether everything is on disk."""
    steps = sync.sync(least_pages)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bool(end.value)


def test_what_has_grown_is_synced_and_nothing_else(queues: Queues, synced: list[str]) -> None:
    queues.put(0, 0, 10)
    queues.put(1, 0, 500)
    assert complete(queues.sync, 0)
    assert synced == ["0/0", "1/0", "1/8000"]
    synced.clear()
    assert complete(queues.sync, 0) and synced == []
    queues.put(0, 10, 11)
    assert complete(queues.sync, 0) and synced == ["0/0"]


def test_a_little_growth_waits_for_more_and_is_said_to_be_missing(
    queues: Queues, synced: list[str]
) -> None:
    queues.put(0, 0, 300)
    assert not complete(queues.sync, 2) and synced == []
    queues.put(0, 300, 420)
    assert complete(queues.sync, 2)
    assert synced == ["0/0", "0/8000"]


def test_a_queue_that_was_just_added_hides_none_that_has_grown(
    queues: Queues, synced: list[str]
) -> None:
    queues.table.add(0, QueueKey("t", 0), 5, 5)
    queues.positions.initialise("queue_count", 1)
    queues.numbers.number(b"t", 0)
    queues.put(1, 0, 10)
    assert complete(queues.sync, 0)
    assert synced == ["1/0"]


@pytest.mark.parametrize("has_expired", [False, True])
def test_a_file_that_is_gone_is_no_failed_sync_if_it_has_expired(
    queues: Queues, synced: list[str], has_expired: bool
) -> None:
    queues.put(0, 0, 500)
    steps = queues.sync.sync(0)
    while "0/0" not in synced:
        next(steps)  # both are open by now, unless somebody closes them
    queues.sync._files.close()
    queues.paths.queue("t", 0).joinpath(segment_name(8000)).unlink()
    if has_expired:
        queues.table.publish_min_offset(0, 800)
        list(steps)
        assert synced == ["0/0"]
    else:
        with pytest.raises(FileNotFoundError):
            list(steps)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_directory_that_is_gone_is_no_failed_sync_if_its_topic_was_deleted(
    queues: Queues, synced: list[str], is_deleted: bool
) -> None:
    queues.put(0, 0, 10)
    steps = queues.sync.sync(0)
    while "0/0" not in synced:
        next(steps)
    shutil.rmtree(queues.paths.queue("t", 0).parent)
    if is_deleted:
        queues.table.mark_deleted(0)
        list(steps)
    else:
        with pytest.raises(FileNotFoundError):
            list(steps)


def test_every_segment_the_growth_touches_is_synced(queues: Queues, synced: list[str]) -> None:
    queues.put(0, 0, 10)
    complete(queues.sync, 0)
    synced.clear()
    queues.put(0, 10, 1300)
    assert complete(queues.sync, 0)
    assert synced == ["0/0", "0/8000", "0/16000", "0/24000"]


def test_a_successor_syncs_what_its_predecessor_may_not_have(
    queues: Queues, synced: list[str]
) -> None:
    queues.put(0, 0, 500)
    complete(queues.sync, 0)
    synced.clear()
    successor = queues.flusher()
    assert complete(successor, 0)
    assert "0/8000" in synced
    successor.close()


@pytest.mark.parametrize(
    ("confirmed", "count", "expected"),
    [
        (None, 1300, ["0/0", "0/8000", "0/16000", "0/24000"]),
        (450, 1300, ["0/8000", "0/16000", "0/24000"]),
        (450, 1201, ["0/8000", "0/16000", "0/24000"]),
        (1299, 1300, ["0/24000"]),
    ],
)
def test_a_successor_syncs_all_that_the_checkpoint_does_not_vouch_for(
    queues: Queues, synced: list[str], confirmed: int | None, count: int, expected: list[str]
) -> None:
    """Its predecessor may have died with more than a segment to sync."""
    if confirmed is not None:
        offset = int.from_bytes(entry(confirmed)[:8], "big")
        page = encode_checkpoint(Checkpoint(confirm_offset=offset))
        queues.paths.checkpoint.write_bytes(page)
    queues.put(0, 0, count)
    paths = sorted(queues.paths.queue("t", 0).iterdir())
    before = [path.read_bytes() for path in paths]
    for path in paths:
        os.utime(path, (0, 0))
    successor = queues.flusher()
    complete(successor, 1 << 20)  # not enough to sync yet: it stays in doubt
    assert synced == []
    assert complete(successor, 0)
    assert synced == expected
    # of a sync that failed the kernel tells once: only what is written again fails again
    again = [path.stat().st_mtime > 0 for path in paths]
    assert again == [newest > (confirmed or 0) for newest in (399, 799, 1199, count - 1)]
    assert [path.read_bytes() for path in paths] == before
    successor.close()


def test_a_queue_that_no_predecessor_knew_is_not_written_again(
    queues: Queues, synced: list[str]
) -> None:
    """Nobody has synced it before, so no failure can have been told of."""
    queues.put(0, 0, 10)
    (path,) = queues.paths.queue("t", 0).iterdir()
    os.utime(path, (0, 0))
    assert complete(queues.sync, 0) and synced == ["0/0"]
    assert path.stat().st_mtime == 0


def test_a_queue_whose_first_segment_is_not_there_yet_is_left_out(queues: Queues) -> None:
    """The reput counts a queue before it writes to it."""
    queues.table.add(0, QueueKey("t", 0), 7, 7)
    queues.numbers.number(b"t", 0)
    queues.positions.initialise("queue_count", 1)
    assert complete(queues.sync, 0)
    queues.put(0, 7, 8)
    assert complete(queues.sync, 0)


def test_names_are_synced_before_a_round_is_complete_and_those_above_once(
    queues: Queues, synced: list[str], directories: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever makes a queue's file and its directories does not sync their names."""
    monkeypatch.setattr(queue_sync, "QUEUES_AT_ONCE", 3)
    for slot in range(5):
        queues.put(slot, 0, 10)
    assert directories == []
    assert complete(queues.sync, 0)
    assert directories == ["0", "1", "2", "t", "consumequeue", "3", "4", "t"]
    directories.clear()
    queues.put(0, 10, 20)
    assert complete(queues.sync, 0) and directories == []
    queues.put(0, 20, 401)
    assert directories == ["0"], "before there is a second file"
    assert complete(queues.sync, 0) and directories == ["0", "0", "t"]
    assert synced[-2:] == ["0/0", "0/8000"]
    assert load_known_queues(queues.paths.known_queues).keys() == {f"t/{slot}" for slot in range(5)}


def test_the_names_of_a_topic_that_was_made_again_are_synced_again(
    queues: Queues, directories: list[str]
) -> None:
    """Its directory is another one of the same name, which the reput has made and not synced."""
    queues.put(0, 0, 10)
    assert complete(queues.sync, 0)
    queues.table.mark_deleted(0)
    queues.positions.initialise("deleted_queues", 1)
    queues.windows.close()
    shutil.rmtree(queues.paths.queue("t", 0).parent)
    queues.table.add(1, QueueKey("t", 0), 0, 0)
    queues.positions.initialise("queue_count", 2)
    queues.numbers = QueueNumbers([(b"", 0), (b"t", 0)])
    queues.windows = QueueWindows(queues.paths, queues.config, queues.numbers)
    rows = rows_of(1, 0, entries(0, 10))
    queues.windows.put(rows)
    queues.table.move_max_offsets(rows)
    directories.clear()
    assert complete(queues.sync, 0)
    assert directories == ["0", "t", "consumequeue"]


def test_a_queue_is_known_when_its_names_are_on_disk_and_not_before(
    queues: Queues, directories: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is known and not there makes a start dispatch the whole log again."""
    queues.put(0, 0, 10)
    steps = queues.sync.sync(0)
    while "consumequeue" not in directories:
        assert load_known_queues(queues.paths.known_queues) == {}
        next(steps)
    assert load_known_queues(queues.paths.known_queues) == {}
    with pytest.raises(StopIteration):
        while True:
            next(steps)
    assert load_known_queues(queues.paths.known_queues).keys() == {"t/0"}


def test_a_queue_that_begins_in_the_middle_of_a_file_is_named_however_late_it_is_due(
    queues: Queues, synced: list[str], directories: list[str]
) -> None:
    queues.put(0, 7, 8)
    assert not complete(queues.sync, 2) and directories == []
    assert complete(queues.sync, 0)
    assert synced == ["0/0"] and directories == ["0", "t", "consumequeue"]


def test_a_round_that_was_given_up_is_done_again_as_a_whole(
    queues: Queues, synced: list[str], directories: list[str]
) -> None:
    for slot in range(3):
        queues.put(slot, 0, 10)
    steps = queues.sync.sync(0)
    while "0" not in directories:
        next(steps)
    steps.close()
    synced.clear()
    directories.clear()
    assert complete(queues.sync, 0)
    assert synced == ["0/0", "1/0", "2/0"]
    assert directories == ["0", "1", "2", "t", "consumequeue"]


def test_a_look_at_queues_that_grow_finds_what_a_plain_count_does(
    queues: Queues, synced: list[str]
) -> None:
    """Most looks pass over most queues; none is passed over that has grown by enough."""
    chance, ends, done = random.Random(7), [0] * 6, [0] * 6
    for slot in range(6):
        queues.put(slot, 0, 1)
        ends[slot] = 1
    for step in range(120):
        for slot in chance.sample(range(6), 3):
            more = chance.choice((1, 30, 150, 300))
            queues.put(slot, ends[slot], ends[slot] + more)
            ends[slot] += more
        least = chance.choice((0, 2, 2, 2, 3))
        both = zip(ends, done, strict=True)
        pages = [end * 20 // 4096 - before * 20 // 4096 for end, before in both]
        wanted = {slot for slot in range(6) if ends[slot] > done[slot] and pages[slot] >= least}
        synced.clear()
        is_all = complete(queues.sync, least)
        assert {int(path.partition("/")[0]) for path in synced} == wanted, step
        for slot in wanted:
            done[slot] = ends[slot]
        assert is_all == (done == ends)


def test_queues_of_a_deleted_topic_hold_up_no_round(queues: Queues, synced: list[str]) -> None:
    queues.put(0, 0, 3)
    queues.put(1, 0, 3)
    assert complete(queues.sync, 0)
    queues.put(0, 3, 5)
    assert not complete(queues.sync, 2)
    queues.table.mark_deleted(0)
    queues.positions.initialise("deleted_queues", 1)
    assert complete(queues.sync, 2)


def test_a_queue_whose_entries_have_all_expired_holds_up_no_round(queues: Queues) -> None:
    queues.table.add(0, QueueKey("t", 0), 7, 7)
    queues.positions.initialise("queue_count", 1)
    assert [complete(queues.sync, 2) for _ in range(3)] == [True] * 3


def test_the_list_has_where_each_queue_ends_and_is_written_only_when_that_changes(
    queues: Queues,
) -> None:
    """By the entry that a queue ends with a start tells whether its last file is there."""
    for stop in (1, 399, 400, 401):
        queues.put(0, max(queues.table.max_offset(0), 0), stop)
        assert complete(queues.sync, 0)
        ends = load_known_queues(queues.paths.known_queues)
        assert ends == {"t/0": QueueEnd(stop, (stop - 1) * 1000)}
    queues.sync.watermark = 7
    assert complete(queues.sync, 0)
    os.utime(queues.paths.known_queues, ns=(1, 1))
    assert complete(queues.sync, 0)
    assert queues.paths.known_queues.stat().st_mtime_ns == 1, "nothing is written for nothing"
    queues.sync.watermark = 8
    assert complete(queues.sync, 0)
    assert queues.paths.known_queues.stat().st_mtime_ns > 1


def test_a_queue_that_ended_just_below_a_page_is_synced_with_its_next_entry(
    queues: Queues, synced: list[str]
) -> None:
    last = PAGE_BYTES // ENTRY.size
    queues.put(0, 0, last)
    assert complete(queues.sync, 0)
    assert complete(queues.sync, 1)
    synced.clear()
    queues.put(0, last, last + 1)
    assert complete(queues.sync, 1) and synced == ["0/0"]


def test_a_successor_that_lacks_a_queues_last_file_says_so(queues: Queues) -> None:
    queues.put(0, 0, 500)
    (queues.paths.queue("t", 0) / segment_name(8000)).unlink()
    successor = queues.flusher()
    with pytest.raises(FileNotFoundError):
        complete(successor, 0)
    successor.close()
