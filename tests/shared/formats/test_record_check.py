"""A record's queue offset that the log has no room for, and what is read where no record begins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_check import jumps, record_at

# its topic may be empty
SMALLEST = len(encode_record(Record("t", b"", b""))) - 1


@given(
    st.integers(0, 1 << 40), st.integers(0, 1 << 50), st.integers(0, 1000), st.integers(-3, 1000)
)
def test_a_queue_offset_jumps_where_the_log_has_no_room_for_the_messages_before_it(
    end: int, log_start: int, room: int, more: int
) -> None:
    position = log_start + room * SMALLEST
    assert jumps(end + more, end, position, log_start) == (more > room)
    assert jumps(end + room + 1, end, position + SMALLEST - 1, log_start)
    assert not jumps(end + room, end, position, log_start)


@pytest.mark.parametrize("head", [b"", b"\x00\x00\x01", bytes(4), b"\xff\xff\xff\x80"])
def test_where_no_record_can_begin_nothing_is_read_but_its_length(head: bytes) -> None:
    """An offset may come from anywhere, and so may the bytes there."""
    asked = []

    def log_at(offset: int, size: int) -> bytes:
        asked.append((offset, size))
        return head

    assert record_at(log_at, 7) is None and asked == [(7, 4)]
