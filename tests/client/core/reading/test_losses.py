"""What a consumer passes over: counted, and told the first time."""

from __future__ import annotations

import pytest

from penstock.client.core.message import Message
from penstock.client.core.reading.losses import Losses
from penstock.shared.formats.properties import LOST as LOST_PROPERTY
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record


def message(properties: dict[str, str]) -> Message:
    return Message(encode_record(Record("orders", b"x", encode_properties(properties))))


LOST, WHOLE = message({LOST_PROPERTY: "1"}), message({})


def test_offsets_that_have_expired_are_counted_and_the_first_ones_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    losses = Losses("orders")
    losses.pass_over(0, 5, 12)
    losses.pass_over(1, 0, 3)
    assert losses.count == 10 and len(caplog.records) == 1
    assert "going on at offset 12 instead of 5" in caplog.text
    losses.went_back(0, 9, 4)
    assert losses.count == 10 and "ends at offset 4: going on there instead of at 9" in caplog.text


def test_what_stands_in_the_place_of_lost_messages_is_none_and_told_the_first_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    losses = Losses("orders")
    assert losses.without_lost([WHOLE, WHOLE]) == [WHOLE, WHOLE]
    assert (losses.count, caplog.records) == (0, [])
    for count in (2, 4):
        assert losses.without_lost([LOST, WHOLE, LOST]) == [WHOLE]
        assert (losses.count, len(caplog.records)) == (count, 1)
    losses.without_lost([WHOLE])
    assert losses.count == 4
