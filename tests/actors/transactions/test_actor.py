"""The transactions actor: one outcome for each half message, whatever is said and whoever dies."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.actors.reput import Reput
from penstock.actors.transactions import half_queues, half_table
from penstock.actors.writer import Writer
from penstock.shared.formats.properties import decode_properties, encode_properties
from penstock.shared.formats.record import Record
from penstock.shared.formats.record_crc import PROP_CRC_BYTES
from penstock.shared.memory.queue_table import QueueKey, QueueTable
from penstock.shared.messaging.half import (
    committed,
    half_properties,
    op_records,
    parse_op,
    put_back,
)
from penstock.shared.messaging.system_topics import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from penstock.shared.messaging.system_topics import TRANS_CHECK_MAX_TIME_TOPIC as GIVEN_UP
from penstock.shared.names import MAX_PROPERTIES_BYTES
from penstock.shared.store.transaction_progress import load_transaction_progress
from penstock.shared.wire.messages import CreateTopic, DeleteTopic, Refused, UpdateTopic, encode
from penstock.shared.wire.transaction_messages import CheckTransaction, Ended, Registered

Scenes = Callable[..., Any]


def done(scene: Any) -> list[int]:
    return [offset for each in scene.queue(OP_TOPIC) for offset in parse_op(each.body)]


def test_a_committed_message_is_in_its_queue_and_its_half_message_is_done(scene: Scenes) -> None:
    broker = scene()
    half = broker.half(b"order 1")
    assert broker.queue("orders", 1) == [], "a half message is no message yet"
    producer = broker.producer()
    answer = producer.end(half, "commit")
    broker.dispatched()
    (message,) = broker.queue("orders", 1)
    assert (message.body, message.sys_flag, message.prepared_transaction_offset) == (
        *(b"order 1", 8, half.position),
    )
    place = (message.queue_id, message.queue_offset, message.physical_offset)
    assert answer == Ended(1, "commit", *place)
    assert done(broker) == [half.offset]


def test_a_commit_for_a_queue_that_is_gone_goes_to_one_that_is_left(scene: Scenes) -> None:
    """The topic has fewer queues by now: what nobody reads any more must not get a message, and one
    whose local transaction was committed must not be lost."""
    broker = scene()
    halves = [broker.half(b"order %d" % number) for number in range(3)]
    broker._tell(encode(UpdateTopic(9, "orders", read_queues=1, write_queues=1)))
    producer = broker.producer()
    for half in halves:
        producer.tell(half, "commit")
    answers = [producer.answer() for _ in halves]
    broker.dispatched()
    found = broker.queue("orders", 0)
    assert {each.body for each in found} == {b"order 0", b"order 1", b"order 2"}
    assert {(each.outcome, each.queue_id) for each in answers} == {("commit", 0)}
    assert {each.queue_offset for each in answers} == {0, 1, 2}
    assert sorted(done(broker)) == [half.offset for half in halves]


def test_commits_for_queues_that_are_gone_are_divided_among_those_that_are_left_by_then(
    scene: Scenes,
) -> None:
    broker = scene()
    producer = broker.producer()
    halves = [broker.half(REAL_QID=queue) for queue in "233"]
    for half, queues, found in zip(halves, (2, 2, 1), (0, 1, 0), strict=True):
        wanted = UpdateTopic(9, "orders", read_queues=queues, write_queues=queues)
        broker._tell(encode(wanted))
        assert producer.end(half, "commit").queue_id == found


def test_a_commit_of_an_earlier_run_is_found_in_the_queue_that_it_was_moved_to(
    scene: Scenes,
) -> None:
    """Of its frame a power failure has left the copy, and not the mark."""
    broker = scene()
    half = broker.half(b"order")
    broker._tell(encode(UpdateTopic(9, "orders", read_queues=1, write_queues=1)))
    broker.dispatched()
    (record,) = broker.queue(HALF_TOPIC)
    broker.put(replace(committed(record), queue_id=0))
    broker.dispatched()
    broker.broker.positions.initialise("run_began", broker.broker.positions["wrote"])
    broker.crash()
    answer = broker.producer().end(half, "commit")
    broker.dispatched()
    assert len(broker.queue("orders", 0)) == 1
    assert (answer.outcome, answer.queue_id, answer.queue_offset) == ("commit", 0, 0)


def test_a_message_that_is_rolled_back_is_never_seen(scene: Scenes) -> None:
    broker = scene()
    half = broker.half()
    assert broker.producer().end(half, "rollback") == Ended(1, "rollback")
    broker.dispatched()
    assert broker.queue("orders", 1) == []
    assert done(broker) == [half.offset]


@pytest.mark.parametrize("first", ["commit", "rollback"])
@pytest.mark.parametrize("crash", [False, True])
def test_the_first_outcome_counts_and_nothing_is_written_for_a_second(
    scene: Scenes, first: str, crash: bool
) -> None:
    broker = scene()
    half = broker.half()
    answer = broker.producer().end(half, first)
    broker.dispatched()
    before = broker.broker.positions["wrote"]
    if crash:
        broker.crash()
    for second in ("commit", "rollback"):
        again = broker.producer().end(half, second)
        assert (again.outcome, again.physical_offset) == (answer.outcome, answer.physical_offset)
    assert broker.broker.positions["wrote"] == before


def test_a_successor_serves_when_it_knows_all_that_its_predecessor_can_have_stored(
    scene: Scenes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of it has not come to the queues, and of the rest it reads one record a turn."""
    monkeypatch.setattr(half_queues, "LOOK_BYTES", 1)
    broker = scene()
    halves = [broker.half(b"%d" % number) for number in range(6)]
    producer = broker.producer()
    for half in halves[:-1]:
        assert producer.end(half, "rollback").outcome == "rollback"
    broker.dispatched()
    reput = broker.others.pop()
    assert producer.end(halves[-1], "commit").outcome == "commit"
    broker.crash()
    broker.until(lambda: broker.actor._sender.is_open, "the writer")
    for _ in range(50):
        broker.turn()
    assert not broker.actor._ready
    broker.crash()
    broker.until(lambda: broker.actor._sender.is_open, "the writer")
    reput.work()
    broker.until(lambda: broker.actor._ready, "what is in the queues")
    assert broker.actor._follower.is_at_end()
    broker.others.append(reput)
    assert broker.producer().end(halves[-1], "rollback").outcome == "commit"
    positions = broker.broker.positions
    assert positions["transactions_rolled_back"] == 5, "what is read again is not counted again"
    assert positions["transactions_committed"] == 1


