"""The values of groups that work exactly once, compared with a plain model: a dictionary to which
each record of the log is applied in turn. What a writer says of them, saves, and finds again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.actors.committer import Committer
from penstock.actors.flusher import Flusher
from penstock.actors.reput import Reput
from penstock.actors.writer import Writer, exact_offsets
from penstock.actors.writer.exact_offsets import LOADING_MS, SAVE_MS, ExactOffsets
from penstock.shared.errors import BrokerBusy, OffsetsMoved, StoreDamaged, StoreUnavailable
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record, encode_record, pack_host
from penstock.shared.messaging.offsets_record import (
    ANY,
    NONE,
    OFFSETS_QUEUE,
    OffsetsMove,
    move_of,
)
from penstock.shared.messaging.system_topics import OFFSETS_TOPIC
from penstock.shared.process.doorbells import LAZY_MS
from penstock.shared.process.retry import RETRY_MS
from penstock.shared.store.saved_offsets import SavedOffsets, load_offsets, save_offsets

Values = dict[str, dict[str, dict[int, int]]]
Topics = dict[str, dict[int, tuple[int, int]]]


class Log:
    """A log to which moves are appended by hand, and the writer's view of it."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.model: Values = {}
        self.count = 0

    def append(self, group: str, topics: Topics) -> tuple[OffsetsMove, int, int]:
        """Store a move as a frame of its own, and apply it to the model."""
        at = self.broker.positions["wrote"]
        body, properties = move_of(group, topics)
        self.raw(body, properties)
        for topic, queues in topics.items():
            for queue, (_, to) in queues.items():
                found = self.model.setdefault(group, {}).setdefault(topic, {})
                found.pop(queue, None)
                if to != NONE:
                    found[queue] = to
            if not self.model[group][topic]:
                del self.model[group][topic]
        if not self.model[group]:
            del self.model[group]
        self.count += 1
        return OffsetsMove(group, topics), self.count - 1, at

    def raw(self, body: bytes, properties: dict[str, str]) -> None:
        raw = encode_properties(properties)
        record = Record(OFFSETS_TOPIC, body, raw, OFFSETS_QUEUE, born_host=pack_host("::1", 1))
        self.broker.append_frame(OFFSETS_TOPIC, OFFSETS_QUEUE, encode_record(record))

    def start(self) -> ExactOffsets:
        self.broker.start(Writer)  # of all that it has, this alone is used
        exact: ExactOffsets = next(reversed(self.broker._living.values()))[0]._exact
        return exact

    def found(self) -> ExactOffsets:
        """Those of a new writer that has found the values."""
        exact = self.start()
        while exact._loading is not None:
            assert exact.turn()
        return exact


def values(count: int) -> Topics:
    return {"in": {queue: (NONE, 10 + queue) for queue in range(count)}}


@pytest.fixture
def log(pipeline: Callable[..., Any]) -> Log:
    return Log(pipeline())


MOVES = st.lists(
    st.tuples(
        st.sampled_from("gh"),
        st.dictionaries(
            st.sampled_from(["a", "b"]),
            st.dictionaries(
                st.integers(0, 2), st.tuples(st.just(ANY), st.integers(NONE, 3)), min_size=1
            ),
            min_size=1,
        ),
    ),
    max_size=12,
)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(before=MOVES, after=MOVES, is_queued=st.booleans())
def test_a_new_writer_finds_what_the_log_says_and_counts_it(
    pipeline: Callable[..., Any], before: Any, after: Any, is_queued: bool
) -> None:
    log = Log(pipeline())
    for group, topics in before:
        log.append(group, topics)
    if is_queued:
        others = [log.broker.start(each) for each in (Committer, Flusher, Reput)]
        while log.broker.positions["dispatched"] < log.broker.positions["wrote"]:
            log.broker.clock.advance(LAZY_MS)
            [each.work() for each in others]
    exact = log.found()
    for group, topics in after:
        move, offset, at = log.append(group, topics)
        exact.check(move)
        exact.will_move(at)
        exact.moved(move, offset, 1)
    again = log.found()
    for each in (exact, again):
        assert each._offsets == log.model
        counted = sum(len(queues) for found in log.model.values() for queues in found.values())
        assert (each._count, each._next) == (counted, log.count)
    assert again._records == log.count and bool(again._unsaved) == bool(log.count)


