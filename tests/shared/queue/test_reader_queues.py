"""Which queues of a running store are read: those counted, not deleted, within a limit."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record import Record
from penstock.shared.log.damage import DamagedRanges, damage_between
from penstock.shared.log.reader import REST_MS
from penstock.shared.memory.queue_table import QueueKey
from penstock.shared.queue.reader import QueueDeleted, unreadable
from tests.shared.queue.conftest import Store


@pytest.fixture
def store(open_store: Callable[..., Store], make_record: Callable[..., Record]) -> Store:
    """Four queues of a topic and one of another, a message each, in slots of their numbers."""
    found = open_store([make_record(queue_id=number) for number in range(4)])
    for number in range(4):
        found.count(number, "orders", number, 0, 1)
    found.count(4, "others", 9, 0, 0)
    return found


def test_no_more_queues_of_a_topic_are_read_than_somebody_says(store: Store) -> None:
    reader, every = store.reader, {number: number for number in range(4)}
    reader.limit({"orders": 2})
    assert reader.queues("orders") == {0: 0, 1: 1}
    assert reader.queues("others") == {9: 4} and reader.topics == {"orders", "others"}
    reader.limit({"orders": 3})
    assert reader.queues("orders") == {0: 0, 1: 1, 2: 2}
    reader.limit({"orders": 1, "others": 10})
    assert reader.queues("orders") == {0: 0}
    # where nobody had said it of a topic, what is known of it stays
    reader.limit({})
    assert reader.queues("orders") == {0: 0}
    reader.limit({"orders": 4})
    assert reader.queues("orders") == {0: 0}
    reader.limit({"orders": 5})
    assert reader.queues("orders") == every and reader.message_count == 4
    store.table.add(5, QueueKey("others", 1), 0, 7)
    assert reader.message_count == 4, "it is not counted yet"


def test_a_deleted_queue_is_no_queue_and_one_that_is_made_again_has_another_slot(
    store: Store,
) -> None:
    reader = store.reader
    reader.queues("orders")
    standing = reader.standing("orders", {1: 1})
    assert reader.is_at_ends(standing)
    store.table.mark_deleted(2)
    store.positions.initialise("deleted_queues", 1)
    assert reader.queues("orders") == {0: 0, 1: 1, 3: 3}
    store.count(5, "orders", 2, 0, 0)
    assert reader.queues("orders") == {0: 0, 1: 1, 3: 3, 2: 5}
    assert not reader.is_at_ends(standing), "as many queues, but not the same"
    with pytest.raises(QueueDeleted):
        reader.entries(2, 0, 1)


def test_what_stands_past_the_end_of_a_queue_says_nothing_of_its_last_message(
    open_store: Callable[..., Store], make_record: Callable[..., Record]
) -> None:
    """It may be an entry that is just being put there, or was before a crash."""
    store = open_store([make_record(body=b"%d" % number) for number in range(6)])
    (file,) = store.paths.queue("orders", 0).iterdir()
    raw = bytearray(file.read_bytes())
    raw[3 * ENTRY.size : 4 * ENTRY.size] = raw[4 * ENTRY.size : 5 * ENTRY.size]
    file.write_bytes(raw)
    store.count(0, "orders", 0, 0, 4)
    assert store.reader.whole_from(0, 3) == 3 and store.reader.read(0, 0, 1 << 20)[1] == 4
    store.count(0, "orders", 0, 0, 5)
    assert store.reader.whole_from(0, 3) == 4, "now that entry is there, and has the place"


@pytest.mark.parametrize("lost", range(1, 7))
def test_where_the_last_messages_are_lost_a_time_after_them_is_the_first_lost_one_s_place(
    open_store: Callable[..., Store], make_record: Callable[..., Record], lost: int
) -> None:
    times = [1000 + number for number in range(6)]
    store = open_store([make_record(store_timestamp_ms=each) for each in times])
    store.count(0, "orders", 0, 0, 6)
    positions = [at for at, _, _ in ENTRY.iter_unpack(store.reader.entries(0, 0, 6))]
    damage = damage_between(store.paths, 1 << 20, positions[6 - lost], 4096, "lost")
    store.reader.log.damaged = DamagedRanges(damage)
    for number, at_ms in enumerate(times):
        assert store.reader.offset_at(0, at_ms) == min(number, 6 - lost)
    assert store.reader.offset_at(0, 2000) == 6 - lost
    found = store.reader.read(0, 0, 1 << 20)
    assert found[1] == 6 - lost and (found[0].size > 0) == (lost < 6)
    assert store.reader.whole_from(0, 0) == (6 if lost == 6 else 0)


def test_a_time_is_looked_for_again_where_messages_expire_amid_the_search(
    open_store: Callable[..., Store],
    make_record: Callable[..., Record],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cleaner moves the min offset, and then deletes the files."""
    store = open_store([make_record(store_timestamp_ms=1000 + number) for number in range(120)])
    store.count(0, "orders", 0, 0, 120)
    first, second, *_ = sorted(store.paths.queue("orders", 0).iterdir())
    later = int(second.name) // ENTRY.size
    open_file = os.open

    def clean(path: Any, *words: Any, **others: Any) -> int:
        store.table.publish_min_offset(0, later)
        first.unlink(missing_ok=True)
        return open_file(path, *words, **others)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", clean)
        assert store.reader.offset_at(0, 1001) == later
    assert store.reader.offset_at(0, 1119) == 119
    second.unlink()
    store.reader.release_deleted(0)
    with pytest.raises(FileNotFoundError):
        store.reader.offset_at(0, 1000 + later)


def test_a_reader_of_queues_gives_back_the_log_s_pages_after_a_rest(store: Store) -> None:
    store.reader.view(0, 100).release()
    store.reader.rest(1000)
    assert store.reader.log.rest(1001 + REST_MS)


def test_what_a_reader_lacks_is_no_fault_of_the_queue() -> None:
    error = OSError(errno.EIO, os.strerror(errno.EIO), "/store/consumequeue/orders/0/file")
    told = str(unreadable("orders", error))
    assert "topic orders" in told and "penstock store verify /store" in told
    for number in (errno.EMFILE, errno.ENOMEM):
        with pytest.raises(OSError, match=os.strerror(number)):
            unreadable("orders", OSError(number, os.strerror(number), "file"))
