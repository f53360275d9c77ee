"""What became of a message follows from its records, and stays open where they do not say it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.shared.formats.delay_levels import SCHEDULE_TOPIC
from penstock.shared.formats.properties import encode_properties
from penstock.shared.formats.record import Record
from penstock.shared.messaging.delayed import Delay, delayed
from penstock.shared.messaging.half import committed, discarded, half_properties, put_back
from penstock.shared.messaging.system_topics import HALF_TOPIC, TIMER_TOPIC
from penstock.shared.messaging.traced import Kind, Outcome, Way, facts, linked, way_of

NOW_MS = 1_000_000


def _stored(record: Record, at: int, **changed: int) -> Record:
    return replace(record, physical_offset=at, store_timestamp_ms=NOW_MS - 60_000, **changed)


def _message(**properties: str) -> Record:
    return Record("orders", b"x", encode_properties({"UNIQ_KEY": "U", **properties}))


def _waiting(at: int, **delay: int) -> Record:
    return _stored(delayed(_message(), Delay(**delay)), at)


def _copy(waiting: Record, at: int) -> Record:
    return _stored(replace(waiting, topic="orders", queue_id=0), at)


def _linked(*records: Record) -> list[Way]:
    return linked([way_of(each) for each in records], NOW_MS)


@pytest.mark.parametrize(
    ("due_ms", "outcome"), [(NOW_MS + 1, Outcome.WAITING), (NOW_MS - 1, Outcome.OVERDUE)]
)
def test_without_a_copy_the_time_tells_waiting_from_overdue(due_ms: int, outcome: Outcome) -> None:
    (way,) = _linked(_waiting(0, out_ms=due_ms))
    assert (way.kind, way.due_ms, way.outcome) == (Kind.DELAYED, due_ms, outcome)
    assert (way.real_topic, way.real_queue) == ("orders", 0)


def test_a_message_that_was_sent_to_the_same_queue_is_no_copy() -> None:
    way, _ = _linked(_waiting(0, level=1), _stored(_message(), 1))
    assert way.outcome is Outcome.OVERDUE


def test_of_two_that_wait_for_one_place_it_is_not_guessed_which_was_delivered() -> None:
    first, second = _waiting(0, level=1), _waiting(1, level=1)
    *ways, _ = _linked(first, second, _copy(first, 2))
    assert [way.outcome for way in ways] == [Outcome.UNKNOWN] * 2
    ways = _linked(first, second, _copy(first, 2), _copy(second, 3))
    assert [way.led_to for way in ways] == [2, 3, None, None]


def test_a_recall_counts_for_the_message_that_it_names() -> None:
    waiting = _waiting(0, out_ms=NOW_MS + 1)
    for key, outcome in (("U", Outcome.RECALLED), ("V", Outcome.WAITING)):
        way, recall = _linked(waiting, _waiting(1, out_ms=NOW_MS + 1, recalls=key))
        assert (way.outcome, recall.kind) == (outcome, Kind.RECALL)


def test_a_half_message_leads_to_what_was_made_of_it() -> None:
    properties = {"UNIQ_KEY": "U"} | half_properties("orders", 1, "shop")
    half = _stored(Record(HALF_TOPIC, b"x", encode_properties(properties)), 10, queue_offset=7)
    assert _linked(half)[0].outcome is None, "its mark says it"
    again = _stored(put_back(half, 3), 20, queue_offset=9)
    for last, outcome in ((committed, Outcome.COMMITTED), (discarded, Outcome.DISCARDED)):
        ways = _linked(half, again, _stored(last(again), 30))
        assert [way.outcome for way in ways] == [Outcome.PUT_AGAIN, outcome, None]
        assert [way.led_to for way in ways] == [20, 30, None]


@pytest.mark.parametrize("number", ["²", "-1", "x", "9" * 5000])
def test_what_is_no_number_in_a_record_is_none(number: str) -> None:
    own = {"UNIQ_KEY": "U", "TIMER_OUT_MS": str(NOW_MS + 1), "TIMER_ROLL_TIMES": number}
    place = {"REAL_TOPIC": "orders", "REAL_QID": "0"}
    timer = _stored(Record(TIMER_TOPIC, b"x", encode_properties(own | place)), 0)
    assert _linked(timer)[0].outcome is Outcome.WAITING
    properties = {"UNIQ_KEY": "U", "TRANSACTION_CHECK_TIMES": number}
    half = Record(HALF_TOPIC, b"x", encode_properties(properties | half_properties("a", 1, "shop")))
    assert facts(way_of(_stored(half, 1)))["checks"] == 0
    by_level = Record(SCHEDULE_TOPIC, b"x", encode_properties({"DELAY": number}))
    assert way_of(_stored(by_level, 2)).due_ms is None
    record = _message(DELAY=number)
    assert delayed(record) == record
