"""What a round of queues writes down and writes again, and files that go while it is under way."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.actors.flusher import queue_sync
from penstock.shared.files.durable import write_again
from penstock.shared.layout import segment_name
from penstock.shared.memory.queue_table import QueueKey
from penstock.shared.queue.known_queues import QueueEnd, load_known_queues
from tests.actors.flusher.conftest import Queues


def test_a_queue_that_is_not_counted_yet_is_left_out(queues: Queues, synced: list[str]) -> None:
    """The reput fills its row first."""
    queues.put(0, 0, 10)
    queues.table.add(1, QueueKey("t", 1), 0, 7)
    assert queues.complete(0) and synced == ["0/0"]


def test_what_the_list_says_is_on_disk_when_a_round_is_complete(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint counts on it."""
    done, write, sync = list[str](), os.pwrite, os.fdatasync

    def note(name: str, handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}") == str(queues.paths.known_queues):
            done.append(name)

    monkeypatch.setattr(
        os, "pwrite", lambda handle, *words: note("write", handle) or write(handle, *words)
    )
    monkeypatch.setattr(os, "fdatasync", lambda handle: note("sync", handle) or sync(handle))
    for stop in (10, 20, 30):
        queues.put(0, stop - 10, stop)
        queues.sync.watermark = stop
        assert queues.complete(0)
        assert "write" in done and done[-1] == "sync"
        done.clear()


def test_a_queue_that_is_deleted_meanwhile_gets_no_line_and_the_others_do(
    queues: Queues, synced: list[str]
) -> None:
    for slot in range(3):
        queues.put(slot, 0, 10)
    steps = queues.sync.sync(0)
    while "2/0" not in synced:
        next(steps)
    queues.table.mark_deleted(1)
    list(steps)
    known = load_known_queues(queues.paths.known_queues)
    assert known == {"t/0": QueueEnd(10, 9000), "t/2": QueueEnd(10, 9000)}


def test_a_deleted_queue_holds_up_no_later_round_either(queues: Queues) -> None:
    queues.put(0, 0, 3)
    assert queues.complete(0)
    queues.put(0, 3, 5)
    queues.table.mark_deleted(0)
    queues.positions.initialise("deleted_queues", 1)
    assert [queues.complete(2) for _ in range(3)] == [True] * 3


def test_the_directory_of_each_new_topic_has_its_name_on_disk(
    queues: Queues, directories: list[str]
) -> None:
    for slot, topic in enumerate(("t", "u", "u")):
        queues.put(slot, 0, 10, topic)
        assert queues.complete(0)
    assert directories == ["0", "t", "consumequeue", "1", "u", "consumequeue", "2", "u"]


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int, int]]]:
    """(file, start, stop) of what was written again before it was synced."""
    done: list[tuple[str, int, int]] = []

    def note(handle: int, start: int, stop: int, *, replaces: bool) -> None:
        assert replaces, "a queue can be made again, and a lost page of it must stop no flush"
        done.append((Path(os.readlink(f"/proc/self/fd/{handle}")).name, start, stop))
        write_again(handle, start, stop, replaces=replaces)

    monkeypatch.setattr(queue_sync, "write_again", note)
    yield done


def test_what_a_predecessor_may_have_failed_to_sync_is_written_again_once(
    queues: Queues, again: list[tuple[str, int, int]]
) -> None:
    """From its first entry on, though that names the log's first record."""
    queues.put(0, 0, 500)
    queues.sync.close()
    queues.sync = queues.flusher()
    assert queues.complete(0)
    assert again == [(segment_name(0), 0, 8000), (segment_name(8000), 0, 2000)]
    queues.put(0, 500, 510)
    assert queues.complete(0)
    assert len(again) == 2, "that has come since"


def test_of_a_file_that_was_cut_short_what_is_there_is_synced(
    queues: Queues, synced: list[str]
) -> None:
    queues.put(0, 0, 100)
    queues.sync.close()
    queues.sync = queues.flusher()
    path = queues.paths.queue("t", 0) / segment_name(0)
    os.truncate(path, 1010)
    assert queues.complete(0) and synced == ["0/0"]
    assert path.stat().st_size == 1010


def test_a_file_that_expires_while_a_successor_looks_for_its_first_is_no_failed_sync(
    queues: Queues, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cleaner moves the min offset, and then deletes the files."""
    queues.put(0, 0, 1300)
    queues.sync.close()
    queues.sync = queues.flusher()
    gone, opened = queues.paths.queue("t", 0) / segment_name(8000), os.open

    def clean(path: Any, *words: Any, **others: Any) -> int:
        if str(path) == str(gone) and gone.exists():
            queues.table.publish_min_offset(0, 800)
            gone.unlink()
        return opened(path, *words, **others)

    monkeypatch.setattr(os, "open", clean)
    assert queues.complete(0)
    assert not gone.exists() and synced == ["0/16000", "0/24000"]


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_queue_s_first_file_is_missed_unless_its_topic_was_deleted(
    queues: Queues, synced: list[str], is_deleted: bool
) -> None:
    queues.put(0, 0, 10)
    queues.put(1, 0, 10)
    steps = queues.sync.sync(0)
    while "0/0" not in synced:
        next(steps)
    queues.sync._files.close()
    if is_deleted:
        shutil.rmtree(queues.paths.queue("t", 1))
        queues.table.mark_deleted(1)
        assert list(steps) and synced == ["0/0"]
    else:
        queues.paths.queue("t", 1).joinpath(segment_name(0)).unlink()
        with pytest.raises(FileNotFoundError):
            list(steps)
