"""The retry index: what was covered is found, nothing else is, and what nobody asks for is free."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.actors.writer import retry_index
from penstock.actors.writer.retry_index import (
    _MARK_BYTES,
    _MARKS,
    _MERGED_WORDS,
    MAX_BYTES,
    STEP_BYTES,
    RetryIndex,
    _Table,
)
from penstock.shared.errors import OffsetOutOfRange
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_crc import with_prop_crc_room
from penstock.shared.formats.record_outline import sent_part

SEGMENT = 1 << 20


class Log(NamedTuple):
    """A log of one segment in memory: its bytes, where records begin, and what was asked for."""

    raw: bytes
    starts: list[int]
    sent: list[bytes]
    asked: list[tuple[int, int]]

    def pieces(
        self, low: int, high: int, window_bytes: int = 1
    ) -> Iterator[tuple[int, memoryview]]:
        """A record at a time; not a byte outside of what is asked for."""
        assert low in self.starts, "a place that was not known to be one"
        for start, stop in zip(self.starts, self.starts[1:], strict=False):
            if low <= start < high:
                self.asked.append((start, stop))
                yield start, memoryview(self.raw)[start:stop]

    def record(self, position: int) -> memoryview:
        stop = self.starts[self.starts.index(position) + 1]
        return memoryview(self.raw)[position:stop]

    def index(self) -> RetryIndex:
        return RetryIndex(self.pieces, self.record, SEGMENT)

    def find(self, index: RetryIndex, number: int) -> tuple[int, int] | None:
        return index.find(memoryview(self.sent[number]))


def log_of(records: list[Record]) -> Log:
    raw, starts, sent = b"", [], []
    for number, record in enumerate(records):
        starts.append(len(raw))
        sent.append(encode_record(record))
        raw += encode_record(
            msgspec.structs.replace(
                record,
                queue_offset=1000 + number,
                physical_offset=len(raw),
                store_timestamp_ms=77,
                store_host=b"\x7f\0\0\1\0\0*\x9f",
            )
        )
    return Log(raw, [*starts, len(raw)], sent, [])


def record(key: str, body: bytes = b"x", **fields: Any) -> Record:
    properties = encode_properties({"TAGS": "t"} | ({"UNIQ_KEY": key} if key else {}))
    return Record("orders", body, properties, **fields)


def keys(count: int) -> list[Record]:
    return [record(f"K{i}", b"x" * (i % 5)) for i in range(count)]


def cover(index: RetryIndex, low: int, high: int) -> int:
    """Cover it; in how many steps."""
    return len(list(index.cover(low, high)))


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=6),
    st.integers(0, 40),
)
def test_every_message_of_what_was_covered_is_found(
    covers: list[tuple[int, int]], beside: int
) -> None:
    log = log_of(keys(12))
    index = log.index()
    high = -1
    found: set[int] = set()
    for first, last in covers:
        first, last = sorted((first, last))
        # the log's end, which is what a caller asks up to, never goes back
        last = high = max(last, high)
        low = min(log.starts[first] + beside, log.starts[last])
        cover(index, low, log.starts[last])
        found |= {n for n in range(last) if log.starts[n + 1] > low}
        for number in found:
            assert log.find(index, number) == (1000 + number, log.starts[number])
    for number in set(range(12)) - found:
        place = log.find(index, number)
        assert place in (None, (1000 + number, log.starts[number]))


def test_what_is_covered_is_read_once_for_keys_and_places_are_remembered() -> None:
    log = log_of(keys(12))
    index = log.index()
    cover(index, 0, log.starts[9])
    log.asked.clear()
    assert cover(index, 0, log.starts[9]) == 0 and cover(index, log.starts[4], log.starts[9]) == 0
    cover(index, log.starts[4], log.starts[12])
    assert {start for start, _ in log.asked if start >= log.starts[9]} == set(log.starts[9:12])


def test_a_message_without_a_key_is_never_taken_for_another() -> None:
    log = log_of([record(""), record("K1"), record("")])
    index = log.index()
    cover(index, 0, log.starts[-1])
    assert log.find(index, 0) is None and log.find(index, 2) is None
    assert log.find(index, 1) == (1001, log.starts[1])


CHANGES: list[dict[str, Any]] = [
    {"topic": "evil"},
    {"queue_id": 1},
    {"born_timestamp_ms": 1},
    {"born_host": b"\x7f\0\0\1\0\0\0\1"},
    {"born_host": bytes(20)},
    {"body": b"y"},
    {"body": b"xx"},
    {"flag": 1},
    {"sys_flag": 1},
    {"reconsume_times": 1},
    {"properties": encode_properties({"UNIQ_KEY": "K0", "TAGS": "t"})},
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_key_that_another_message_has_used_finds_nothing(change: dict[str, Any]) -> None:
    honest = record("K0")
    log = log_of([msgspec.structs.replace(honest, **change), honest])
    index = log.index()
    cover(index, 0, log.starts[1])
    assert log.find(index, 1) is None, "the other one is not it"
    cover(index, 0, log.starts[2])
    assert log.find(index, 1) == (1001, log.starts[1])


def test_a_body_with_the_same_checksum_is_another_body() -> None:
    """Anybody can make a body to a checksum; what is compared is the body."""
    one, two = record("K0", b"\0\0\0\0\x99"), record("K0", b"\0\0\0\0\x98")
    log = log_of([one])
    index = log.index()
    cover(index, 0, log.starts[1])
    forged = bytearray(encode_record(two))
    forged[8:12] = log.sent[0][8:12]
    assert index.find(memoryview(bytes(forged))) is None


def test_messages_that_have_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_index, "hash", lambda part: 7, raising=False)
    log = log_of(keys(6))
    index = log.index()
    cover(index, 0, log.starts[5])
    assert [log.find(index, number) for number in range(6)] == [
        *((1000 + number, log.starts[number]) for number in range(5)),
        None,
    ]


def test_a_message_is_told_whatever_broker_has_stored_it() -> None:
    plain = record("K0")
    room = msgspec.structs.replace(plain, properties=with_prop_crc_room(plain.properties, True))
    long = msgspec.structs.replace(plain, store_host=bytes(20))
    parts = {sent_part(memoryview(encode_record(each))) for each in (plain, room, long)}
    assert len(parts) == 1


def test_a_copy_that_has_expired_hides_none_that_was_stored_later() -> None:
    honest = record("K0")
    log = log_of([honest, honest])

    def later(position: int) -> memoryview:
        if position < log.starts[1]:
            raise FileNotFoundError
        return log.record(position)

    index = RetryIndex(log.pieces, later, SEGMENT)
    cover(index, 0, log.starts[-1])
    assert log.find(index, 0) == (1001, log.starts[1])


def test_bodies_full_of_keys_and_records_are_looked_over_and_hide_nothing() -> None:
    inner = encode_record(record("inner"))
    log = log_of(
        [
            record("dense", b"UNIQ_KEY\x01K\x02" * 400_000),
            record("first", inner),
            record("second", b"\xda\xa3\x20\xa7" * 3000),
            record("K"),
        ]
    )
    index = log.index()
    # the offset of the record in the body is no place where one begins
    for low in (0, log.starts[1] + log.raw[log.starts[1] :].index(inner)):
        assert cover(index, low, log.starts[-1]) <= 8
    assert [log.find(index, number) for number in range(4)] == [
        (1000 + number, log.starts[number]) for number in range(4)
    ]
    assert index.find(memoryview(inner)) is None


def test_a_long_way_is_gone_in_steps_that_retries_share() -> None:
    log = log_of(keys(60))
    index = log.index()
    first, second = (index.cover(log.starts[n], log.starts[-1]) for n in (0, 30))
    turns = 0
    for _ in first:
        next(second, None)
        turns += 1
    assert turns <= 61
    covered = [start for start, _ in log.asked]
    assert len(covered) <= 2 * 61, "neither goes where the other has been, but to find its place"
    assert log.find(index, 59) == (1059, log.starts[59])


def test_what_was_forgotten_is_built_again() -> None:
    log = log_of(keys(12))
    index = log.index()
    cover(index, 0, log.starts[5])
    index.forget()
    assert log.find(index, 1) is None
    cover(index, log.starts[3], log.starts[5])
    assert log.find(index, 4) == (1004, log.starts[4])


@pytest.mark.parametrize(("low", "high"), [(-1, 5), (6, 5), (0, MAX_BYTES + 1)])
def test_a_stretch_that_is_none_or_too_long_is_refused(low: int, high: int) -> None:
    log = log_of(keys(12))
    with pytest.raises(OffsetOutOfRange):
        cover(log.index(), low, high)
    assert log.asked == []


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=40), st.integers(0, 1 << 32))
def test_tables_merge_and_lose_nothing(sizes: list[int], seed: int) -> None:
    """Tables of any sizes, anywhere in a log that is longer than what may be looked through."""
    random = Random(seed)
    log = log_of([])
    index = log.index()
    expected = set()
    for size in sizes:
        base = random.randrange(0, 4 * MAX_BYTES)
        words = sorted((random.getrandbits(34) << 30) + random.randrange(3000) for _ in range(size))
        expected |= {(word >> 30, base + word % (1 << 30)) for word in words}
        index._add(_Table(base, base + 3000, array("Q", words)))
    found = {
        (word >> 30, table.base + word % (1 << 30))
        for table in index._tables
        for word in table.words
    }
    assert found == expected
    assert all(list(table.words) == sorted(table.words) for table in index._tables)


def test_a_table_is_merged_with_those_that_are_no_longer_than_it() -> None:
    """So each word is merged few times, and a step sorts a bounded number of them."""
    index, base = log_of([]).index(), 0

    def add(size: int) -> list[int]:
        nonlocal base
        base += 100
        index._add(_Table(base, base + 100, array("Q", range(size))))
        return [len(table.words) for table in index._tables]

    assert [add(size) for size in (10, 1, 1, 9)] == [[10], [10, 1], [10, 2], [21]]
    assert add(_MERGED_WORDS) == [_MERGED_WORDS + 21]
    assert add(_MERGED_WORDS + 22) == [_MERGED_WORDS + 21, _MERGED_WORDS + 22]


def test_what_lies_between_two_covered_stretches_is_not_covered() -> None:
    log = log_of(keys(12))
    index = log.index()
    cover(index, 0, log.starts[2])
    log.asked.clear()
    cover(index, log.starts[8], log.starts[12])
    starts = [start for start, _ in log.asked]
    assert [starts.count(start) for start in log.starts[2:12]] == [1] * 6 + [2] + [1] * 3


def test_where_nothing_can_be_nothing_is_read() -> None:
    """A producer that has lost its connection may know the log's very end."""
    log = log_of(keys(12))
    assert cover(log.index(), log.starts[5], log.starts[5]) == 0 and log.asked == []


