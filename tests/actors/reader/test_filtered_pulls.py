"""The reader and filtered pulls: bounded looks in turns, and only what matches wakes anybody."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain, repeat
from typing import Any

import pytest

from penstock.actors.reader import Reader, filtered_pulls
from penstock.actors.reader.filtered_pulls import TURN_MS, FilteredPull, FilteredPulls
from penstock.actors.reader.held_pulls import HeldPull, Outcome
from penstock.actors.reput import Reput
from penstock.client.core.message import split_records
from penstock.shared.filters.message_filter import SQL92, TAG, parse_filter, parse_tags
from penstock.shared.memory.queue_table import QueueTable
from penstock.shared.wire.messages import Pull, Pulled, Refused, Subscription, decode_consume_answer
from penstock.shared.wire.messages import encode as encoded

# a look takes in 10 entries
SETTINGS = {"transient_store_pool_enable": False, "max_filter_message_size_bytes": 200}
NEVER_MS = 20_000


class Client:
    """A filtering consumer by hand."""

    def __init__(self, broker: Any, reader: Any) -> None:
        self.broker, self.reader = broker, reader
        self.socket = broker.client(broker.run.endpoints.consume)
        self.request = 0

    def pull(
        self,
        cursors: dict[int, int],
        expression: str,
        kind: str = TAG,
        ends: dict[int, int] | None = None,
        wait_ms: int = NEVER_MS,
        known: int = 9,
        answers: int = 1,
    ) -> tuple[Any, list[Any]]:
        self.request += 1
        wanted = Subscription(kind, expression, ends or {}, "", 0)
        pull = Pull(self.request, "orders", cursors, known, 1 << 20, wait_ms, wanted)
        return self.ask(encoded(pull), answers=answers)

    def ask(self, *parts: bytes, answers: int = 1) -> tuple[Any, list[Any]]:
        found = self.broker.ask(self.reader, self.socket, *parts, answers=answers)
        if not found:
            return None, []
        payload = b"".join(found[0][1:])
        return decode_consume_answer(found[0][0]), list(split_records(payload))

    def settle(self) -> None:
        """The request has come, and all that can be looked at has been."""
        while not len(self.reader._filtered):
            self.reader.work()
        while self.reader.work():
            continue

    def hears_nothing(self) -> bool:
        return not self.socket.poll(20)


Running = tuple[Any, Any, Client, Callable[..., None]]


@pytest.fixture
def running(pipeline: Callable[..., Any], work: Callable[..., None]) -> Running:
    """(broker, reader, client, store): store(tags of messages, queue)."""
    broker = pipeline(**SETTINGS)
    reader, reput = broker.start(Reader), broker.start(Reput)

    def store(*tags: str, queue_id: int = 0) -> None:
        for each in tags:
            broker.append(size=1, queue_id=queue_id, properties={"TAGS": each, "n": "5"})
        for name in ("committed", "flushed"):
            broker.positions.initialise(name, broker.positions["wrote"])
        work(reput)

    return broker, reader, Client(broker, reader), store


def nexts(answer: Any) -> dict[int, int]:
    assert isinstance(answer, Pulled)
    return {part.queue_id: part.next_offset for part in answer.slices}


@pytest.mark.parametrize(("kind", "expression"), [(TAG, "a"), (SQL92, "TAGS = 'a' AND n = 5")])
def test_a_match_far_behind_is_found_with_one_request(
    running: Running, kind: str, expression: str
) -> None:
    """60 entries are six looks, and two segments of the queue."""
    _, _, client, store = running
    store(*["b"] * 60, "a", "b", "a")
    answer, found = client.pull({0: 0}, expression, kind)
    assert [(m.tags, m.queue_offset) for m in found] == [("a", 60), ("a", 62)]
    assert nexts(answer) == {0: 63}


def test_a_reader_does_not_sleep_before_it_has_looked_at_a_pull_that_has_come(
    running: Running,
) -> None:
    _, reader, client, _ = running
    client.pull({0: 0}, "a", answers=0)
    while not len(reader._filtered):
        reader.work()
    assert reader.has_more()
    while reader.work():
        continue
    assert not reader.has_more()


def test_tags_that_share_a_hash_are_left_to_the_consumer(running: Running) -> None:
    _, _, client, store = running
    store("Aa", "x", "BB")
    _, found = client.pull({0: 0}, "Aa")
    assert [message.tags for message in found] == ["Aa", "BB"]


def test_only_what_matches_wakes_a_pull_and_what_does_not_is_passed(running: Running) -> None:
    _, _, client, store = running
    store("b")
    client.pull({0: 0, 1: 0}, "a", answers=0)
    client.settle()
    for _ in range(3):
        store(*["b"] * 15)
        client.settle()
        assert client.hears_nothing()
    store("a", queue_id=1)
    answer, found = client.ask()
    assert [message.queue_id for message in found] == [1]
    assert nexts(answer) == {0: 46, 1: 1}, "what was looked at is not looked at again"


def test_a_pull_whose_time_is_over_says_how_far_it_came(running: Running) -> None:
    broker, _, client, store = running
    store(*["b"] * 25)
    client.pull({0: 3, 1: 0}, "a", wait_ms=500, answers=0)
    client.settle()
    broker.clock.advance(499)
    client.settle()
    assert client.hears_nothing()
    broker.clock.advance(1)
    answer, found = client.ask()
    assert nexts(answer) == {0: 25} and found == []


def test_what_was_searched_before_it_expired_is_told_as_if_it_were_there(
    running: Running,
) -> None:
    """A consumer that is told of a later beginning would take what was passed for lost."""
    broker, reader, client, store = running
    store(*["b"] * 25)
    client.pull({0: 3}, "a", wait_ms=500, answers=0)
    client.settle()
    table = QueueTable(broker.run.queues, writable=True)
    table.publish_min_offset(reader._queues.queues("orders")[0], 10)
    table.close()
    broker.clock.advance(500)
    answer, _ = client.ask()
    assert [(each.next_offset, each.min_offset) for each in answer.slices] == [(25, 3)]


def test_a_pull_asked_again_goes_on_and_gets_one_answer(running: Running) -> None:
    broker, _, client, store = running
    store(*["b"] * 25)
    client.pull({0: 0}, "a", wait_ms=500, answers=0)
    client.settle()
    broker.clock.advance(400)
    client.request -= 1
    client.pull({0: 0}, "a", wait_ms=500, answers=0)
    client.settle()
    broker.clock.advance(100)
    answer, _ = client.ask()
    assert nexts(answer) == {0: 25} and client.hears_nothing()


def test_another_pull_takes_the_place_of_the_one_before(running: Running) -> None:
    _, reader, client, store = running
    store("b")
    client.pull({0: 0}, "a", answers=0)
    client.settle()
    plain = Pull(99, "orders", {0: 0}, 9, 1 << 20, 0)
    answer, found = client.ask(encoded(plain))
    assert answer.request == 99 and len(found) == 1 and len(reader._filtered) == 0


def test_a_pull_ends_where_it_is_told(running: Running) -> None:
    _, _, client, store = running
    store(*["b"] * 30, "a")
    answer, found = client.pull({0: 0}, "a", ends={0: 30})
    assert nexts(answer) == {0: 30} and found == []


def test_the_bytes_of_an_answer_are_those_of_all_its_queues_together(running: Running) -> None:
    broker, _, client, store = running
    store("a")
    record_bytes = broker.positions["wrote"]
    store("a", "a")
    store("a", "a", "a", queue_id=1)
    wanted = Subscription(TAG, "a", {}, "", 0)
    pull = Pull(1, "orders", {0: 0, 1: 0}, 9, 2 * record_bytes, NEVER_MS, wanted)
    _, found = client.ask(encoded(pull))
    assert [(each.queue_id, each.queue_offset) for each in found] == [(0, 0), (0, 1)]


def test_each_look_is_bounded_and_pulls_take_turns(running: Running) -> None:
    """Two filters that never match, the first of them on two queues."""
    broker, reader, _, store = running
    store(*["b"] * 45)
    store(*["b"] * 45, queue_id=1)
    answers: list[Outcome] = []
    filtered = FilteredPulls(reader._queues, 200, lambda: 1 << 20, lambda: 0)
    chosen = parse_tags("a")
    assert chosen is not None
    cursors = {b"one": {0: 0, 1: 0}, b"two": {0: 0}}
    for peer, begin in cursors.items():
        pull = Pull(1, "orders", begin, 9, 1 << 20, NEVER_MS)
        filtered.put(FilteredPull(HeldPull(peer, pull, NEVER_MS, 0), chosen, {}, begin, {}))
    steps = []
    for _ in range(20):
        before = {peer: dict(each) for peer, each in cursors.items()}
        # by this clock one look takes all the time of a turn
        times = chain([0, 0], repeat(TURN_MS))
        filtered._now_ms = partial(next, times)
        answers += filtered.turn(broker.positions["dispatched"])
        assert filtered.looks <= 1
        moved = [
            (peer, queue, after - before[peer][queue])
            for peer in cursors
            for queue, after in cursors[peer].items()
            if after > before[peer][queue]
        ]
        assert len({peer for peer, _, _ in moved}) <= 1 and sum(step[2] for step in moved) <= 10
        steps += moved
    assert cursors == {b"one": {0: 45, 1: 45}, b"two": {0: 45}} and answers == []
    first = [(peer, queue) for peer, queue, _ in steps[:4]]
    assert first == [(b"one", 0), (b"two", 0), (b"one", 1), (b"two", 0)], "none waits for another"


def test_a_look_ends_when_its_time_is_over_and_not_before_a_record(running: Running) -> None:
    """A condition may take long with each record."""
    broker, reader, _, store = running
    store(*["b"] * 9)
    filtered = FilteredPulls(reader._queues, 200, lambda: 1 << 20, lambda: 0)
    chosen = parse_filter(SQL92, "n = 6")
    assert chosen is not None
    cursors = {0: 0}
    pull = Pull(1, "orders", {0: 0}, 9, 1 << 20, NEVER_MS)
    filtered.put(FilteredPull(HeldPull(b"one", pull, NEVER_MS, 0), chosen, {}, cursors, {}))
    for expected in (1, 2, 3):
        # the time is over as soon as anything was looked at
        times = chain([0, 0], repeat(TURN_MS))
        filtered._now_ms = partial(next, times)
        assert list(filtered.turn(broker.positions["dispatched"])) == []
        assert cursors == {0: expected}
    filtered._now_ms = lambda: 0
    assert list(filtered.turn(broker.positions["dispatched"])) == []
    assert cursors == {0: 9}


def test_an_offset_behind_the_end_is_set_back_once_the_queues_are_complete(
    running: Running, work: Callable[..., None]
) -> None:
    broker, _, client, store = running
    store("a", "a")
    answer, _ = client.pull({0: 7, 3: 4}, "a")
    assert nexts(answer) == {0: 2, 3: 0}
    # acknowledged, and not yet in its queue: 3 may be right
    broker.append(size=1, properties={"TAGS": "a"})
    for name in ("committed", "flushed"):
        broker.positions.initialise(name, broker.positions["wrote"])
    client.pull({0: 3}, "a", answers=0)
    client.settle()
    assert client.hears_nothing()
    store("a")
    _, found = client.ask()
    assert [message.queue_offset for message in found] == [3]


def test_an_offset_that_has_expired_is_told_where_the_queue_begins(running: Running) -> None:
    broker, reader, client, store = running
    store(*["a"] * 5)
    table = QueueTable(broker.run.queues, writable=True)
    table.publish_min_offset(reader._queues.queues("orders")[0], 3)
    table.close()
    answer, found = client.pull({0: 1}, "a")
    (part,) = answer.slices
    assert (part.next_offset, part.min_offset, part.max_offset) == (1, 3, 5) and found == []


@pytest.mark.parametrize(("kind", "expression"), [(SQL92, "a >"), (TAG, "||"), ("JS", "x")])
def test_a_bad_expression_is_an_error_for_its_sender_alone(
    running: Running, kind: str, expression: str
) -> None:
    _, _, client, store = running
    store("a")
    answer, _ = client.pull({0: 0}, expression, kind)
    assert isinstance(answer, Refused) and answer.status == "SUBSCRIPTION_PARSE_FAILED"
    assert answer.hint
    _, found = client.pull({0: 0}, "a")
    assert len(found) == 1


def test_of_a_queue_that_cannot_be_read_its_consumer_is_told_with_what_the_others_have(
    running: Running,
) -> None:
    broker, _, client, store = running
    store("a")
    store("a", queue_id=1)
    file = next(broker.paths.queue("orders", 0).iterdir())
    content = file.read_bytes()
    file.write_bytes(b"")
    answer, _ = client.pull({0: 0}, "a", known=2)
    assert not answer.slices and "not as long as configured" in answer.unreadable[0].what
    answer, found = client.pull({0: 0, 1: 0}, "a", known=2)
    assert [each.queue_id for each in answer.unreadable] == [0]
    assert [each.queue_id for each in found] == [1] and nexts(answer) == {1: 1}
    file.write_bytes(content)
    _, found = client.pull({0: 0}, "a")
    assert len(found) == 1


def test_of_a_queue_whose_file_is_gone_its_consumer_is_told_at_once(running: Running) -> None:
    """What has expired is below the queue's first offset. Of any other file that is gone nobody
    would hear, and the reader would look for it without end."""
    broker, _, client, store = running
    store("a")
    next(broker.paths.queue("orders", 0).iterdir()).unlink()
    answer, _ = client.pull({0: 0}, "a")
    assert not answer.slices and [each.queue_id for each in answer.unreadable] == [0]


def test_a_file_that_goes_while_it_is_searched_is_no_error(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader has looked at the queue's range, and then the cleaner comes."""
    broker, reader, client, store = running
    store(*["b"] * 60)
    slot, ranges = reader._queues.queues("orders")[0], reader._queues.range
    first, _ = sorted(broker.paths.queue("orders", 0).iterdir())

    def range_before(asked: int) -> tuple[int, int]:
        found: tuple[int, int] = ranges(asked)
        if first.exists():
            table = QueueTable(broker.run.queues, writable=True)
            table.publish_min_offset(slot, 50)
            table.close()
            first.unlink()
        return found

    monkeypatch.setattr(reader._queues, "range", range_before)
    answer, _ = client.pull({0: 0}, "a")
    (part,) = answer.slices
    assert (part.next_offset, part.min_offset) == (0, 50) and not answer.unreadable


