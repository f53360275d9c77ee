"""Queues of a member take turns, also while others go."""

from __future__ import annotations

from penstock.client.core.groups.process_queue import ProcessQueue
from penstock.client.core.groups.queue_rotation import TURN_MS, QueueRotation
from penstock.client.core.message import Message
from penstock.shared.formats.record import Record, encode_record


def queue_of(queue_id: int, count: int) -> ProcessQueue:
    queue = ProcessQueue("orders", queue_id, 0, 1, False)
    records = [Record("orders", b"x", b"", queue_id, queue_offset=each) for each in range(count)]
    queue.put([Message(encode_record(each)) for each in records], count, count)
    return queue


def taken(rotation: QueueRotation, now_ms: int) -> int:
    """Of which queue a message is handed out; -1 where there is none."""
    handful = rotation.take(1, now_ms, ())
    return -1 if handful is None else handful.queue.queue_id


def test_a_queue_that_is_removed_is_handed_out_no_more_and_the_next_has_a_turn_of_its_own() -> None:
    rotation, queues = QueueRotation(), [queue_of(each, 9) for each in range(3)]
    for queue in queues:
        rotation.add(queue)
    assert [taken(rotation, now_ms) for now_ms in (0, TURN_MS - 1)] == [0, 0]
    rotation.remove(queues[0])
    assert [taken(rotation, now_ms) for now_ms in (TURN_MS, 2 * TURN_MS - 1)] == [1, 1]
    rotation.remove(queues[2])
    assert [taken(rotation, 2 * TURN_MS) for _ in range(8)] == [1] * 7 + [-1]
    rotation.remove(queues[1])
    assert not rotation.has_work(2 * TURN_MS, ()) and queues[0].has_work(2 * TURN_MS)


def test_a_paused_queue_is_no_work_whatever_the_others_have() -> None:
    rotation = QueueRotation()
    for queue in (queue_of(0, 1), queue_of(1, 0)):
        rotation.add(queue)
    assert rotation.has_work(0, ())
    assert not rotation.has_work(0, {("orders", 0)})
    assert rotation.take(1, 0, {("orders", 0)}) is None


def test_a_turn_is_over_after_its_time_however_often_messages_are_taken_in_it() -> None:
    rotation = QueueRotation()
    for queue_id in (0, 1):
        rotation.add(queue_of(queue_id, 9))
    assert [taken(rotation, now_ms) for now_ms in range(TURN_MS + 1)] == [0] * TURN_MS + [1]


def test_queues_follow_each_other_in_their_order_and_one_without_messages_is_passed_over() -> None:
    rotation = QueueRotation()
    for queue_id, count in enumerate((1, 0, 1, 1)):
        rotation.add(queue_of(queue_id, count))
    assert [taken(rotation, 0) for _ in range(4)] == [0, 2, 3, -1]


def test_a_turn_ends_with_a_lot_and_the_next_one_has_its_whole_time() -> None:
    rotation, first = QueueRotation(), queue_of(0, 1)
    record = Record("orders", b"x", b"", 0, queue_offset=1)
    first.put([Message(encode_record(record))], 1, 2)
    for queue in (first, queue_of(1, 9)):
        rotation.add(queue)
    times = (TURN_MS - 2, TURN_MS - 1, TURN_MS, 2 * TURN_MS - 2, 2 * TURN_MS - 1, 2 * TURN_MS)
    assert [taken(rotation, now_ms) for now_ms in times] == [0, 1, 1, 1, 0, 1]


def test_a_queue_that_goes_while_another_has_its_turn_does_not_extend_that() -> None:
    rotation, queues = QueueRotation(), [queue_of(each, 9) for each in range(3)]
    for queue in queues:
        rotation.add(queue)
    assert taken(rotation, 0) == 0
    rotation.remove(queues[2])
    assert [taken(rotation, now_ms) for now_ms in (TURN_MS - 1, TURN_MS)] == [0, 1]
