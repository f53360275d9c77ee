"""Copies of due messages go in full frames, in order, and none is too large; and how soon changes
of topics are seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.actors.scheduler.copies import LOOK_MS, MOST_IN_FRAME, Targets, put_frames
from penstock.client.core.sending.record_sender import RecordSender
from penstock.shared.layout import StorePaths
from penstock.shared.loops.forms import FRAME_BYTES
from penstock.shared.messaging.delivered import Copy
from penstock.shared.store.topics import Topics, save_topics

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


def test_topics_are_looked_at_now_and_then_or_at_once_where_that_is_asked_for(
    tmp_path: Path,
) -> None:
    paths, topics = StorePaths(tmp_path), Topics()
    paths.topics.parent.mkdir(parents=True)
    targets = Targets(paths, NOBODY, 4)

    def change(queues: int) -> None:
        topics.put("orders", queues, queues)
        save_topics(paths.topics, topics)

    def seen(now_ms: int, **more: bool) -> int | None:
        targets.look(now_ms, **more)
        return targets.queue_for(b"orders", 11)

    assert not targets.is_known
    change(5)
    assert seen(0) == 11 % 5 and targets.is_known
    change(6)
    assert seen(LOOK_MS - 1) == 11 % 5, "before it is time"
    assert seen(LOOK_MS) == 11 % 6
    change(7)
    assert seen(LOOK_MS + 1) == 11 % 6, "before it is time"
    assert seen(LOOK_MS + 1, at_once=True) == 11 % 7
    change(8)
    assert seen(2 * LOOK_MS) == 11 % 7, "since a look that was asked for, too"
    assert seen(2 * LOOK_MS + 1) == 11 % 8