def test_an_actor_that_stops_saves_how_far_it_came(scene: Scenes) -> None:
    broker = scene()
    assert broker.producer().end(broker.half(), "rollback").outcome == "rollback"
    broker.dispatched()
    file = broker.broker.paths.transactions
    assert load_transaction_progress(file) is None
    broker.broker.stop(broker.actor)
    broker.actor = None
    saved = load_transaction_progress(file)
    assert saved is not None and saved.half == 1


def test_many_end_in_few_frames_each_as_it_was_said(scene: Scenes) -> None:
    broker = scene()
    halves = [broker.half(b"%d" % number) for number in range(40)]
    producer = broker.producer()
    for number, half in enumerate(halves):
        producer.tell(half, "rollback" if number % 3 == 0 else "commit")
    answers = {answer.request: answer for answer in (producer.answer() for _ in halves)}
    broker.dispatched()
    visible = {each.queue_offset: each for each in broker.queue("orders", 1)}
    for number in range(40):
        answer = answers[number + 1]
        if number % 3 == 0:
            assert answer == Ended(number + 1, "rollback")
        else:
            message = visible.pop(answer.queue_offset)
            assert message.body == b"%d" % number
            assert message.physical_offset == answer.physical_offset
    assert visible == {}
    assert sorted(done(broker)) == [half.offset for half in halves]
    assert len(broker.queue(OP_TOPIC)) < 40


