"""Frames by themselves: how large they may be, and where the records are of one that is sent again,
without what an earlier try has stored.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.actors.writer.frame_check import CheckedFrame, FrameCheck
from penstock.actors.writer.topic_admin import TopicAdmin
from penstock.shared.clock import ManualClock
from penstock.shared.config import Config
from penstock.shared.errors import InvalidMessage, QueueNotFound
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.formats.record_layout import Shape
from penstock.shared.layout import StorePaths
from penstock.shared.wire.messages import Append, CreateTopic, QueueRun, StoredRun

RECORDS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4)


def frame_of(runs: list[list[int]]) -> CheckedFrame:
    """Of records of these lengths, each filled with its number."""
    sizes = [size for run in runs for size in run]
    data = b"".join(bytes([number]) * size for number, size in enumerate(sizes))
    made = tuple(QueueRun("orders", at, len(run)) for at, run in enumerate(runs))
    request = Append(1, 1, 1, made, "", True)
    starts = [0, *accumulate(sizes)]
    return CheckedFrame(b"peer", request, made, memoryview(data), starts, (), 0, 0)


@given(RECORDS, st.data())
def test_each_record_of_a_frame_is_where_one_of_its_tries_has_stored_it(
    runs: list[list[int]], data: st.DataObject
) -> None:
    """Any of them may be stored by themselves; what is left goes into the log in pieces, which end
    where a run does, or a segment."""
    frame = frame_of(runs)
    numbers = range(len(frame.starts) - 1)
    places = {at: (1000 + at, 50_000 + 10 * at) for at in numbers if data.draw(st.booleans())}
    left = [at for at in numbers if at not in places]
    if not left:
        return  # then nothing is put into the log, and the answer is what was found
    rest = frame.without(tuple(StoredRun(at, *place) for at, place in places.items()))
    assert bytes(rest.data) == b"".join(bytes([at]) * frame_size(frame, at) for at in left)
    assert sum(run.count for run in rest.runs) == len(left)
    appended, position, first = list[StoredRun](), 100, 0
    for run in rest.runs:
        assert run.count
        for at in range(first, first + run.count):
            is_cut = at > first and data.draw(st.booleans())
            position += 7 * is_cut
            queue_offset = 10 * run.queue_id + at - first
            if at == first or is_cut:
                appended.append(StoredRun(at, queue_offset, position))
            places[left[at]] = queue_offset, position
            position += frame_size(rest, at)
        first += run.count
    found = rest.with_stored(appended)
    firsts = [run.first for run in found]
    assert firsts == sorted(set(firsts))
    for at in numbers:
        run = found[bisect_right(firsts, at) - 1]
        # as a producer reads it
        physical = run.physical_offset + frame.starts[at] - frame.starts[run.first]
        assert (run.queue_offset + at - run.first, physical) == places[at]


def frame_size(frame: CheckedFrame, at: int) -> int:
    return frame.starts[at + 1] - frame.starts[at]


QUEUES = 4
# what a record of "orders" has besides its body
OVERHEAD_BYTES = len(encode_record(Record("orders", b"")))
MOST_BODY_BYTES = 64 << 10


@pytest.fixture
def check(tmp_path: Path) -> FrameCheck:
    config = Config(
        store_path_root_dir=str(tmp_path),
        max_message_size_bytes=MOST_BODY_BYTES,
        default_topic_queue_nums=QUEUES,
    )
    paths, clock = StorePaths(tmp_path), ManualClock()
    for place in (paths.topics, paths.deleted_topics):
        place.parent.mkdir(exist_ok=True)
    topics = TopicAdmin(paths, config, clock)
    topics.answer_all([CreateTopic(1, "orders", QUEUES)], NoLog())
    return FrameCheck(config, topics, Shape(), clock)


class NoLog:
    """No topic is deleted here."""

    wrote = 0

    def next_offset(self, topic: str, queue_id: int) -> int:
        return 0

    def forget_topic(self, topic: str) -> None:
        """There is none."""


def starts(check: FrameCheck, *runs: tuple[QueueRun, list[int]]) -> list[int]:
    """Where the records begin of a frame with bodies of these lengths."""
    payload = b"".join(
        encode_record(Record("orders", bytes(size), queue_id=run.queue_id))
        for run, sizes in runs
        for size in sizes
    )
    return check.starts(Append(1, 1, 1, tuple(run for run, _ in runs), "", False), payload)


def test_a_frame_is_as_large_as_is_said_and_no_byte_larger(check: FrameCheck) -> None:
    size = (1 << 16) - OVERHEAD_BYTES
    run = QueueRun("orders", 0, 16)
    assert starts(check, (run, [size] * 16)) == list(range(0, (1 << 20) + 1, 1 << 16))
    with pytest.raises(InvalidMessage, match="the frame is larger than 1048576 bytes: 1048577"):
        starts(check, (run, [size] * 15 + [size + 1]))


def test_a_batch_is_measured_by_all_of_its_bodies_wherever_it_is_in_its_frame(
    check: FrameCheck,
) -> None:
    before, after = QueueRun("orders", 0, 2), QueueRun("orders", 2, 1)
    batch = QueueRun("orders", 1, 3, True)
    sizes = [1, MOST_BODY_BYTES - 3, 2]
    around = [MOST_BODY_BYTES, 5]
    assert len(starts(check, (before, around), (batch, sizes), (after, [7]))) == 7
    for place in range(3):
        larger = [size + (at == place) for at, size in enumerate(sizes)]
        with pytest.raises(InvalidMessage, match="the batch is larger than 65536 bytes: 65537"):
            starts(check, (before, around), (batch, larger), (after, [7]))


def test_a_frame_is_for_queues_that_its_topic_has(check: FrameCheck) -> None:
    for queue_id in range(QUEUES):
        assert len(starts(check, (QueueRun("orders", queue_id, 1), [3]))) == 2
    for queue_id in (-1, QUEUES):
        with pytest.raises(QueueNotFound):
            starts(check, (QueueRun("orders", queue_id, 0), []))
