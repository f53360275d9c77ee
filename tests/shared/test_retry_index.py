"""The retry index: whatever was covered is found, whatever was not asked for costs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.errors import OffsetOutOfRange, StoreDamaged
from penstock.shared.properties import encode_properties
from penstock.shared.record import Record, encode_record
from penstock.shared.retry_index import MAX_BYTES, RetryIndex


class Log(NamedTuple):
    """A log in memory: its bytes, where records begin, and which pieces were asked for."""

    raw: bytes
    starts: list[int]
    asked: list[tuple[int, int]]

    def pieces(self, low: int, high: int) -> Iterator[tuple[int, memoryview]]:
        """A record at a time; not a byte outside of what is asked for."""
        self.asked.append((low, high))
        if low not in self.starts:
            raise StoreDamaged("a record or a blank begins here", low)
        for start, stop in zip(self.starts, self.starts[1:], strict=False):
            if low <= start < high:
                yield start, memoryview(self.raw)[start:stop]


def log_of(keys: list[str]) -> Log:
    """A record for each key; "" is a record without one."""
    raw, starts = b"", []
    for number, key in enumerate(keys):
        starts.append(len(raw))
        raw += encode_record(
            Record(
                topic="orders",
                body=b"x" * (number % 5),
                properties=encode_properties({"UNIQ_KEY": key} if key else {"TAGS": "t"}),
                queue_offset=1000 + number,
                physical_offset=len(raw),
            )
        )
    return Log(raw, [*starts, len(raw)], [])


KEYS = [f"K{i}" for i in range(12)]


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=6),
    st.data(),
)
def test_every_message_of_what_was_covered_is_found(
    covers: list[tuple[int, int]], data: st.DataObject
) -> None:
    log = log_of(KEYS)
    index = RetryIndex(log.pieces)
    low, high = 99, -1
    for first, last in covers:
        first, last = sorted((first, last))
        # the log's end, which is what a caller asks up to, never goes back
        last = max(last, high)
        index.cover(log.starts[first], log.starts[last])
        low, high = min(low, first), last
        for number in range(low, high):
            expected = (1000 + number, log.starts[number])
            assert index.find(f"K{number}".encode()) == expected
        for number in {*range(12)} - {*range(low, high)}:
            assert index.find(f"K{number}".encode()) is None
    spans = sorted(span for span in log.asked if span[0] < span[1])
    assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False)), "read only once"


def test_a_message_without_a_key_is_never_taken_for_another() -> None:
    log = log_of(["", "K1", ""])
    index = RetryIndex(log.pieces)
    index.cover(0, log.starts[-1])
    assert index.find(b"") is None
    assert index.find(b"K1") == (1001, log.starts[1])


def test_what_was_forgotten_is_built_again() -> None:
    log = log_of(KEYS)
    index = RetryIndex(log.pieces)
    index.cover(0, log.starts[5])
    index.forget()
    assert index.find(b"K1") is None
    index.cover(log.starts[3], log.starts[5])
    assert index.find(b"K1") is None and index.find(b"K4") == (1004, log.starts[4])


def test_a_wrong_offset_does_harm_to_nobody_else() -> None:
    log = log_of(KEYS)
    index = RetryIndex(log.pieces)
    for wrong in (1, log.starts[4] + 7):
        with pytest.raises(StoreDamaged):
            index.cover(wrong, log.starts[-1])
    index.cover(log.starts[4], log.starts[6])
    with pytest.raises(StoreDamaged):
        index.cover(1, log.starts[6])
    index.cover(log.starts[2], log.starts[-1])
    assert index.find(b"K3") == (1003, log.starts[3])
    assert index.find(b"K11") == (1011, log.starts[11])


@pytest.mark.parametrize(("low", "high"), [(-1, 5), (6, 5), (0, MAX_BYTES + 1)])
def test_a_stretch_that_is_none_or_too_long_is_refused(low: int, high: int) -> None:
    log = log_of(KEYS)
    with pytest.raises(OffsetOutOfRange):
        RetryIndex(log.pieces).cover(low, high)
    assert log.asked == []


def test_a_body_that_looks_like_a_key_or_a_record_hides_nothing() -> None:
    """Bodies are anybody's bytes: another message's properties, or a copy of a whole record."""
    real = "0A0B" * 8
    inner = encode_record(
        Record("orders", b"", properties=encode_properties({"UNIQ_KEY": real}), queue_offset=7)
    )
    raw, starts = b"", []
    for body, key in (
        (inner, "first"),
        (b"UNIQ_KEY\x01" + real.encode() + b"\x02", "second"),
        (b"\xda\xa3\x20\xa7" * 3000, real),
        (inner, "last"),
    ):
        starts.append(len(raw))
        raw += encode_record(
            Record(
                "orders",
                body,
                properties=encode_properties({"TAGS": "t", "UNIQ_KEY": key}),
                queue_offset=len(starts),
                physical_offset=len(raw),
            )
        )
    log = Log(raw, [*starts, len(raw)], [])
    index = RetryIndex(lambda low, high: iter([(low, memoryview(raw)[low:high])]))
    index.cover(0, len(raw))
    assert index.find(real.encode()) == (3, starts[2])
    assert index.find(b"second") == (2, starts[1]) and index.find(b"last") == (4, starts[3])
    assert log.asked == []


def test_keys_that_begin_alike_are_told_apart() -> None:
    keys = ["k" * 40 + str(number) for number in range(3)]
    log = log_of([*keys, "k" * 32])
    index = RetryIndex(log.pieces)
    index.cover(0, log.starts[-1])
    for number, key in enumerate([*keys, "k" * 32]):
        assert index.find(key.encode()) == (1000 + number, log.starts[number])
    assert index.find(b"k" * 33) is None