def test_what_is_committed_is_there_once_though_its_frame_is_refused_when_it_is_sent_again(
    scene: Scenes,
) -> None:
    it = scene()
    it._tell(encode(CreateTopic(8, "gone", 1)))
    halves, positions = (it.half(), it.half(REAL_TOPIC="gone", REAL_QID="0")), it.broker.positions
    it.dispatched()
    wrote, producer = positions["wrote"], it.producer()
    for half in halves:
        producer.tell(half, "commit")
    it.others, others = [], it.others
    it.until(lambda: positions["wrote"] > wrote, "the frame, which nobody flushes")
    it.actor, actor, it.others = None, it.actor, others
    it.broker.crash(it.writer)
    it.writer = it.broker.start(Writer)
    it._produce = it.broker.client(it.broker.run.endpoints.produce)
    it._tell(encode(DeleteTopic(9, "gone")))
    it.actor = actor
    answers = {answer.request: answer for answer in (producer.answer() for _ in halves)}
    assert answers[1].outcome == "commit"
    it.dispatched()
    assert [each.body for each in it.queue("orders", 1)] == [b"body"]
    assert it.queue("orders", 1)[0].physical_offset == answers[1].physical_offset


def test_a_half_message_that_has_expired_is_waited_for_no_longer(scene: Scenes) -> None:
    it = scene()
    it.half()
    it.dispatched()
    it.until(lambda: it.broker.positions["transactions_open"] == 1, "the half message")
    table = QueueTable(it.broker.run.queues, writable=True)
    slot = dict((key, slot) for slot, key in table.keys(0, it.broker.positions["queue_count"]))
    table.publish_min_offset(slot[QueueKey(HALF_TOPIC, 0)], 1)  # as a cleaner does
    table.close()
    it.until(
        lambda: it.pass_time(1000) or it.broker.positions["transactions_open"] == 0,
        "a look at what is open",
    )
    assert it.queue(GIVEN_UP) == []


def test_what_is_no_half_message_cannot_be_ended(scene: Scenes) -> None:
    broker = scene()
    half = broker.half()
    producer = broker.producer()
    before = broker.broker.positions["wrote"]
    for wrong in (
        {"physical_offset": half.position + 1},
        {"queue_offset": half.offset + 1},
        {"queue_offset": half.offset + 1, "physical_offset": 1 << 40},
        {"group": "others"},
        {"unique_key": "KEY9999"},
    ):
        answer = producer.end(half, "commit", **wrong)
        assert isinstance(answer, Refused) and answer.status == "INVALID_ARGUMENT", wrong
    assert broker.broker.positions["wrote"] == before
    assert producer.end(half, "commit").outcome == "commit"


def test_a_word_that_comes_before_its_half_message_is_in_the_queue_waits_for_it(
    scene: Scenes,
) -> None:
    it = scene()
    it.is_ready()
    producer = it.producer()
    reput = it.others.pop()
    half = it.half()
    producer.tell(half, "commit")
    for _ in range(200):
        it.turn()
    assert not producer.socket.poll(0) and not it.queue("orders", 1)
    assert it.actor.idle_ms() <= 1, "nobody tells it when the half message has come"
    it.others.append(reput)
    assert producer.answer().outcome == "commit"


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_of_words_that_come_together_the_first_counts(scene: Scenes, looks: int) -> None:
    """However often it was looked whether their half messages have come to the queue."""
    it = scene()
    it.is_ready()
    producer, reput = it.producer(), it.others.pop()
    if not looks:
        it.others.append(reput)
    halves = [it.half(b"%d" % number) for number in range(6)]
    words = [("commit", "rollback"), ("rollback", "commit")] * 3
    for half, both in zip(halves, words, strict=True):
        for outcome in both:
            producer.tell(half, outcome)
    if looks:
        it.until(lambda: len(it.actor._requests._early) == 12)
        for _ in range(looks):
            it.turn()
        reput.work()
        it.others.append(reput)
    outcomes = {}
    for _ in range(12):
        answer = producer.answer()
        outcomes[answer.request] = answer.outcome
    assert [outcomes[number] for number in range(1, 13, 2)] == [first for first, _ in words]
    it.dispatched()
    assert {each.body for each in it.queue("orders", 1)} == {b"0", b"2", b"4"}


