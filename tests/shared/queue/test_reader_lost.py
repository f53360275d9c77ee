"""Entries that lead to one place, or past damage: what can be read is, and what cannot is said."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.shared.errors import StoreDamaged
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record import Record
from penstock.shared.layout import segment_name
from penstock.shared.log.damage import DamagedRanges, damage_between
from penstock.shared.queue.reader import QueueDeleted
from tests.shared.queue.conftest import Store


@pytest.fixture
def store(open_store: Callable[..., Store], make_record: Callable[..., Record]) -> Store:
    """A queue of nine messages."""
    found = open_store([make_record(body=b"%d" % number) for number in range(9)])
    found.count(0, "orders", 0, 0, 9)
    return found


def _lead_to(store: Store, entry: bytes, *slots: int) -> None:
    (file,) = store.paths.queue("orders", 0).iterdir()
    raw = bytearray(file.read_bytes())
    for slot in slots:
        raw[slot * ENTRY.size : (slot + 1) * ENTRY.size] = entry
    file.write_bytes(raw)


@pytest.mark.parametrize("is_gone", [True, False])
def test_where_a_record_cannot_be_read_nobody_knows_which_of_two_it_is(
    store: Store, is_gone: bool
) -> None:
    """So neither is passed over: whoever reads it is told why it cannot be read."""
    _lead_to(store, store.reader.entries(0, 5, 6), 4)
    segment = store.paths.commit_log / segment_name(0)
    if is_gone:
        segment.unlink()
    else:
        segment.write_bytes(segment.read_bytes()[:-1])
    for start in (4, 5):
        assert store.reader.whole_from(0, start) == start
        with pytest.raises(FileNotFoundError if is_gone else StoreDamaged):
            store.reader.read(0, start, 1 << 20)


def test_two_entries_that_lead_to_the_last_bytes_of_a_segment_are_not_passed_over(
    store: Store,
) -> None:
    """No record begins there, and these bytes do not say whose they are."""
    segment_bytes = store.reader.log.segment_bytes
    _lead_to(store, ENTRY.pack(segment_bytes - 10, 108, 0), 4, 5)
    assert [store.reader.whole_from(0, start) for start in range(9)] == list(range(9))


def test_blanks_are_not_lost_with_what_is_damaged_after_them(
    open_store: Callable[..., Store], make_record: Callable[..., Record]
) -> None:
    store = open_store([make_record() for _ in range(3)], first_offsets={("orders", 0): 7})
    store.count(0, "orders", 0, 0, 10)
    position, size, _ = ENTRY.unpack(store.reader.entries(0, 9, 10))
    damage = damage_between(store.paths, 1 << 20, position, position + size, "lost")
    store.reader.log.damaged = DamagedRanges(damage)
    found, next_offset = store.reader.read(0, 2, 1 << 20)
    assert (found.size, next_offset) == (2 * size, 9)


@pytest.mark.parametrize(
    "bad",
    [ENTRY.pack(0, 0, 0), ENTRY.pack(500, -5, 7), ENTRY.pack(-1, 108, 0)],
    ids=["zero", "less", "before"],
)
def test_in_a_damaged_log_an_entry_that_leads_nowhere_is_lost_like_others(
    store: Store, bad: bytes
) -> None:
    """Elsewhere it is an error, which would keep its queue's consumers from what comes after it."""
    position, size, _ = ENTRY.unpack(store.reader.entries(0, 8, 9))
    damage = damage_between(store.paths, 1 << 20, position, position + size, "lost")
    store.reader.log.damaged = DamagedRanges(damage)
    _lead_to(store, bad, 4)
    assert [store.reader.read(0, start, 1 << 20)[1] for start in (0, 4, 5)] == [4, 4, 8]
    assert [store.reader.whole_from(0, start) for start in range(9)] == [0, 1, 2, 3, 5, 5, 6, 7, 9]


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_file_of_the_queue_that_cannot_be_read_says_nothing_of_its_neighbours(
    open_store: Callable[..., Store], make_record: Callable[..., Record], is_gone: bool
) -> None:
    store = open_store([make_record(body=b"%d" % number) for number in range(110)])
    store.count(0, "orders", 0, 0, 110)
    files = sorted(store.paths.queue("orders", 0).iterdir())
    assert [int(file.name) // ENTRY.size for file in files] == [0, 50, 100]
    if is_gone:
        files[1].unlink()
    else:
        files[1].write_bytes(b"")
    for start in (49, 100):
        assert store.reader.whole_from(0, start) == start
        assert store.reader.read(0, start, 1 << 20)[1] == (50 if start == 49 else 110)
    with pytest.raises(FileNotFoundError if is_gone else StoreDamaged) as caught:
        store.reader.read(0, 50, 1 << 20)
    assert not isinstance(caught.value, QueueDeleted)
