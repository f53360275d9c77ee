"""Where a start begins to look through the log, what queues say of its end, and a block's cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from penstock.shared.formats.checkpoint import SAFETY_MS, Checkpoint
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.queue_entry import ENTRY
from penstock.shared.formats.record import Record
from penstock.shared.formats.record_check import Kind
from penstock.shared.messaging.offsets_record import NONE, begin_of, move_of
from penstock.shared.messaging.system_topics import OFFSETS_TOPIC
from penstock.shared.recovery.find_log_end import (
    NOWHERE,
    LogEnd,
    cut_unfinished_block,
    dispatched_to,
    scan_start,
)
from penstock.shared.recovery.witness import Witness
from penstock.shared.store.directory import StoreDirectory

SIZE = 4096
FIRST = 2 * SIZE
STORED_MS = 1_700_000_000_000


@pytest.fixture
def log(store_builder: Callable[..., Path], make_record: Callable[..., Record]) -> Path:
    """Four segments, the first at FIRST. Record n, of queue n % 2, was stored n seconds later than
    STORED_MS; each segment has eight of them."""
    records = [
        make_record(queue_id=n % 2, body=bytes(380), store_timestamp_ms=STORED_MS + 1000 * n)
        for n in range(30)
    ]
    return store_builder(records, base=FIRST)


def _starts(root: Path) -> list[int]:
    with StoreDirectory(root) as store:
        return [at for at, kind, *_ in store.scan_log() if kind is Kind.RECORD]


class Case(NamedTuple):
    """`until` is the time in seconds that the checkpoint vouches for, `confirmed` its record."""

    expected: int  # the number of a record
    until: float = -1
    confirmed: int | None = None
    unclean: bool = True
    most: int = NOWHERE
    dispatched: int = NOWHERE


@pytest.mark.parametrize(
    "case",
    [
        Case(0),
        Case(0, until=7.999),
        Case(8, until=8),
        Case(8, until=15.9),
        Case(16, until=16),
        Case(24, until=99),
        # by the memory of the last run nothing was published from there on
        Case(24, until=99, most=FIRST + 3 * SIZE + 1),
        Case(16, until=99, most=FIRST + 3 * SIZE),
        Case(0, until=99, most=FIRST + SIZE),
        # after an orderly stop all is on disk
        Case(24, unclean=False),
        Case(8, unclean=False, most=FIRST + 2 * SIZE),
        # a record that was confirmed, unless a segment after it is vouched for, too
        Case(11, until=12, confirmed=11),
        Case(8, until=12, confirmed=7),
        Case(16, until=17, confirmed=11),
        Case(8, until=12, confirmed=8),
        # what queues do not have yet is dispatched again
        Case(24, until=99, dispatched=FIRST + 3 * SIZE),
        Case(16, until=99, dispatched=FIRST + 3 * SIZE - 1),
        Case(0, until=99, dispatched=FIRST + 1),
        Case(0, until=99, dispatched=0),
        Case(8, until=12, confirmed=11, dispatched=FIRST + SIZE + 5),
    ],
)
def test_a_scan_begins_where_everything_before_is_known_to_be_good(log: Path, case: Case) -> None:
    starts = _starts(log)
    assert [starts[n] for n in (8, 16, 24)] == [FIRST + n * SIZE for n in (1, 2, 3)]
    known_ms = max(0, STORED_MS + int(1000 * case.until) + SAFETY_MS)
    confirmed = 0 if case.confirmed is None else starts[case.confirmed]
    words = Checkpoint(known_ms, known_ms, confirm_offset=confirmed)
    with StoreDirectory(log) as store:
        found = scan_start(store, Witness(words), case.unclean, case.most, case.dispatched)
    assert found == starts[case.expected]


def test_queues_lead_to_the_end_of_the_newest_record_by_its_own_word(log: Path) -> None:
    starts = _starts(log)
    size = starts[1] - starts[0]
    ends = [starts[n] + size for n in (28, 29)]

    def set_last(queue_id: int, position: int, size: int) -> None:
        path = max((log / "consumequeue" / "orders" / str(queue_id)).iterdir())
        raw = bytearray(path.read_bytes())
        at = len(raw.rstrip(b"\0")) // ENTRY.size * ENTRY.size
        at -= 0 if any(raw[at : at + ENTRY.size]) else ENTRY.size
        raw[at : at + ENTRY.size] = ENTRY.pack(position, size, 1)
        path.write_bytes(raw)

    def asked() -> int:
        with StoreDirectory(log) as store:
            return dispatched_to(store)

    assert asked() == ends[1]
    set_last(1, starts[29], size + 999)
    assert asked() == ends[1], "the record itself says how long it is"
    set_last(0, starts[28], size + 9999)
    assert asked() == ends[1], "and another queue's record may be the newest"
    set_last(1, starts[29] + 5, size)
    assert asked() == starts[29] + 5 + size, "the log may have lost what is not there"
    set_last(1, FIRST + 9 * SIZE, size)
    assert asked() == FIRST + 9 * SIZE + size


@pytest.mark.parametrize("told_of", [-1, 0, 1])
@pytest.mark.parametrize("torn", [0, 3])
def test_a_log_ends_before_a_block_of_which_the_rest_is_lost(
    stopped_store: Callable[..., Any], twelve: list[Record], told_of: int, torn: int
) -> None:
    """`told_of` is how far past the block's beginning somebody may know the log."""
    outputs = [Record("out", b"x" * 50, queue_id=0) for _ in range(3)]
    own = [
        Record(OFFSETS_TOPIC, body, encode_properties(properties))
        for body, properties in (begin_of("g", 5), move_of("g", {"in": {0: (NONE, 7)}}))
    ]
    store = stopped_store([*twelve[:3], own[0], *outputs, own[1]], unclean=True, queues=False)
    starts = store.starts()
    end = starts[6]  # one output and the offsets are missing
    found = LogEnd(end, end, starts[5], 77, 6, torn_records=torn, torn_end=end + 500 * (torn > 0))
    before = msgspec.structs.replace(found)
    with StoreDirectory(store.paths.root) as directory:
        stored_ms = directory.record_at(starts[2]).store_timestamp_ms
        cut_unfinished_block(directory, found, starts[3] + told_of)
    if told_of > 0:
        assert found == before
    else:
        assert found == LogEnd(
            starts[3],
            starts[3],
            starts[2],
            stored_ms,
            3,
            has_torn_tail=True,
            torn_records=torn + 3,
            torn_end=end + 500 * (torn > 0),
        )


def test_a_block_that_begins_with_the_walk_leaves_nothing(
    stopped_store: Callable[..., Any],
) -> None:
    body, properties = begin_of("g", 5)
    begin = Record(OFFSETS_TOPIC, body, encode_properties(properties))
    store = stopped_store([begin, Record("out", b"x")], unclean=True, queues=False)
    end = store.starts()[-1]
    found = LogEnd(end, end, store.starts()[1], 77, 2)
    with StoreDirectory(store.paths.root) as directory:
        cut_unfinished_block(directory, found, 0)
    assert found == LogEnd(0, 0, has_torn_tail=True, torn_records=2, torn_end=end)