def test_a_producer_that_does_not_know_is_answered_and_nothing_ends(scene: Scenes) -> None:
    broker = scene()
    half = broker.half()
    assert broker.producer().end(half, "unknown") == Ended(1, "unknown")
    assert broker.actor._follower.table.open == 1


def test_who_is_alive_is_asked_once_the_message_is_old_enough(scene: Scenes) -> None:
    broker = scene()
    half = broker.half(b"order 1")
    producer = broker.producer()
    assert isinstance(producer.register(), Registered)
    others = broker.producer("others")
    others.register()
    broker.pass_time(4000)
    assert not producer.is_asked(), "the first pass comes after an interval"
    register_through(broker, [producer, others], 30_000)
    question, record = producer.question()
    assert question == CheckTransaction(0, "shop", half.key, half.offset, half.position)
    assert b"order 1" in record and b"orders" in record
    assert not others.is_asked()
    assert producer.end(half, "commit", from_check=True).outcome == "commit"
    assert broker.broker.positions["transaction_checks"] == 1


def register_through(broker: Any, producers: list[Any], ms: int) -> None:
    """Let time pass in steps in which producers stay registered."""
    for _ in range(ms // 4000 + 1):
        for each in producers:
            each.register()
        broker.pass_time(4000)


def test_nobody_is_asked_within_the_immunity_and_no_check_is_counted(scene: Scenes) -> None:
    broker = scene()
    broker.half(CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    producer = broker.producer()
    register_through(broker, [producer], 90_000)
    assert not producer.is_asked()
    assert len(broker.queue(HALF_TOPIC)) == 1, "it is not put back meanwhile, as RocketMQ does"
    register_through(broker, [producer], 40_000)
    assert producer.question()


@pytest.mark.parametrize("skew_ms", [-86_400_000, 86_400_000])
def test_a_producer_whose_clock_is_a_day_off_has_its_time_all_the_same(
    scene: Scenes, skew_ms: int
) -> None:
    """It is neither asked at once, which would use up the checks while its local transaction runs,
    nor is its message taken for older than the store keeps messages."""
    broker = scene(file_reserved_time_h=1)
    half = broker.half(skew_ms=skew_ms, CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    producer = broker.producer()
    register_through(broker, [producer], 90_000)
    assert not producer.is_asked()
    register_through(broker, [producer], 40_000)
    assert producer.question()
    assert broker.queue(GIVEN_UP) == []
    assert producer.end(half, "commit").outcome == "commit"


def test_after_the_most_checks_a_message_is_given_up_and_its_queue_keeps_it(scene: Scenes) -> None:
    broker = scene(transaction_check_max=2, transaction_check_interval_ms=8000)
    half = broker.half(b"nobody knows")
    producer = broker.producer()
    for _ in range(2):
        while not producer.is_asked():
            register_through(broker, [producer], 4000)
        assert producer.question()
    broker.until(lambda: broker.pass_time(1000) or broker.queue(GIVEN_UP), "the discarded message")
    assert not producer.is_asked(), "two times are the most"
    broker.dispatched()
    (kept,) = broker.queue(GIVEN_UP)
    assert kept.body == b"nobody knows"
    assert decode_properties(kept.properties)["REAL_TOPIC"] == "orders"
    assert done(broker) == [half.offset]
    late = broker.producer().end(half, "commit")
    assert late.outcome == "rollback", "it was never visible, and is not made so any more"
    assert broker.broker.positions["transactions_discarded"] == 1


def test_without_a_producer_a_message_waits_as_long_as_the_store_keeps_messages(
    scene: Scenes,
) -> None:
    broker = scene(transaction_check_max=2, file_reserved_time_h=1)
    broker.half()
    for _ in range(55):
        broker.pass_time(60_000)
    broker.dispatched()
    assert broker.queue(GIVEN_UP) == []
    for _ in range(10):
        broker.pass_time(60_000)
    broker.until(lambda: broker.queue(GIVEN_UP), "the discarded message")


def test_the_living_are_asked_in_turn_and_the_dead_no_more(scene: Scenes) -> None:
    broker = scene(transaction_check_interval_ms=8000, transaction_time_out_ms=1)
    broker.half()
    first, second, dead = broker.producer(), broker.producer(), broker.producer()
    for each in (first, second, dead):
        each.register()
    dead.socket.close()
    asked = {first: 0, second: 0}
    while sum(asked.values()) < 6:
        register_through(broker, [first, second], 8000)
        for each in asked:
            while each.is_asked():
                asked[each] += bool(each.question())
    assert min(asked.values()) >= 2


def test_a_question_that_nobody_is_left_to_hear_is_put_to_the_next_and_counts_once(
    scene: Scenes,
) -> None:
    broker = scene(transaction_check_interval_ms=8000, transaction_time_out_ms=1)
    broker.half()
    dead, living = broker.producer(), broker.producer()
    for each in (dead, living):
        each.register()
    peer, _ = broker.actor._producers._groups["shop"]
    dead.socket.close()
    broker.until(lambda: not broker.actor._send(peer, b""), "the end of its connection")
    broker.pass_time(8000)
    broker.until(living.is_asked, "the question")
    assert living.question()
    assert broker.broker.positions["transaction_checks"] == 1


def test_one_that_is_ending_keeps_nobody_from_being_asked_about_the_next(scene: Scenes) -> None:
    broker = scene(transaction_check_interval_ms=8000, transaction_time_out_ms=1)
    first, second = broker.half(), broker.half()
    producer = broker.producer()
    producer.register()
    producer.tell(first, "commit")
    broker.until(lambda: len(broker.actor._endings), "what was told", alone=True)
    broker.broker.clock.advance(8000)
    broker.until(producer.has_question, "a question", alone=True)
    question, _ = producer.question()
    assert question.queue_offset == second.offset
    assert producer.answer().outcome == "commit"


def test_an_outcome_said_again_before_its_message_is_in_its_queue_has_the_same_answer(
    scene: Scenes,
) -> None:
    broker = scene()
    committed, rolled_back = broker.half(), broker.half()
    producer = broker.producer()
    broker.dispatched()
    assert isinstance(broker.others.pop(), Reput)
    for half, outcome in ((committed, "commit"), (rolled_back, "rollback")):
        answer = producer.end(half, outcome)
        assert answer.outcome == outcome
        for again in ("commit", "rollback"):
            other = producer.end(half, again)
            assert replace(other, request=answer.request) == answer
    assert broker.queue("orders", 1) == []


def test_of_commits_that_are_stored_together_each_has_the_receipt_of_its_own_message(
    scene: Scenes,
) -> None:
    broker = scene()
    queues = [1, 1, 3, 0, 0]
    halves = [broker.half(b"%d" % at, REAL_QID=str(queue)) for at, queue in enumerate(queues)]
    broker.dispatched()
    producer = broker.producer()
    for half in halves:
        producer.tell(half, "commit")
    broker.until(lambda: len(broker.actor._endings) == 5, "what was told", alone=True)
    answers = [producer.answer() for _ in halves]
    broker.dispatched()
    for number, (answer, queue) in enumerate(zip(answers, queues, strict=True)):
        stored = broker.queue("orders", queue)[answer.queue_offset]
        assert (answer.queue_id, answer.physical_offset) == (queue, stored.physical_offset)
        assert stored.body == b"%d" % number


def test_a_kill_before_the_answer_leaves_one_message(scene: Scenes) -> None:
    """Its frame may be stored, or on its way, or not sent: the producer says it again."""
    for turns in range(6):
        broker = scene()
        half = broker.half(b"order")
        producer = broker.producer()
        producer.tell(half, "commit")
        for _ in range(turns):
            broker.turn()
        broker.crash()
        assert broker.producer().end(half, "commit").outcome == "commit"
        broker.dispatched()
        assert [each.body for each in broker.queue("orders", 1)] == [b"order"]


def test_a_commit_whose_mark_a_power_failure_cut_is_not_written_again(scene: Scenes) -> None:
    broker = scene()
    half = broker.half(b"order")
    broker.dispatched()
    (record,) = broker.queue(HALF_TOPIC)
    broker.put(committed(record))  # the beginning of the frame; the mark after it is lost
    broker.dispatched()
    wrote = broker.broker.positions["wrote"]
    broker.broker.positions.initialise("run_began", wrote)
    broker.crash()
    answer = broker.producer().end(half, "commit")
    assert answer.outcome == "commit" and answer.physical_offset > half.position
    broker.dispatched()
    assert [each.body for each in broker.queue("orders", 1)] == [b"order"]
    assert done(broker) == [half.offset]


def test_rocketmqs_marks_of_both_forms_are_read(scene: Scenes) -> None:
    broker = scene()
    halves = [broker.half(b"%d" % number) for number in range(3)]
    ours = op_records([0], "commit", iter("a"), 1, bytes(8))[0]
    broker.put(type(ours)(OP_TOPIC, b"0,2,", b"TAGS\x01d\x02", born_host=bytes(8)))
    broker.dispatched()
    broker.crash()
    broker.until(lambda: broker.actor._follower.table.open == 1)
    assert broker.producer().end(halves[1], "commit").outcome == "commit"
    answer = broker.producer().end(halves[0], "commit")
    assert isinstance(answer, Refused), "how it ended on RocketMQ nobody can tell"


def test_progress_is_saved_as_rocketmq_needs_it_and_a_start_goes_on_there(scene: Scenes) -> None:
    broker = scene()
    halves = [broker.half(b"%d" % number) for number in range(5)]
    producer = broker.producer()
    for number in (0, 1, 3):
        producer.end(halves[number], "commit")
    broker.dispatched()
    broker.pass_time(6000)
    file = broker.broker.paths.transactions
    broker.until(lambda: (found := load_transaction_progress(file)) and found.half == 2)
    progress = load_transaction_progress(file)
    assert progress is not None
    assert progress.rows() == {HALF_TOPIC: {0: 2}, OP_TOPIC: {0: progress.op}}
    named = [parse_op(each.body) for each in broker.queue(OP_TOPIC)[progress.op :]]
    assert (3,) in named, "who begins here still learns that 3 is done"


@pytest.mark.parametrize(
    ("offsets", "open_halves"),
    [
        ({HALF_TOPIC: {"0": 2}, OP_TOPIC: {"0": 3}}, {2, 4}),
        ({HALF_TOPIC: {"0": 3}, OP_TOPIC: {"0": 1}}, {4}),
        ({HALF_TOPIC: {"0": 1}}, {4}),
        ({HALF_TOPIC: {"1": 3}, OP_TOPIC: {"0": 4}}, {4}),
        ({}, {4}),
    ],
)
def test_a_start_goes_on_where_rocketmqs_offsets_say_that_it_was(
    scene: Scenes, offsets: dict[str, dict[str, int]], open_halves: set[int]
) -> None:
    """Of both topics: what it has not read of the one is not done, and what it has of the other is.
    Where it says nothing of half messages Penstock's own count."""
    broker = scene()
    for number in range(5):
        broker.half(b"%d" % number)
    for number in range(4):
        broker.put(Record(OP_TOPIC, b"%d," % number, b"TAGS\x01d\x02", born_host=bytes(8)))
    broker.dispatched()
    document = broker.broker.paths.consumer_offsets
    document.parent.mkdir(exist_ok=True)
    rows = {f"{topic}@{TRANSACTION_GROUP}": row for topic, row in offsets.items()}
    document.write_text(json.dumps({"offsetTable": rows}))
    broker.crash()
    broker.until(lambda: broker.actor._follower.is_at_end())
    table = broker.actor._follower.table
    assert set(table.open_from(table.base)) == open_halves


def test_where_rocketmqs_offsets_say_the_same_what_ended_before_them_is_still_known(
    scene: Scenes,
) -> None:
    """Those in consumerOffset.json are Penstock's own then, and its file knows more."""
    broker = scene()
    half = broker.half()
    answer = broker.producer().end(half, "rollback")
    broker.dispatched()
    broker.pass_time(6000)
    file = broker.broker.paths.transactions
    saved = broker.until(lambda: (it := load_transaction_progress(file)) and it.half and it)
    offsets = {f"{topic}@{TRANSACTION_GROUP}": row for topic, row in saved.rows().items()}
    document = broker.broker.paths.consumer_offsets
    document.parent.mkdir(exist_ok=True)
    document.write_text(json.dumps({"offsetTable": offsets}))
    broker.crash()
    assert broker.producer().end(half, "rollback") == answer


def test_progress_is_not_saved_before_the_log_is_on_disk_that_it_was_read_from(
    scene: Scenes,
) -> None:
    """A power failure may take the log's end, with a commit: a RocketMQ broker that goes on asks
    about its half message, unless the saved progress is past it."""
    broker = scene()
    assert broker.producer().end(broker.half(), "commit").outcome == "commit"
    broker.dispatched()
    flusher = broker.others.pop(1)
    broker.put(Record("orders", b"x", born_host=bytes(8)), ack="written")
    broker.pass_time(6000)
    file = broker.broker.paths.transactions
    for _ in range(10):
        broker.turn()
    assert broker.actor._follower.progress.half == 1
    assert load_transaction_progress(file) is None
    broker.others.insert(1, flusher)
    broker.until(lambda: (found := load_transaction_progress(file)) and found.half == 1)


def test_an_op_record_that_names_no_half_message_yet_is_not_needed_for_ever(scene: Scenes) -> None:
    """A client may have stored it; each start would read all op records from it on."""
    broker = scene()
    broker.put(Record(OP_TOPIC, b"1099511627776,", b"TAGS\x01d\x02", born_host=bytes(8)))
    assert broker.producer().end(broker.half(), "commit").outcome == "commit"
    broker.dispatched()
    progress = broker.actor._follower.progress
    broker.until(lambda: (progress.half, progress.op) == (1, 2), "both are past what is over")
    assert len(broker.queue(OP_TOPIC)) == 2


def test_of_what_has_ended_long_ago_nothing_is_kept(
    scene: Scenes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the last ones, of which somebody may still speak."""
    monkeypatch.setattr(half_table, "REMEMBERED", 5)
    monkeypatch.setattr(half_table, "_FORGOTTEN_AT_ONCE", 1)
    monkeypatch.setattr(half_queues, "_BLOCK", 1)
    broker = scene()
    halves = [broker.half(b"%d" % number) for number in range(20)]
    producer = broker.producer()
    for half in halves:
        producer.end(half, "rollback")
    broker.dispatched()
    follower = broker.actor._follower
    # what was put back is known by its first place for as long as its copy is
    follower._moved = {1: 3, 2: 15, 3: 17, 4: 14}
    assert [follower.stands_at(offset) for offset in (1, 4, 5)] == [17, 14, 5]
    broker.pass_time(6000)
    broker.until(lambda: follower.table.base == 15)
    assert follower._moved == {2: 15, 3: 17}
    assert len(follower._marks._blocks) <= 5
    file = broker.broker.paths.transactions
    broker.until(lambda: load_transaction_progress(file) == follower.progress)
    broker.crash()
    assert broker.actor._follower.table.base == 15
    assert {broker.producer().end(half, "rollback").outcome for half in halves[15:]} == {"rollback"}
    assert isinstance(broker.producer().end(halves[14], "rollback"), Refused)


def test_an_old_message_is_put_back_and_still_known_by_its_first_place(scene: Scenes) -> None:
    broker = scene(transaction_check_interval_ms=8000)
    old = broker.half(b"old")
    producer = broker.producer()
    for number in range(12):
        assert producer.end(broker.half(b"%d" % number), "rollback")
    broker.actor._checks.most_remembered = 8
    broker.until(lambda: broker.pass_time(1000) or len(broker.queue(HALF_TOPIC)) == 14)
    copy = broker.queue(HALF_TOPIC)[-1]
    assert decode_properties(copy.properties)["TRAN_PREPARED_QUEUE_OFFSET"] == str(old.offset)
    broker.dispatched()
    assert broker.producer().end(old, "commit").outcome == "commit"
    broker.dispatched()
    (message,) = broker.queue("orders", 1)
    assert (message.body, message.prepared_transaction_offset) == (b"old", copy.physical_offset)
    assert broker.actor._follower.table.open == 0


def test_a_commit_waits_until_the_message_stands_in_the_queue_that_it_was_put_back_to(
    scene: Scenes,
) -> None:
    """The writer has stored it, and the reput has not come to it."""
    broker = scene(transaction_check_interval_ms=8000)
    old = broker.half(b"old")
    producer = broker.producer()
    for number in range(12):
        assert producer.end(broker.half(b"%d" % number), "rollback")
    broker.dispatched()
    broker.actor._checks.most_remembered = 8
    reput = broker.others.pop()
    follower = broker.actor._follower
    broker.until(lambda: broker.pass_time(1000) or old.offset in follower._moved)
    assert follower._moved == {old.offset: follower.table.end}
    producer.tell(old, "commit")
    broker.until(lambda: broker.actor._requests._early, "the commit")
    broker.others.append(reput)
    assert producer.answer().outcome == "commit"
    broker.dispatched()
    assert [each.body for each in broker.queue("orders", 1)] == [b"old"]


@pytest.mark.parametrize("over", [0, 1])
def test_one_that_has_no_room_to_be_put_back_with_a_checksum_stays_and_can_be_ended(
    scene: Scenes, monkeypatch: pytest.MonkeyPatch, over: int
) -> None:
    monkeypatch.setattr("penstock.actors.transactions.checks.FEW", 0)
    broker = scene(transaction_check_interval_ms=8000, enabled_append_prop_crc=True)
    broker.actor._checks.most_remembered = 0
    own = {"UNIQ_KEY": "KEY0001", "note": "x"} | half_properties("orders", 1, "shop")
    copy = put_back(Record(HALF_TOPIC, b"old", encode_properties(own)), 0)
    room = MAX_PROPERTIES_BYTES - PROP_CRC_BYTES - len(copy.properties)
    half = broker.half(b"old", note="x" * (1 + room + over))
    for _ in range(20):
        broker.pass_time(1000)
        assert not over or not len(broker.actor._endings), "nothing is tried that is refused"
    assert (len(broker.queue(HALF_TOPIC)) > 1) == (not over)
    assert broker.producer().end(half, "commit").outcome == "commit"


def test_a_file_that_cannot_be_written_or_read_costs_no_transaction(
    scene: Scenes, capfd: pytest.CaptureFixture[str]
) -> None:
    broker = scene()
    file = broker.broker.paths.transactions
    file.mkdir(parents=True)
    half, lost = broker.half(b"order"), broker.half(b"lost")
    producer = broker.producer()
    assert producer.end(half, "commit").outcome == "commit"
    for _ in range(3):
        broker.pass_time(6000)
    assert load_transaction_progress(file) is None
    told = [line for line in capfd.readouterr().err.splitlines() if "cannot be written" in line]
    assert len(told) == 1, "tried again each time, and said once"
    file.rmdir()
    (segment,) = (broker.broker.paths.queue(HALF_TOPIC, 0)).iterdir()
    raw = segment.read_bytes()
    segment.write_bytes(raw[:20] + bytes(20) + raw[40:])  # the entry of `lost` leads nowhere
    assert isinstance(producer.end(lost, "commit"), Refused)
    register_through(broker, [producer], 40_000)
    assert broker.actor._follower.table.open == 1, "what cannot be read now is not given up"
    segment.write_bytes(raw)
    assert producer.end(lost, "commit").outcome == "commit"
    broker.pass_time(6000)
    broker.until(lambda: load_transaction_progress(file), "the saved progress")
