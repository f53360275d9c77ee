"""How much of a queue a group has not done, by a plain list of what is stored."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from penstock.shared.formats.queue_entry import BLANK_ENTRY, ENTRY
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.layout import segment_name
from penstock.shared.log.damage import DamagedRanges, damage_between
from penstock.shared.queue import lag as module
from penstock.shared.queue.lag import UNKNOWN, Lag
from tests.shared.queue.conftest import Store

COUNT, LOW, STORED_MS = 120, 7, 1_700_000_000_000


@pytest.fixture
def store(open_store: Callable[..., Store], make_record: Callable[..., Record]) -> Store:
    """A queue in several files, of which the first messages have expired, and another queue."""
    records = [
        make_record(queue_id=0, body=bytes(number), store_timestamp_ms=STORED_MS + 10 * number)
        for number in range(COUNT)
    ]
    found: Store = open_store([make_record(queue_id=3, body=b"x"), *records])
    found.count(0, "orders", 3, 0, 1)
    found.count(1, "orders", 0, LOW, COUNT)
    return found


@pytest.mark.parametrize("most", [COUNT, COUNT - LOW, 20, 1, 0])
def test_what_is_not_done_is_counted_from_the_offset_or_from_what_has_not_expired(
    store: Store, make_record: Callable[..., Record], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", most)
    sizes = [len(encode_record(make_record(body=bytes(number)))) for number in range(COUNT)]
    lag, now_ms = Lag(store.reader), STORED_MS + 10 * 50
    for offset in (0, 1, LOW - 1, LOW, LOW + 1, 49, 50, 51, 99, 100, COUNT - 1, COUNT, COUNT + 9):
        undone = range(max(offset, LOW), COUNT)
        assert lag.messages("orders", 0, offset) == len(undone)
        size = sum(sizes[each] for each in undone) if len(undone) <= most else UNKNOWN
        assert lag.size("orders", 0, offset) == size
        age = max(0, 500 - 10 * undone[0]) if undone else 0
        assert lag.age_ms("orders", 0, offset, now_ms) == age
        assert lag.of("orders", 0, offset, now_ms) == (age, size)
    assert lag.range("orders", 0) == (LOW, COUNT) and lag.range("orders", 3) == (0, 1)


def test_a_queue_that_is_not_there_has_nothing_that_is_not_done(store: Store) -> None:
    lag = Lag(store.reader)
    for topic, queue in (("orders", 1), ("none", 0)):
        assert lag.range(topic, queue) == (0, 0) and lag.messages(topic, queue, 0) == 0
        assert lag.of(topic, queue, 0, STORED_MS) == (0, 0)


def test_a_blank_has_no_bytes_and_no_age(store: Store, make_record: Callable[..., Record]) -> None:
    with open(store.paths.queue("orders", 0) / segment_name(1000), "r+b") as file:
        file.write(BLANK_ENTRY)
    lag = Lag(store.reader)
    assert lag.age_ms("orders", 0, 50, STORED_MS) == UNKNOWN
    assert lag.size("orders", 0, 50) == lag.size("orders", 0, 51) > 0


def test_what_the_files_do_not_say_is_unknown_and_no_fault_of_who_asks(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store.paths.queue("orders", 0) / segment_name(2000)).unlink()
    lag = Lag(store.reader)
    assert lag.of("orders", 0, 100, STORED_MS) == (UNKNOWN, UNKNOWN)
    assert lag.of("orders", 0, 99, STORED_MS)[1] == UNKNOWN
    assert lag.age_ms("orders", 0, 99, STORED_MS + 1000) == 10


def test_an_entry_that_leads_nowhere_says_nothing_of_bytes_and_age(store: Store) -> None:
    with open(store.paths.queue("orders", 0) / segment_name(1000), "r+b") as file:
        file.write(bytes(ENTRY.size))
    lag = Lag(store.reader)
    assert lag.of("orders", 0, 50, STORED_MS) == (UNKNOWN, UNKNOWN)
    assert lag.size("orders", 0, 49) == UNKNOWN
    assert lag.messages("orders", 0, 50) == COUNT - 50


def test_where_the_process_has_no_descriptor_left_that_is_said(store: Store) -> None:
    error = OSError(errno.EMFILE, "too many")
    with pytest.raises(OSError, match="too many"):
        module._unknown(error)
    assert module._unknown(OSError(errno.EIO, "unreadable")) == UNKNOWN


def test_of_a_damaged_message_the_age_is_unknown_and_the_bytes_are_not(store: Store) -> None:
    lag, raw = Lag(store.reader), store.reader.entries(1, 50, 52)
    (position, size, _), (_, more, _) = ENTRY.iter_unpack(raw)
    damage = damage_between(store.paths, 1 << 20, position, position + size, "lost")
    store.reader.log.damaged = DamagedRanges(damage)
    assert lag.age_ms("orders", 0, 50, STORED_MS + 1000) == UNKNOWN
    assert lag.age_ms("orders", 0, 51, STORED_MS + 1000) == 490
    assert lag.size("orders", 0, 50) - lag.size("orders", 0, 52) == size + more
