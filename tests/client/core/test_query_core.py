"""One question at a time: what is asked, when again, and which answers count."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from penstock.client.core.query_core import (
    DEFAULT_MAX_NUM,
    REPEAT_MS,
    QueryCore,
    Question,
    by_id,
    by_key,
    by_unique_key,
)
from penstock.shared.errors import (
    BrokerTimeout,
    InvalidArgument,
    ProtocolError,
    TopicNotFound,
    WrongStore,
)
from penstock.shared.formats.message_id import offset_message_id
from penstock.shared.formats.record import Record, encode_record
from penstock.shared.wire import messages
from penstock.shared.wire.messages import encode, refusal

MOMENT = dt.datetime(2026, 5, 4, 3, 2, 1, 500_000, dt.UTC)
AT_MS = 1_777_863_721_500
LAST_MS = (1 << 62) - 1


@pytest.mark.parametrize(
    ("begin", "end", "asked"),
    [
        (None, None, (0, LAST_MS)),
        (MOMENT, None, (AT_MS, LAST_MS)),
        (None, MOMENT, (0, AT_MS)),
        (AT_MS, MOMENT, (AT_MS, AT_MS)),
        (0, LAST_MS, (0, LAST_MS)),
        (MOMENT.replace(microsecond=500_999), None, (AT_MS, LAST_MS)),
    ],
)
def test_a_time_is_ms_or_a_datetime(begin: Any, end: Any, asked: tuple[int, int]) -> None:
    question = by_key("orders", "k", 1, begin, end)
    assert question == Question("orders", "k", 1, *asked, unique=False)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"begin": AT_MS + 1, "end": MOMENT}, "the time range ends before it begins"),
        ({"begin": -1}, "begin is before 1970, or too far ahead"),
        ({"begin": dt.datetime.min}, "begin is before 1970, or too far ahead"),
        ({"end": LAST_MS + 1}, "end is before 1970, or too far ahead"),
        ({"end": 1.5}, "end is not a whole number"),
        ({"key": ""}, "the key is empty"),
        ({"max_num": 0}, "max_num"),
        ({"topic": "a b"}, "topic"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_it_is(wrong: dict[str, Any], what: str) -> None:
    usual = {"topic": "orders", "key": "k", "max_num": 1, "begin": None, "end": None}
    with pytest.raises(InvalidArgument, match=what):
        by_key(**{**usual, **wrong})


def test_by_a_unique_key_alone_the_broker_chooses_how_many() -> None:
    wanted = Question("orders", "u", DEFAULT_MAX_NUM, 0, LAST_MS, unique=True)
    assert by_unique_key("orders", "u") == wanted
    number: Any = 5
    with pytest.raises(InvalidArgument, match="unique_key is not a str"):
        by_unique_key("orders", number)
    with pytest.raises(InvalidArgument):
        by_id("none")


def _asked(core: QueryCore, now_ms: int) -> messages.ConsumeRequest | None:
    header = core.outgoing(now_ms)
    return None if header is None else messages.decode_consume_request(header)


def test_a_question_is_sent_at_once_and_again_until_its_time_is_over() -> None:
    core = QueryCore("tcp://x:1", 2 * REPEAT_MS)
    core.ask(by_key("orders", "k", 3, 5, 7), 1000)
    core.aim.run = "run"
    query = messages.Query(1, "orders", "k", 3, 5, 7, False, "run")
    assert _asked(core, 1000) == query
    assert _asked(core, 1000 + REPEAT_MS - 1) is None
    assert _asked(core, 1000 + REPEAT_MS) == query, "the same number: the reader keeps one"
    assert _asked(core, 1000 + 2 * REPEAT_MS) == query, "not over yet"
    with pytest.raises(BrokerTimeout, match=f"{2 * REPEAT_MS} ms"):
        core.outgoing(1001 + 2 * REPEAT_MS)
    core.not_connected()
    assert core.aim.away


def test_only_the_answer_to_the_question_counts_and_only_once() -> None:
    core = QueryCore("tcp://x:1", 1000)
    named = offset_message_id(b"\x7f\0\0\1\0\0\x51\xaf", 0)
    for number in (1, 2):
        core.ask(by_id(named), 0)
        assert _asked(core, 0) == messages.QueryById(number, named)
    record = encode_record(Record("orders", b"found"))
    core.received([encode(messages.Queried(1)), b""])
    assert core.found is None, "that was the question before"
    core.received([encode(refusal(TopicNotFound("none", "orders"), 1))])
    core.received([encode(refusal(WrongStore("it was another store's", "b"), 1))])
    assert not core.aim.away
    core.received([encode(messages.Queried(2)), record])
    assert core.found is not None and [each.body for each in core.found] == [b"found"]
    core.received([encode(messages.Queried(2)), b""])
    assert len(core.found) == 1 and core.outgoing(10**9) is None
    core.ask(by_id(named), 5)
    assert core.found is None and _asked(core, 5) == messages.QueryById(3, named)


@pytest.mark.parametrize("number", [0, 1])
def test_a_refusal_is_raised_also_of_what_the_broker_could_not_read(number: int) -> None:
    core = QueryCore("tcp://x:1", 1000)
    core.ask(by_key("orders", "k", 1, None, None), 0)
    with pytest.raises(TopicNotFound, match="none of this name"):
        core.received([encode(refusal(TopicNotFound("none of this name", "orders"), number))])


def test_another_stores_broker_is_what_a_silence_is_told_with() -> None:
    core = QueryCore("tcp://x:1", 1000)
    core.ask(by_key("orders", "k", 1, None, None), 0)
    core.received([encode(refusal(WrongStore("it is another store's", "b"), 1))])
    assert core.found is None and core.aim.away
    with pytest.raises(WrongStore, match="another store's"):
        core.outgoing(1001)
    with pytest.raises(ProtocolError):
        core.given_up(5)