def test_values_are_saved_after_this_many_records_or_this_long_after_the_first(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_offsets, "SAVE_RECORDS", 3)
    exact, broker = log.found(), log.broker
    file = broker.paths.exact_offsets

    def move(group: str, queue: int) -> None:
        found, offset, at = log.append(group, {"in": {queue: (NONE, 1)}})
        exact.will_move(at)
        exact.moved(found, offset, 1)

    def turn() -> bool:
        """Whether it is saved once everything is on the disk."""
        broker.positions.initialise("flushed", broker.positions["wrote"])
        exact.turn()
        exact.turn()
        return file.exists()

    for number in range(3):
        assert not turn()
        move("g", number)
    assert turn()
    saved = load_offsets(file)
    assert saved.offsets == log.model
    assert (saved.queue_offset, saved.log_offset) == (3, broker.positions["wrote"])
    assert broker.positions["unsaved_offsets"] == 0
    file.unlink()
    broker.clock.advance(SAVE_MS)
    assert not turn(), "nothing has moved"
    move("g", 5)
    broker.clock.advance(SAVE_MS - 1)
    move("g", 6)
    assert not turn()
    broker.clock.advance(1)
    assert turn() and load_offsets(file).offsets == log.model


def test_what_moves_while_values_are_on_their_way_to_the_disk_keeps_its_place_in_the_log(
    log: Log,
) -> None:
    exact, broker = log.found(), log.broker
    for group in ("g", "h"):
        move, offset, at = log.append(group, values(1))
        exact.will_move(at)
        exact.moved(move, offset, 1)
        if group == "g":
            wrote = broker.positions["wrote"]
            exact.prepare_to_save(wrote)
    broker.positions.initialise("flushed", wrote - 1)
    assert exact.turn() == 0 and not broker.paths.exact_offsets.exists()
    broker.positions.initialise("flushed", wrote)
    assert exact.turn() == 1
    assert load_offsets(broker.paths.exact_offsets).offsets == {"g": log.model["g"]}
    assert broker.positions["unsaved_offsets"] == wrote
    exact.close()  # the disk has not yet what this would follow from
    assert load_offsets(broker.paths.exact_offsets).offsets == {"g": log.model["g"]}
    assert log.found()._offsets == log.model


def test_a_disk_that_cannot_save_is_told_and_tried_again_after_a_while(log: Log) -> None:
    exact, broker = log.found(), log.broker
    told: list[str] = []
    exact._report = told.append
    move, offset, at = log.append("g", values(1))
    exact.will_move(at)
    exact.moved(move, offset, 1)
    wrote = broker.positions["wrote"]
    broker.positions.initialise("flushed", wrote)
    blocked = broker.paths.exact_offsets.with_name(broker.paths.exact_offsets.name + ".tmp")
    blocked.mkdir()  # what is written before it gets the name
    exact.prepare_to_save(wrote)
    assert exact.turn() == 1 and len(told) == 1 and "trying again" in told[0]
    assert exact.turn() == 0 and broker.positions["unsaved_offsets"] == max(at, 1)
    blocked.rmdir()
    broker.clock.advance(SAVE_MS - 1)
    assert exact.turn() == 0 and exact._saving is None
    broker.clock.advance(1)
    exact.turn()
    assert exact.turn() == 1 and load_offsets(broker.paths.exact_offsets).offsets == log.model
    assert len(told) == 1


def test_a_disk_that_cannot_be_read_is_told_once_and_asked_again_until_it_can(log: Log) -> None:
    log.append("g", values(1))
    save_offsets(log.broker.paths.exact_offsets, msgspec.json.encode(SavedOffsets(0, 0, {})))
    file = log.broker.paths.exact_offsets
    aside = file.with_name("aside")
    file.rename(aside)
    file.mkdir()
    exact, told = log.start(), list[str]()
    exact._report = told.append
    move = OffsetsMove("g", values(1))
    with pytest.raises(BrokerBusy) as busy:
        exact.check(move)
    assert busy.value.retry_after_ms == LOADING_MS
    for _ in range(3):
        assert exact.turn() == 1 and len(told) == 1 and told[0].endswith("trying again")
        with pytest.raises(StoreUnavailable, match="Is a directory"):
            exact.check(move)
        log.broker.clock.advance(RETRY_MS - 1)
        assert exact.turn() == 0, "it waits"
        log.broker.clock.advance(1)
    file.rmdir()
    aside.rename(file)
    while exact._loading is not None:
        assert exact.turn() == 1
    assert len(told) == 2 and told[1].endswith("are read")
    with pytest.raises(OffsetsMoved):
        exact.check(move)
    assert exact._offsets == log.model