def test_a_step_is_one_piece_and_all_of_them_are_one_stretch() -> None:
    """The writer serves others between two steps."""
    log, windows = log_of(keys(12)), set()

    def pieces(start: int, stop: int, window_bytes: int) -> Iterator[tuple[int, memoryview]]:
        windows.add(window_bytes)
        return log.pieces(start, stop)

    index = RetryIndex(pieces, log.record, SEGMENT)
    assert cover(index, 0, log.starts[-1]) == 12
    assert windows == {STEP_BYTES}
    assert index._spans == [(0, log.starts[-1])]


def without_records(start: int, stop: int, window_bytes: int) -> Iterator[tuple[int, memoryview]]:
    return iter(())


def no_record(position: int) -> memoryview:
    raise AssertionError("there is none")


@pytest.mark.parametrize("step", [1, -1])
def test_places_near_each_other_are_noted_once_and_push_no_far_one_out(step: int) -> None:
    """Records begin anywhere, and each session names a place."""
    index = RetryIndex(without_records, no_record, 1 << 40)
    index.mark(1000)
    for number in range(3 * _MARKS):
        index.mark((1 << 30) + step * number)
    assert index._known_before(2000) == 1000
    assert index._known_before(1 << 31) == 1 << 30


def test_of_places_far_from_each_other_the_last_ones_are_remembered() -> None:
    index = RetryIndex(without_records, no_record, 1 << 40)
    places = [2 * (number + 1) * _MARK_BYTES for number in range(_MARKS + 1)]
    for place in places[:-1]:
        index.mark(place)
    assert index._known_before(places[0]) == places[0]
    index.mark(places[-1])
    for place in places[_MARKS // 2 :]:
        assert index._known_before(place) == place
    assert index._known_before(places[_MARKS // 2] - 1) == 0


def test_a_segment_begins_with_a_record_whatever_else_is_known() -> None:
    index = RetryIndex(without_records, no_record, SEGMENT)
    index.mark(SEGMENT - 1000)
    assert index._known_before(SEGMENT + 5) == SEGMENT


def test_a_search_goes_on_from_where_an_earlier_one_has_been() -> None:
    asked = []

    def long(start: int, stop: int, window_bytes: int) -> Iterator[tuple[int, memoryview]]:
        asked.append(start)
        yield start, memoryview(bytes(2 * _MARK_BYTES))

    index = RetryIndex(long, no_record, 1 << 40)
    for _ in range(2):
        first = index.cover(9 * _MARK_BYTES, 10 * _MARK_BYTES)
        next(first)
        next(first)
    assert asked == [2 * number * _MARK_BYTES for number in range(4)]
