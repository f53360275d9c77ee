"""What takes the place of damage is whole itself, whatever room there is."""

from __future__ import annotations

import pytest

from penstock.shared.errors import StoreDamaged
from penstock.shared.formats.properties import LOST_MARK
from penstock.shared.formats.record import decode_record
from penstock.shared.formats.record_check import Kind, examine
from penstock.shared.formats.record_layout import BLANK, SMALLEST_RECORD_BYTES
from penstock.shared.formats.tombstone import (
    MOST_FILLER_BYTES,
    LostMessage,
    lay_out,
    smallest_tombstone_bytes,
)

LEAST = SMALLEST_RECORD_BYTES + 1


@pytest.mark.parametrize(
    "size",
    [
        *(LEAST, LEAST + 1, 200, MOST_FILLER_BYTES),
        *(MOST_FILLER_BYTES + more for more in (1, 50, SMALLEST_RECORD_BYTES, LEAST, 200)),
    ],
)
def test_fillers_are_whole_records_and_fill_the_range_exactly(size: int) -> None:
    pieces = lay_out(1000, size, False, [], 1)
    assert sum(map(len, pieces)) == size
    assert [examine(each, 0, len(each))[0] for each in pieces] == [Kind.RECORD] * len(pieces)


@pytest.mark.parametrize("size", [1, SMALLEST_RECORD_BYTES])
def test_a_range_that_no_record_fits_is_left_to_the_user(size: int) -> None:
    with pytest.raises(StoreDamaged, match="too small"):
        lay_out(1000, size, False, [], 1)


@pytest.mark.parametrize("to_segment_end", [False, True])
@pytest.mark.parametrize("spare", [0, 1, 17, 18, 19, 36, 40, 200, 500])
def test_tombstones_fill_the_range_exactly_and_have_marks_as_far_as_there_is_room(
    spare: int, to_segment_end: bool
) -> None:
    lost = [LostMessage("orders", 1, number) for number in (7, 8)]
    size = sum(map(smallest_tombstone_bytes, lost)) + spare
    pieces = lay_out(1000, size, to_segment_end, lost, 1)
    assert sum(map(len, pieces)) == size
    first, second = map(decode_record, pieces[:2])
    assert [first.queue_offset, second.queue_offset] == [7, 8]
    mark = len(LOST_MARK) + len("\1true\2")
    marked = [LOST_MARK in each.properties for each in (first, second)]
    has_blank = to_segment_end and spare >= BLANK.size
    room = spare - BLANK.size if has_blank else spare
    assert marked == [room >= mark, room >= 2 * mark]
    # RocketMQ takes a segment that ends without one for the log's end, and cuts what follows
    assert (examine(pieces[-1], 0, len(pieces[-1]))[0] is Kind.BLANK) == has_blank
