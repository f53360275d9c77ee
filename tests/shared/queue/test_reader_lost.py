"""Entries that lead to one place, or past damage: what can be read is, and what cannot is said."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record import Record
from penstock.shared.log.damage import DamagedRanges, damage_between
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
