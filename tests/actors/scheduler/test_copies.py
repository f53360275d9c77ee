"""Copies of what is due go in full frames, in their order, and none is larger than it may be."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.actors.scheduler.copies import MOST_IN_FRAME, put_frames
from penstock.client.core.sending.record_sender import RecordSender
from penstock.shared.loops.forms import FRAME_BYTES
from penstock.shared.messaging.delivered import Copy

NOBODY: Any = None
FOURTH = FRAME_BYTES // 4


@given(st.lists(st.sampled_from([1, FOURTH - 1, FOURTH, FOURTH + 1, FRAME_BYTES + 1]), max_size=20))
@example([1] * (2 * MOST_IN_FRAME + 1))
@example([FOURTH] * 9)
@example([*[FOURTH] * 4, 1])
def test_a_frame_takes_the_next_copy_unless_that_would_be_too_much(sizes: list[int]) -> None:
    copies = [(Copy(b"t", number % 3, bytes(size)), number) for number, size in enumerate(sizes)]
    sender = RecordSender("run", "scheduler", 1)
    frames = list(put_frames(sender, NOBODY, copies, -1))
    assert [note for frame in frames for note in frame.notes] == list(range(len(sizes)))
    assert sender.waiting_bytes == sum(sizes) and len(sender) == len(frames)
    bytes_of = [sum(len(each.record) for each in frame.copies) for frame in frames]
    for frame, size in zip(frames, bytes_of, strict=True):
        count = len(frame.copies)
        assert count == 1 or (size <= FRAME_BYTES and count <= MOST_IN_FRAME)
    for frame, after, size in zip(frames, frames[1:], bytes_of, strict=False):
        is_full = len(frame.copies) == MOST_IN_FRAME
        assert is_full or size + len(after.copies[0].record) > FRAME_BYTES