def test_a_queue_that_is_deleted_while_it_is_searched_is_no_error(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, reader, client, store = running
    store(*["b"] * 5)
    slot, ranges = reader._queues.queues("orders")[0], reader._queues.range

    def range_before(asked: int) -> tuple[int, int]:
        found: tuple[int, int] = ranges(asked)
        table = QueueTable(broker.run.queues, writable=True)
        table.mark_deleted(slot)
        table.close()
        broker.positions.initialise("deleted_queues", 1)
        return found

    monkeypatch.setattr(reader._queues, "range", range_before)
    client.pull({0: 0}, "a", wait_ms=500, answers=0)
    client.settle()
    assert client.hears_nothing(), "it waits for another topic of that name"
    broker.clock.advance(500)
    answer, found = client.ask()
    assert not answer.unreadable and found == []


def test_a_pull_is_answered_when_its_topic_gets_another_queue_and_not_before(
    running: Running,
) -> None:
    _, _, client, store = running
    store("b")
    client.pull({0: 1}, "a", known=1, answers=0)
    client.settle()
    assert client.hears_nothing()
    store("b", queue_id=3)
    answer, found = client.ask()
    assert answer.queue_ids == (0, 3) and found == []


BIG = 1 << 20


@pytest.mark.parametrize(
    ("most_bytes", "most_pulled", "room", "count"),
    [(0, BIG, BIG, 1), (BIG, 1, BIG, 1), (BIG, BIG, 1, 1), (BIG, BIG, BIG, 3)],
)
def test_an_answer_has_as_much_as_was_asked_for_and_as_there_is_room_for(
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
    most_bytes: int,
    most_pulled: int,
    room: int,
    count: int,
) -> None:
    """And one message at least."""
    monkeypatch.setattr(filtered_pulls, "MAX_PULL_BYTES", most_pulled)
    broker, reader, _, store = running
    store("a", "a", "a")
    filtered = FilteredPulls(reader._queues, 200, lambda: room, lambda: 0)
    chosen = parse_tags("a")
    assert chosen is not None
    pull = Pull(1, "orders", {0: 0}, 9, most_bytes, NEVER_MS)
    filtered.put(FilteredPull(HeldPull(b"one", pull, NEVER_MS, 0), chosen, {}, {0: 0}, {}))
    (outcome,) = filtered.turn(broker.positions["dispatched"])
    assert [each.next_offset for each in outcome.slices] == [count]


def test_a_look_takes_in_one_entry_at_least(running: Running) -> None:
    broker, reader, _, store = running
    store("b", "b", "a")
    filtered = FilteredPulls(reader._queues, 0, lambda: BIG, lambda: 0)
    chosen = parse_tags("a")
    assert chosen is not None
    pull = Pull(1, "orders", {0: 0}, 9, BIG, NEVER_MS)
    filtered.put(FilteredPull(HeldPull(b"one", pull, NEVER_MS, 0), chosen, {}, {0: 0}, {}))
    (outcome,) = filtered.turn(broker.positions["dispatched"])
    assert [each.next_offset for each in outcome.slices] == [3] and filtered.looks == 3


def test_a_pull_of_any_other_number_takes_the_place_of_the_one_before(running: Running) -> None:
    """A consumer that has begun again counts from 1."""
    _, reader, _, _ = running
    filtered = FilteredPulls(reader._queues, 200, lambda: BIG, lambda: 0)
    chosen = parse_tags("a")
    assert chosen is not None
    for number, until_ms in ((7, 500), (1, 900), (9, 700)):
        pull = Pull(number, "orders", {0: number}, 9, BIG, NEVER_MS)
        held = HeldPull(b"one", pull, until_ms, 0)
        filtered.put(FilteredPull(held, chosen, {}, {0: number}, {}))
        assert [each.pull.request for each in filtered.waiting()] == [number]
        assert filtered.due_ms == 500, "it looks then whose time is over"


def test_a_reader_that_stops_says_how_far_it_came(running: Running) -> None:
    _, reader, client, store = running
    store(*["b"] * 12)
    client.pull({0: 0}, "a", answers=0)
    client.settle()
    for outcome in reader._filtered.answer_all():
        reader._send(outcome)
    answer, _ = client.ask()
    assert nexts(answer) == {0: 12}


def test_after_all_connections_have_closed_a_consumer_that_comes_back_begins_afresh(
    running: Running,
) -> None:
    """Its pull and those of others were amid their turns."""
    broker, reader, _, store = running
    store(*["b"] * 25, "a")
    filtered = FilteredPulls(reader._queues, 200, lambda: 1 << 20, lambda: 0)
    chosen = parse_tags("a")
    assert chosen is not None

    def put(peer: bytes) -> None:
        pull = Pull(1, "orders", {0: 0}, 9, 1 << 20, NEVER_MS)
        filtered.put(FilteredPull(HeldPull(peer, pull, NEVER_MS, 0), chosen, {}, {0: 0}, {}))

    for peer in (b"one", b"two"):
        put(peer)
    filtered.clear()
    assert (len(filtered), filtered.has_turns, filtered.waiting()) == (0, False, [])
    put(b"two")
    (outcome,) = filtered.turn(broker.positions["dispatched"])
    assert outcome.peer == b"two" and [each.next_offset for each in outcome.slices] == [26]
    assert (len(filtered), filtered.has_turns) == (0, False)


def test_who_is_gone_is_looked_at_no_more(running: Running) -> None:
    broker, reader, _, store = running
    store("a")
    filtered = FilteredPulls(reader._queues, 200, lambda: 1 << 20, lambda: 0)
    chosen = parse_tags("a")
    assert chosen is not None
    for peer in (b"one", b"two"):
        pull = Pull(1, "orders", {0: 0}, 9, 1 << 20, NEVER_MS)
        filtered.put(FilteredPull(HeldPull(peer, pull, NEVER_MS, 0), chosen, {}, {0: 0}, {}))
    filtered.drop(b"one")
    assert [each.peer for each in filtered.waiting()] == [b"two"]
    assert [each.peer for each in filtered.turn(broker.positions["dispatched"])] == [b"two"]


def test_pulls_take_turns_of_bounded_looks_and_wait_for_the_first_whose_time_is_over(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sleeps until `due_ms` misses nobody's time, and wakes for nothing."""
    monkeypatch.setattr(filtered_pulls, "LOOKS_AT_ONCE", 3)
    broker, reader, _, store = running
    store("b")
    now_ms = 0
    filtered = FilteredPulls(reader._queues, 200, lambda: 1 << 20, lambda: now_ms)
    chosen = parse_tags("a")
    assert chosen is not None
    untils = {b"one": 800, b"two": 500, b"three": 900, b"four": 700, b"five": 500}

    def turn() -> tuple[int, set[bytes], int]:
        told = {outcome.peer for outcome in filtered.turn(broker.positions["dispatched"])}
        return filtered.looks, told, filtered.due_ms

    for peer, until_ms in untils.items():
        pull = Pull(1, "orders", {0: 0}, 9, 1 << 20, until_ms)
        filtered.put(FilteredPull(HeldPull(peer, pull, until_ms, 0), chosen, {}, {0: 0}, {}))
    assert [turn() for _ in range(3)] == [(3, set(), 500), (2, set(), 500), (0, set(), 500)]
    now_ms = 499
    assert turn() == (0, set(), 500)
    now_ms = 500
    assert turn() == (0, {b"two", b"five"}, 700)
    filtered.drop(b"four")
    now_ms = 700
    assert turn() == (0, set(), 800)
    now_ms = 899
    assert turn() == (0, {b"one"}, 900)
    filtered.drop(b"three")
    assert turn() == (0, set(), filtered_pulls.NEVER_MS)
    for peer in (b"one", b"two"):
        pull = Pull(2, "orders", {0: 0}, 9, 1 << 20, 100)
        filtered.put(FilteredPull(HeldPull(peer, pull, 1000, 0), chosen, {}, {0: 0}, {}))
    now_ms = 1000
    assert turn() == (2, {b"one", b"two"}, filtered_pulls.NEVER_MS)
