"""Copies of due messages go in full frames, in order, and none is too large; and how soon changes
of topics are seen."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.actors.reput import Reput
from penstock.actors.scheduler.copies import (
    LOOK_MS,
    MOST_IN_FRAME,
    Batch,
    Targets,
    put_frames,
    put_in_place,
)
from penstock.client.core.sending.record_sender import RecordSender
from penstock.shared.formats.properties import LOST
from penstock.shared.layout import StorePaths
from penstock.shared.loops.forms import FRAME_BYTES
from penstock.shared.messaging.delivered import Copy
from penstock.shared.names import MAX_QUEUES_PER_TOPIC
from penstock.shared.queue.deleted_topics import NONE, save_deleted_topics
from penstock.shared.queue.reader import QueueReader
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


def test_a_copy_needs_no_closer_look_once_one_was_placed_in_its_queue_until_topics_change(
    tmp_path: Path,
) -> None:
    paths, topics = StorePaths(tmp_path), Topics()
    paths.topics.parent.mkdir(parents=True)
    targets = Targets(paths, NOBODY, 4)
    one, past, another = (Copy(b"orders", queue_id, bytes(200)) for queue_id in (1, 11, 0))
    for number, queues in enumerate((2, 3)):
        topics.put("orders", queues, queues)
        save_topics(paths.topics, topics)
        targets.look(number, at_once=True)
        assert targets.others([one, None, past]) == [0, 1, 2]
        assert targets.place(one) is one
        placed = targets.place(past)
        assert placed is not None and placed.queue_id == 11 % queues
        assert targets.others([one, None, past, another]) == [1, 2, 3]


def test_a_topic_that_has_to_be_made_gets_the_queues_that_it_has_in_the_store_and_is_to_have(
    pipeline: Callable[..., Any], work: Callable[..., None]
) -> None:
    broker = pipeline(transient_store_pool_enable=False)
    broker.append(topic="stored", queue_id=6)
    for name in ("committed", "flushed"):
        broker.positions.initialise(name, broker.positions["wrote"])
    work(broker.start(Reput))
    queues = QueueReader(broker.config, broker.run, broker.positions)
    deleted = NONE.with_rows(["%RETRY%h"], 100, 1).settled(set())
    save_deleted_topics(broker.paths.deleted_topics, deleted)  # a group's retries come all the same
    targets = Targets(broker.paths, queues, 4)
    targets.look(0)
    asked = {
        "stored": (2, 7),
        "new": (2, 4),
        "named": (4, 5),
        "%RETRY%g": (0, 1),
        "%RETRY%h": (1, 2),
        "huge": (5000, MAX_QUEUES_PER_TOPIC),
    }
    for topic, (queue_id, _) in asked.items():
        assert targets.queue_for(topic.encode(), queue_id) == queue_id
    assert targets.missing == {topic: count for topic, (_, count) in asked.items()}
    topics = Topics()
    topics.put("new", 4, 1)
    broker.paths.topics.unlink(missing_ok=True)
    save_topics(broker.paths.topics, topics)
    targets.look(0, at_once=True)
    assert targets.missing.keys() == asked.keys() - {"new"}
    assert not targets.give_up("new", 0), "it is there"
    assert targets.give_up("huge", 0) and "huge" not in targets.missing
    assert targets.queue_for(b"huge", 0) is None and targets.lost() == {"huge": 1}
    queues.close()


def test_what_waits_for_a_deleted_topic_goes_with_it(tmp_path: Path) -> None:
    paths = StorePaths(tmp_path)
    paths.topics.parent.mkdir(parents=True)
    topics = Topics()
    topics.put("orders", 1, 1)
    save_topics(paths.topics, topics)
    paths.deleted_topics.parent.mkdir(parents=True)
    deleted = NONE.with_rows(["gone"], 100, 1).settled(set())
    save_deleted_topics(paths.deleted_topics, deleted)
    targets = Targets(paths, NOBODY, 4)
    targets.look(0)
    for name in ("gone", LOST, "a/b", ""):
        assert targets.queue_for(name.encode(), 0) is None, name
    assert not targets.missing
    assert targets.lost() == {"gone": 1, LOST: 1, "a/b": 1, "": 1} and not targets.lost()


def test_topics_that_were_replaced_in_one_tick_of_the_clock_or_mended_are_read_again(
    tmp_path: Path,
) -> None:
    paths, topics = StorePaths(tmp_path), Topics()
    paths.topics.parent.mkdir(parents=True)
    targets, before = Targets(paths, NOBODY, 4), os.stat(tmp_path)
    for number, queues in enumerate((2, 3)):
        topics.put("orders", queues, queues)
        save_topics(paths.topics, topics)
        os.utime(paths.topics, ns=(before.st_mtime_ns, before.st_mtime_ns))
        targets.look(number, at_once=True)
        assert targets.queue_for(b"orders", 11) == 11 % queues
    whole = paths.topics.read_bytes()
    paths.topics.with_suffix(".json.bak").unlink()  # else that counts
    for raw, is_troubled in ((b"{", True), (whole, False)):
        paths.topics.write_bytes(raw)
        targets.look(9, at_once=True)
        assert (targets.trouble is not None) == is_troubled
        assert targets.queue_for(b"orders", 11) == 11 % 3


def test_the_parts_of_a_frame_that_was_refused_take_its_place_in_their_order() -> None:
    first, refused, last, *parts = (Batch(NOBODY, [], [number]) for number in range(6))
    batches = deque([first, refused, last])
    put_in_place(batches, refused, parts)
    assert [*batches] == [first, *parts, last]
