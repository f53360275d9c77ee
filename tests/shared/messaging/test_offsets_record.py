"""Offsets as records: what is made can be read, and nothing else is taken for one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.shared.errors import InvalidMessage
from penstock.shared.messaging.offsets_record import (
    ANY,
    NONE,
    OffsetsMove,
    begin_of,
    decode_begin,
    decode_move,
    move_of,
    read_body,
)

OFFSETS = st.integers(0, (1 << 62) - 1)
QUEUES = st.dictionaries(
    st.integers(0, 1023),
    st.tuples(OFFSETS | st.sampled_from([NONE, ANY]), OFFSETS | st.just(NONE)),
    min_size=1,
    max_size=8,
)
NAMES = st.text("abcXYZ019_-%|", min_size=1, max_size=20)


@given(NAMES, st.dictionaries(NAMES, QUEUES, min_size=1, max_size=3))
def test_what_is_made_is_read_again(
    group: str, topics: dict[str, dict[int, tuple[int, int]]]
) -> None:
    body, properties = move_of(group, topics)
    assert decode_move(body) == read_body(body) == OffsetsMove(group, topics)
    assert properties == {"TAGS": "offsets", "KEYS": group}


@given(st.integers(3, 1 << 20))
def test_a_begin_says_how_many_records_there_are_and_moves_nothing(records: int) -> None:
    body, properties = begin_of("g", records)
    assert decode_begin(body) == records
    assert read_body(body) is None
    assert properties == {"TAGS": "begin", "KEYS": "g"}


@given(st.binary(max_size=80))
def test_any_bytes_are_refused_as_a_message_that_is_wrong(body: bytes) -> None:
    with pytest.raises(InvalidMessage):
        read_body(body)


@pytest.mark.parametrize(
    "move",
    [
        {"group": "", "topics": {"t": {"0": [0, 1]}}},
        {"group": "../g", "topics": {"t": {"0": [0, 1]}}},
        {"group": "g", "topics": {"..": {"0": [0, 1]}}},
        {"group": "g", "topics": {}},
        {"group": "g", "topics": {"t": {}}},
        {"group": "g", "topics": {"t": {"-1": [0, 1]}}},
        {"group": "g", "topics": {"t": {"1024": [0, 1]}}},
        {"group": "g", "topics": {"t": {"0": [0]}}},
        {"group": "g", "topics": {"t": {"0": [0, -2]}}},
        {"group": "g", "topics": {"t": {"0": [-3, 0]}}},
        {"group": "g", "topics": {"t": {"0": [0, 1 << 62]}}},
        {"group": "g", "topics": {"t": {"0": [0, 1.5]}}},
        {"group": "g", "topics": {"t": {"0": [0, 1]}}, "more": 1},
    ],
)
def test_what_no_offsets_are_is_refused(move: object) -> None:
    with pytest.raises(InvalidMessage):
        decode_move(json.dumps(move).encode())


def test_more_than_a_writer_reads_is_refused() -> None:
    topics = {f"topic{each}": {queue: (0, 1) for queue in range(1024)} for each in range(30)}
    with pytest.raises(InvalidMessage, match="is larger than"):
        move_of("g", topics)
