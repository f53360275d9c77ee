"""Frames are found in a stream however it is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.remoting.frames import FrameSplitter
from penstock.shared.errors import ProtocolError

frames = st.lists(st.binary(min_size=4, max_size=30), max_size=8)


def on_the_wire(parts: list[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


@given(frames, st.lists(st.integers(1, 17), min_size=1))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(
    sent: list[bytes], cuts: list[int]
) -> None:
    splitter, stream, found, turn = FrameSplitter(), on_the_wire(sent), [], 0
    while stream:
        size = cuts[turn % len(cuts)]
        found += splitter.feed(stream[:size])
        stream, turn = stream[size:], turn + 1
    assert found == sent and splitter.held_bytes == 0


@given(frames, st.lists(st.integers(1, 40), min_size=1))
def test_what_is_taken_out_of_a_stream_is_found_in_its_order(
    sent: list[bytes], cuts: list[int]
) -> None:
    """Frames of even length are taken where they begin, and the others are found after them."""
    splitter, stream, found, turn = FrameSplitter(), on_the_wire(sent), [], 0

    def take(data: bytes | bytearray, at: int) -> int:
        while len(data) - at >= 4:
            size = int.from_bytes(data[at : at + 4], "big")
            if size % 2 or len(data) - at < 4 + size:
                break
            found.append(bytes(data[at + 4 : at + 4 + size]))
            at += 4 + size
        return at

    while stream:
        size = cuts[turn % len(cuts)]
        for frame in splitter.feed(stream[:size], take):
            assert len(frame) % 2
            found.append(frame)
        stream, turn = stream[size:], turn + 1
    assert found == sent and splitter.held_bytes == 0


@pytest.mark.parametrize("length", [-1, 0, 3, 101, 1 << 30])
def test_a_length_that_no_frame_has_ends_the_stream(length: int) -> None:
    splitter, found = FrameSplitter(100), []
    with pytest.raises(ProtocolError):
        for frame in splitter.feed(on_the_wire([b"good"]) + length.to_bytes(4, "big", signed=True)):
            found.append(frame)
    assert found == [b"good"]


@given(st.binary(max_size=60))
def test_any_bytes_are_frames_or_a_protocol_error(raw: bytes) -> None:
    splitter = FrameSplitter(50)
    try:
        found = list(splitter.feed(raw))
    except ProtocolError:
        return
    assert on_the_wire(found) == raw[: len(raw) - splitter.held_bytes]