def test_damage_is_told_once_and_refuses_for_good(log: Log) -> None:
    log.broker.paths.exact_offsets.write_bytes(b"{")
    exact, told = log.start(), list[str]()
    exact._report = told.append
    assert exact.turn() == 1 and len(told) == 1 and "cannot be read" in told[0]
    log.broker.clock.advance(2 * SAVE_MS)
    assert exact.turn() == 0 and len(told) == 1
    with pytest.raises(StoreDamaged):
        exact.check(OffsetsMove("g", values(1)))
    exact.close()
    assert log.broker.paths.exact_offsets.read_bytes() == b"{"


def test_what_is_no_move_is_passed_over_and_told(log: Log) -> None:
    log.append("g", values(1))
    log.raw(b"filler", {})
    log.raw(b'{"records":3}', {})
    log.count += 2
    exact, told = log.start(), list[str]()
    exact._report = told.append
    log.append("h", values(2))
    while exact._loading is not None:
        exact.turn()
    assert exact._offsets["g"] == log.model["g"] and len(told) == 1 and "record 1 " in told[0]


@pytest.mark.parametrize("count", [1, 60, 1500])
@pytest.mark.parametrize("in_topics", [1, 30])
def test_a_refusal_tells_as_many_present_values_as_it_has_room_for_and_one_at_least(
    log: Log, count: int, in_topics: int
) -> None:
    exact = log.found()
    topics: Topics = {}
    for number in range(count):
        topics.setdefault(f"topic{number % in_topics}", {})[number] = (NONE, 7)
    exact.moved(OffsetsMove("g", topics), 0, 1)
    wrong = {
        topic: {queue: (7 if queue % 2 else 6, 8) for queue in queues}
        for topic, queues in topics.items()
    }
    with pytest.raises(OffsetsMoved) as raised:
        exact.check(OffsetsMove("g", wrong))
    told = raised.value.offsets
    even = [(topic, queue) for topic, queues in wrong.items() for queue in queues if not queue % 2]
    model: dict[str, dict[int, int]] = {}
    for topic, queue in even:
        if sum(len(each) + 8 + sum(len(f'"{q}":7,') for q in model[each]) for each in model) < 400:
            model.setdefault(topic, {})[queue] = 7
    assert told == model
    assert told and (count < 1500 or sum(map(len, told.values())) < len(even))


@pytest.mark.parametrize(("most", "is_taken"), [(4, True), (3, False)])
def test_the_most_values_are_counted_with_those_that_a_move_adds_and_no_others(
    log: Log, monkeypatch: pytest.MonkeyPatch, most: int, is_taken: bool
) -> None:
    exact = log.found()
    exact.moved(OffsetsMove("g", values(3)), 0, 1)
    monkeypatch.setattr(exact_offsets, "MAX_VALUES", most)
    # one that stays, one that moves, one that ends, one that is not there and stays away, and a new
    move: Topics = {"in": {0: (10, 10), 1: (11, 12), 2: (12, NONE), 3: (NONE, NONE)}}
    exact.check(OffsetsMove("g", move))
    move["in"][4] = NONE, 1
    if is_taken:
        exact.check(OffsetsMove("g", move))
    else:
        with pytest.raises(StoreUnavailable):
            exact.check(OffsetsMove("g", move))


def test_a_writer_that_stops_saves_what_the_disk_has_and_the_next_keeps_nothing_of_the_log(
    log: Log,
) -> None:
    exact, broker = log.found(), log.broker
    move, offset, at = log.append("g", values(2))
    exact.will_move(at)
    exact.moved(move, offset, 1)
    broker.positions.initialise("flushed", broker.positions["wrote"])
    exact.close()
    assert load_offsets(broker.paths.exact_offsets).offsets == log.model
    broker.positions.initialise("unsaved_offsets", 77)  # as the last writer may have left it
    again = log.found()
    assert again._offsets == log.model and broker.positions["unsaved_offsets"] == 0


def test_the_log_is_kept_for_no_values_where_there_are_none(log: Log) -> None:
    log.broker.positions.initialise("unsaved_offsets", 77)
    assert log.start()._loading is None
    assert log.broker.positions["unsaved_offsets"] == 0
